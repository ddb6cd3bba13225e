"""Several operations in flight at once, on tensors of their own or on the same ones, waited for in any order. Every
rank derives all ranks' tensors, and so what has to be in them, from a seed. Apart from the tests, because ranks that
import pytest take longer to start."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import a2a
import a2a.moe
from a2a.adapting import wait_to_read

Array = np.ndarray[Any, Any]
View = Callable[[Array], Array]
# Elements of 8 bytes: inlined, one chunk, and many chunks of a pair.
ELEMS = (1, 60, 600, 5000, 30_000, 200_000)
# The same elements with and without gaps; a tensor has three times as many.
VIEWS: tuple[View, ...] = (
    lambda x: x[: len(x) // 3],
    lambda x: x[len(x) // 3 : len(x) // 3 * 2],
    lambda x: x[::3],
    lambda x: x[1::3],
    lambda x: x[: len(x) // 3 * 2].reshape(-1, 2)[:, 1],
)


class Round:
    """``tensors[name][rank]`` is what has to be in that tensor, after all operations so far; ``own[name]`` is this
    rank's tensor itself."""

    def __init__(self, comm: a2a.Communicator, seed: int, shared: bool) -> None:
        self.comm, self.draw, self.shared = comm, random.Random(seed), shared
        self.rng = np.random.default_rng(seed)
        self.tensors: list[list[Array]] = []
        self.own: list[Array] = []
        self.works: list[Any] = []
        self.calls: list[str] = []
        self.half: a2a.Communicator | None = None

    def tensor(self, elems: int) -> int:
        """A new tensor, or with ``shared`` perhaps one that is large enough and in use."""
        fitting = [i for i, one in enumerate(self.own) if one.dtype == np.int64 and len(one) >= 3 * elems]
        if self.shared and fitting and self.draw.random() < 0.7:
            return self.draw.choice(fitting)
        made = [self.rng.integers(-1000, 1000, 3 * elems) for _ in range(self.comm.size)]
        self.tensors.append(made)
        mine = made[self.comm.rank].copy()
        if self.draw.random() < 0.2:
            inside = self.comm.empty(len(mine), mine.dtype)
            inside[:] = mine
            mine = inside
        self.own.append(mine)
        return len(self.tensors) - 1

    def pair(self, elems: int) -> tuple[int, int, View, View]:
        """Two tensors that are not the same, or views of one that do not overlap."""
        first, second = self.tensor(elems), self.tensor(elems)
        if first == second:
            return first, second, VIEWS[0], VIEWS[1]
        return first, second, self.draw.choice(VIEWS), self.draw.choice(VIEWS)

    def start(self) -> None:
        kind = self.draw.choice(
            ["allreduce", "in place", "broadcast", "alltoall", "one way", "allgather", "reduce_scatter", "reduce"]
            + ["scan"]
            + ["turned", "alltoall in place", "plan", "uneven", "gather", "scatter", "experts", "exchange", "barrier"]
            + ["halves", "message", "message", "any source", "columns"] * (self.comm.size > 1)
        )
        elems = self.draw.choice(ELEMS)
        elems -= elems % self.comm.size if elems >= self.comm.size else 0
        self.calls.append(f"{kind} of {elems}")
        getattr(self, "_" + kind.replace(" ", "_"))(elems)

    def views(self, tensor: int, view: View, elems: int) -> list[Array]:
        return [view(one)[:elems] for one in self.tensors[tensor]]

    def mine(self, tensor: int, view: View, elems: int) -> Array:
        return view(self.own[tensor])[:elems]

    def _allreduce(self, elems: int) -> None:
        a, b, of_a, of_b = self.pair(elems)
        self.works.append(self.comm.allreduce(self.mine(a, of_a, elems), self.mine(b, of_b, elems), async_op=True))
        total = sum(self.views(a, of_a, elems))
        for out in self.views(b, of_b, elems):
            out[:] = total

    def _in_place(self, elems: int) -> None:
        a, view = self.tensor(elems), self.draw.choice(VIEWS)
        self.works.append(self.comm.allreduce(self.mine(a, view, elems), async_op=True))
        total = sum(self.views(a, view, elems))
        for out in self.views(a, view, elems):
            out[:] = total

    def _scan(self, elems: int) -> None:
        a, b, of_a, of_b = self.pair(elems)
        exclusive = self.draw.random() < 0.5
        call = self.comm.exscan if exclusive else self.comm.scan
        self.works.append(call(self.mine(a, of_a, elems), self.mine(b, of_b, elems), async_op=True))
        total: Array = np.zeros(elems, self.tensors[a][0].dtype)
        for rank, (added, out) in enumerate(zip(self.views(a, of_a, elems), self.views(b, of_b, elems), strict=True)):
            before, total = total, total + added
            if rank > 0 or not exclusive:
                out[:] = before if exclusive else total

    def _broadcast(self, elems: int) -> None:
        a, view, root = self.tensor(elems), self.draw.choice(VIEWS), self.draw.randrange(self.comm.size)
        self.works.append(self.comm.broadcast(self.mine(a, view, elems), root, async_op=True))
        ranks = self.views(a, view, elems)
        for out in ranks:
            out[:] = ranks[root]

    def _alltoall(self, elems: int) -> None:
        size = self.comm.size
        elems -= elems % size
        if elems == 0:
            elems = size
        a, b, of_a, of_b = self.pair(elems)
        self.works.append(self.comm.alltoall(self.mine(a, of_a, elems), self.mine(b, of_b, elems), async_op=True))
        sent = np.stack(self.views(a, of_a, elems)).reshape(size, size, -1)
        for rank, out in enumerate(self.views(b, of_b, elems)):
            out[:] = sent[:, rank].ravel()

    def _one_way(self, elems: int) -> None:
        """From one rank to one other."""
        size, (a, b, of_a, of_b) = self.comm.size, self.pair(elems)
        source, target = self.draw.randrange(size), self.draw.randrange(size)
        to = [elems if self.comm.rank == source and peer == target else 0 for peer in range(size)]
        from_ = [elems if self.comm.rank == target and peer == source else 0 for peer in range(size)]
        send, recv = self.mine(a, of_a, elems)[: sum(to)], self.mine(b, of_b, elems)[: sum(from_)]
        self.works.append(self.comm.alltoallv(send, to, recv, from_, async_op=True))
        self.views(b, of_b, elems)[target][:] = self.views(a, of_a, elems)[source]

    def _allgather(self, elems: int) -> None:
        part = max(1, elems // self.comm.size)
        elems = part * self.comm.size
        a, b, of_a, of_b = self.pair(elems)
        self.works.append(self.comm.allgather(self.mine(a, of_a, part), self.mine(b, of_b, elems), async_op=True))
        gathered = np.concatenate(self.views(a, of_a, part))
        for out in self.views(b, of_b, elems):
            out[:] = gathered

    def _reduce_scatter(self, elems: int) -> None:
        part = max(1, elems // self.comm.size)
        elems = part * self.comm.size
        a, b, of_a, of_b = self.pair(elems)
        self.works.append(self.comm.reduce_scatter(self.mine(a, of_a, elems), self.mine(b, of_b, part), async_op=True))
        total = sum(self.views(a, of_a, elems))
        for rank, out in enumerate(self.views(b, of_b, part)):
            out[:] = total[rank * part : (rank + 1) * part]

    def _reduce(self, elems: int) -> None:
        a, view, root = self.tensor(elems), self.draw.choice(VIEWS), self.draw.randrange(self.comm.size)
        self.works.append(self.comm.reduce(self.mine(a, view, elems), None, root, async_op=True))
        ranks = self.views(a, view, elems)
        ranks[root][:] = sum(ranks)

    def _message(self, elems: int) -> None:
        (source, target), tag = self.draw.sample(range(self.comm.size), 2), self.draw.randrange(3)
        a, b, of_a, of_b = self.pair(elems)
        if self.comm.rank == source:
            self.works.append(self.comm.send(self.mine(a, of_a, elems), target, tag, async_op=True))
        if self.comm.rank == target:
            self.works.append(self.comm.recv(self.mine(b, of_b, elems), source, tag, async_op=True))
        self.views(b, of_b, elems)[target][:] = self.views(a, of_a, elems)[source]

    def _turned(self, elems: int) -> None:
        """Divided along columns, and put together along rows."""
        size = self.comm.size
        rows, columns = size * max(1, elems // 600), size * 3
        a, b, of_a, of_b = self.pair(rows * columns)
        send = of_a(self.own[a])[: rows * columns].reshape(rows, columns)
        recv = of_b(self.own[b])[: rows * columns]
        if not np.shares_memory(send, self.own[a]):  # reshape() has made a copy
            of_a, send = VIEWS[0], VIEWS[0](self.own[a])[: rows * columns].reshape(rows, columns)
        if a == b:
            of_b, recv = VIEWS[1], VIEWS[1](self.own[b])[: rows * columns]
        recv = recv.reshape(rows * size, 3)
        if not np.shares_memory(recv, self.own[b]):
            of_b = VIEWS[1]
            recv = VIEWS[1](self.own[b])[: rows * columns].reshape(rows * size, 3)
        self.works.append(self.comm.alltoall(send, recv, 1, 0, async_op=True))
        sent = [one.reshape(rows, size, 3).copy() for one in self.views(a, of_a, rows * columns)]
        for rank, out in enumerate(self.views(b, of_b, rows * columns)):
            out[:] = np.concatenate([one[:, rank] for one in sent]).ravel()

    def _alltoall_in_place(self, elems: int) -> None:
        size = self.comm.size
        elems = max(size, elems - elems % size)
        a, view = self.tensor(elems), self.draw.choice(VIEWS)
        tensor = self.mine(a, view, elems)
        self.works.append(self.comm.alltoall(tensor, tensor, async_op=True))
        sent = np.stack(self.views(a, view, elems)).reshape(size, size, -1)
        for rank, out in enumerate(self.views(a, view, elems)):
            out[:] = sent[:, rank].ravel()

    def _plan(self, elems: int) -> None:
        """Several times on the same tensors."""
        a, b, of_a, of_b = self.pair(elems)
        plan = self.comm.plan_allreduce(self.mine(a, of_a, elems), self.mine(b, of_b, elems))
        for _ in range(self.draw.randrange(1, 4)):
            self.works.append(plan.start(self.mine(a, of_a, elems), self.mine(b, of_b, elems)))
            total = sum(self.views(a, of_a, elems))
            for out in self.views(b, of_b, elems):
                out[:] = total

    def _uneven(self, elems: int) -> None:
        """reduce_scatterv, and allgatherv back."""
        size = self.comm.size
        counts = [self.draw.randrange(1 + 2 * elems // size) for _ in range(size)]
        total = sum(counts)
        a, b, of_a, of_b = self.pair(max(1, total, 2 * elems))
        begins, rank = [sum(counts[:at]) for at in range(size)], self.comm.rank
        recv = self.mine(b, of_b, counts[rank])
        self.works.append(self.comm.reduce_scatterv(self.mine(a, of_a, total), counts, recv, async_op=True))
        folded = sum(self.views(a, of_a, total))
        for at, out in enumerate(self.tensors[b]):
            of_b(out)[: counts[at]] = folded[begins[at] : begins[at] + counts[at]]
        self.works.append(self.comm.allgatherv(recv, self.mine(a, of_a, total), counts, async_op=True))
        parts = np.concatenate([of_b(one)[: counts[at]] for at, one in enumerate(self.tensors[b])])
        for out in self.views(a, of_a, total):
            out[:] = parts

    def _gather(self, elems: int) -> None:
        size, root = self.comm.size, self.draw.randrange(self.comm.size)
        part = max(1, elems // size)
        a, b, of_a, of_b = self.pair(part * size)
        recv = self.mine(b, of_b, part * size) if self.comm.rank == root else None
        self.works.append(self.comm.gather(self.mine(a, of_a, part), recv, root, async_op=True))
        self.views(b, of_b, part * size)[root][:] = np.concatenate(self.views(a, of_a, part))

    def _scatter(self, elems: int) -> None:
        size, root = self.comm.size, self.draw.randrange(self.comm.size)
        part = max(1, elems // size)
        a, b, of_a, of_b = self.pair(part * size)
        send = self.mine(a, of_a, part * size) if self.comm.rank == root else None
        self.works.append(self.comm.scatter(send, self.mine(b, of_b, part), root, async_op=True))
        sent = self.views(a, of_a, part * size)[root]
        for rank, out in enumerate(self.views(b, of_b, part)):
            out[:] = sent[rank * part : (rank + 1) * part]

    def _experts(self, elems: int) -> None:
        """Tokens and a bias that are summed just now go to all experts, one of each rank; their sum comes back, and
        becomes that of one rank."""
        size, hidden, root = self.comm.size, 4, self.draw.randrange(self.comm.size)
        tokens = max(1, min(elems, 8000) // hidden)
        shape = size, tokens, hidden
        x, bias = (self.rng.integers(-100, 100, shape).astype(np.float64) for _ in range(2))
        mine, added = x[self.comm.rank].copy(), bias[self.comm.rank].copy()
        self.works += [self.comm.allreduce(one, async_op=True) for one in (mine, added)]
        ep = a2a.moe.ExpertParallel(self.comm, size)
        everybody = np.tile(np.arange(size), (tokens, 1))
        sent = ep.dispatch(mine, everybody, async_op=True)
        back = ep.combine(sent.result.x, sent.result, bias=added, async_op=True)
        self.works += [sent, back, self.comm.broadcast(back.result, root, async_op=True)]
        self.works.append(self.comm.allreduce(added, async_op=True))
        self.own += [back.result, added]
        self.tensors += [[x.sum(0) * size + bias.sum(0)] * size, [bias.sum(0) * size] * size]

    def _exchange(self, elems: int) -> None:
        """Waits for what it reads."""
        size, (a, view) = self.comm.size, (self.tensor(elems), self.draw.choice(VIEWS))
        counts = [[self.draw.randrange(1 + elems // size) for _ in range(size)] for _ in range(size)]
        mine = counts[self.comm.rank]
        got, heard = self.comm.exchange(self.mine(a, view, sum(mine)), mine)
        assert list(heard) == [one[self.comm.rank] for one in counts]
        sent = [view(one)[: sum(row)] for one, row in zip(self.tensors[a], counts, strict=True)]
        rank = self.comm.rank
        parts = [one[sum(row[:rank]) : sum(row[: rank + 1])] for one, row in zip(sent, counts, strict=True)]
        assert (np.asarray(got) == np.concatenate(parts)).all(), self.calls

    def _barrier(self, elems: int) -> None:
        self.comm.barrier()

    def _halves(self, elems: int) -> None:
        """On the ranks of two other communicators."""
        if self.half is None:
            self.half = self.comm.split(self.comm.rank % 2)
        a, view = self.tensor(elems), self.draw.choice(VIEWS)
        for work in self.works:  # operations of two communicators are not ordered
            work.wait()
        self.half.allreduce(self.mine(a, view, elems))
        for parity in range(2):
            members = self.views(a, view, elems)[parity::2]
            total = sum(members)
            for out in members:
                out[:] = total

    def _any_source(self, elems: int) -> None:
        """From the only rank that sends with this tag."""
        (source, target), tag = self.draw.sample(range(self.comm.size), 2), 1000 + len(self.calls)
        a, b, of_a, of_b = self.pair(elems)
        if self.comm.rank == target:
            self.works.append(self.comm.recv(self.mine(b, of_b, elems), None, tag, async_op=True))
        if self.comm.rank == source:
            self.works.append(self.comm.send(self.mine(a, of_a, elems), target, tag, async_op=True))
        self.views(b, of_b, elems)[target][:] = self.views(a, of_a, elems)[source]

    def _columns(self, elems: int) -> None:
        """Receives into one column of a matrix and sends another one, as at the edge of a domain."""
        (left, right), a = self.draw.sample(range(self.comm.size), 2), self.tensor(elems)
        columns = [one[: elems * 3].reshape(elems, 3) for one in (self.own[a], *self.tensors[a])]
        if self.comm.rank in (left, right):
            peer, (inner, outer) = left + right - self.comm.rank, columns[0].T[1:]
            self.works.append(self.comm.recv(outer, peer, 7, async_op=True))
            self.works.append(self.comm.send(inner, peer, 7, async_op=True))
        columns[1 + left][:, 2], columns[1 + right][:, 2] = columns[1 + right][:, 1], columns[1 + left][:, 1]

    def finish(self, order: random.Random) -> None:
        """Waits for all, in an order of this rank's own, and compares every tensor."""
        works = self.works
        order.shuffle(works)
        for work in works:
            if order.random() < 0.2:
                work.done()
            work.wait()
        for name, (actual, expected) in enumerate(zip(self.own, self.tensors, strict=True)):
            wrong = np.flatnonzero(actual != expected[self.comm.rank])
            assert len(wrong) == 0, (
                f"rank {self.comm.rank}: tensor {name} of {len(actual)} elements differs at {wrong[:5]}, "
                f"{len(wrong)} in all, after {self.calls}"
            )


def rounds(comm: a2a.Communicator, seeds: list[int], shared: bool) -> None:
    for seed in seeds:
        one = Round(comm, seed, shared)
        for _ in range(one.draw.randrange(2, 8)):
            one.start()
        one.finish(random.Random(seed * 1000 + comm.rank))
        if one.half is not None:
            one.half.close()


def three_in_flight(comm: a2a.Communicator, times: int) -> None:
    """Two ranks: many chunks one way, and operations of one chunk each behind them."""
    big, small = np.zeros(196_848), np.zeros(607)
    for _ in range(times):
        works = [comm.broadcast(big, 0, async_op=True)]
        works += [comm.allreduce(small.copy(), async_op=True) for _ in range(2)]
        for work in works:
            work.wait()
        there, back = ([len(big), 0], [0, 0]) if comm.rank else ([0, 0], [0, len(big)])
        one_way = comm.alltoallv(big[: sum(there)], there, np.empty(sum(back)), back, async_op=True)
        works = [one_way, *(comm.alltoall(small[:600], np.empty(600), async_op=True) for _ in range(2))]
        for work in works:
            work.wait()


def edges(comm: a2a.Communicator) -> None:
    """Each rank receives its neighbours' inner columns into its outer ones, as in a domain that ranks have divided. All
    receives come first: a send that waited for them, whose elements lie between, would wait for ever."""
    for shape, view in (((7, 12), lambda x: x), ((5, 12, 3), lambda x: x), ((12, 9), lambda x: x.T)):
        x = view(np.arange(np.prod(shape), dtype=np.float64).reshape(shape) + 1000 * comm.rank)
        whole = x.copy()
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        works = [comm.recv(x[:, 0], left, 1, async_op=True), comm.recv(x[:, -1], right, 2, async_op=True)]
        works += [comm.send(x[:, -2], right, 1, async_op=True), comm.send(x[:, 1], left, 2, async_op=True)]
        works.append(comm.allreduce(x[:, 4:6], async_op=True))
        works.append(comm.alltoall(x[: comm.size, 6], x[: comm.size, 6], async_op=True))
        for work in works:
            work.wait()
        assert (x[:, 0] == whole[:, -2] + 1000 * (left - comm.rank)).all()
        assert (x[:, -1] == whole[:, 1] + 1000 * (right - comm.rank)).all()


def starts_that_do_not_wait(comm: a2a.Communicator) -> None:
    """Rank 0 starts operations in place on one tensor before any other rank does."""
    x, y = np.ones(6 * comm.size), np.ones((6 * comm.size, 2))[:, 0]
    if comm.rank == 0:
        works = [comm.allreduce(x, async_op=True), comm.alltoall(x, x, async_op=True), comm.allreduce(x, async_op=True)]
        works += [comm.allreduce(y, async_op=True), comm.alltoall(y, y, async_op=True)]
        for peer in range(1, comm.size):
            comm.send(np.zeros(1), peer, 3)
    else:
        comm.recv(np.zeros(1), 0, 3)
        works = [comm.allreduce(x, async_op=True), comm.alltoall(x, x, async_op=True), comm.allreduce(x, async_op=True)]
        works += [comm.allreduce(y, async_op=True), comm.alltoall(y, y, async_op=True)]
    for work in works:
        work.wait()
    assert (x == comm.size**2).all() and (y == comm.size).all()


def many_on_one_tensor(comm: a2a.Communicator, operations: int) -> None:
    """They end with an error, and each holds the one before: that must not take a stack frame each."""
    x = np.ones(1)

    def start_and_abort() -> None:
        works = [comm.broadcast(x, 1, async_op=True) for _ in range(operations)]
        works += [comm.recv(x, 1, async_op=True) for _ in range(3)]
        comm.abort("enough")
        works.reverse()
        works.clear()
        comm.close()

    if comm.rank == 0:
        threading.stack_size(512 << 10)
        thread = threading.Thread(target=start_and_abort)
        thread.start()
        thread.join()
    else:
        try:
            comm.recv(x, 0)
        except a2a.AbortedError:
            pass


def views_of_what_arrives(comm: a2a.Communicator) -> None:
    """Peers look at a tensor when what was in flight has arrived there."""
    x = comm.empty(3, np.int64)
    x[:] = -1
    if comm.rank == 0:
        work = comm.recv(x, 1, 4, async_op=True)
    else:
        time.sleep(0.1)
        work = comm.send(np.arange(3), 0, 4, async_op=True) if comm.rank == 1 else None
    with comm.allgather_views(x) as views:
        assert list(views[0]) == [0, 1, 2]
        comm.barrier()
    if work is not None:
        work.wait()


def held_and_from_any(comm: a2a.Communicator) -> None:
    """Rank 0 receives twice into one tensor, then from any rank with the tag of the second: ranks 1 and 2 send in that
    order. Its second receive does not begin before the first one ends, and is still the earlier one of its tag."""
    if comm.rank == 0:
        x, y = np.zeros(1), np.zeros(1)
        works = [
            comm.recv(x, 2, 5, async_op=True),
            comm.recv(x, 1, 6, async_op=True),
            comm.recv(y, None, 6, async_op=True),
        ]
        comm.recv(np.zeros(1), 1, 7)  # so the message with tag 6 is here
        comm.send(np.zeros(1), 2, 7)
        for work in works:
            work.wait()
        assert (x[0], y[0]) == (1, 2)
    elif comm.rank == 1:
        comm.send(np.ones(1), 0, 6)
        comm.send(np.ones(1), 0, 7)
    else:
        comm.recv(np.zeros(1), 0, 7)
        comm.send(np.full(1, -1.0), 0, 5)
        comm.send(np.full(1, 2.0), 0, 6)


def read_by_calls(comm: a2a.Communicator) -> None:
    """Calls that read their tensors themselves, while an operation or a message in flight still writes these."""
    others = comm.size * (comm.size - 1) // 2

    def summed(x: Array) -> Array:
        comm.allreduce(x, async_op=True)
        return x

    mine = np.full(8, comm.rank, np.float32)
    assert (a2a.block_quantized_all_reduce(comm, summed(mine.copy()), gather="same") == others * comm.size).all()
    assert (a2a.quantized_all_reduce(comm, summed(np.full(8, comm.rank, np.int8)), 1.0) == others * comm.size).all()
    ep = a2a.moe.ExpertParallel(comm, comm.size)
    weights = np.full((3, comm.size), 1 / comm.size, np.float32)
    experts = np.tile(np.arange(comm.size), (3, 1)) if comm.rank == 0 else np.full((3, comm.size), -1)
    routed = ep.dispatch(np.ones((3, 2), np.float32), summed(experts + (comm.rank > 0)), summed(weights))
    assert ep.combine(routed.x, routed).tolist() == [[comm.size] * 2] * 3
    for strided in (np.zeros(8, np.int8), np.zeros((8, 2), np.int8)[:, 1]):
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        got = comm.recv(strided, left, 8, async_op=True)
        comm.send(np.full(8, comm.rank + 1, np.int8), right, 8)
        wait_to_read(comm, [strided, "no tensor"])
        assert (strided == left + 1).all()
        got.wait()
