"""Several operations in flight at once, on tensors of their own or on the same ones, waited for in any order. Every
rank derives all ranks' tensors, and so what has to be in them, from a seed. Apart from the tests, because ranks that
import pytest take longer to start."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import a2a

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

    def tensor(self, elems: int) -> int:
        """A new tensor, or with ``shared`` perhaps one that is large enough and in use."""
        fitting = [i for i, ranks in enumerate(self.tensors) if len(ranks[0]) >= 3 * elems]
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
            + ["message", "message"] * (self.comm.size > 1)
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
