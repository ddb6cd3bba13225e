"""What ranks do in test_strides.py. Every rank derives all ranks' inputs, and so what to expect, from a few numbers.
Apart from the test, because ranks that import pytest take longer to start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import frameworks
import ml_dtypes
import numpy as np
from exchange_ranks import with_thresholds

import a2a
from a2a import testing

Array = np.ndarray[Any, Any]
DTYPES = ("int8", "uint8", "int16", "float16", "bfloat16", "int32", "float32", "int64", "float64", "complex128")
POISON = np.uint8(testing.POISON)


def dtype_of(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name, name))


class Tensors:
    """Makes tensors of random strides, each a view of a larger one that is poisoned."""

    def __init__(self, comm: a2a.Communicator, rng: np.random.Generator, layouts: str = "CCFRRRR") -> None:
        self.comm, self.rng, self.layouts = comm, rng, layouts
        self.made: list[tuple[Array, Callable[[Array], Array], Array | None]] = []

    def output(self, shape: Any, dtype: Any) -> Array:
        """Poison."""
        return self._make(tuple(int(entries) for entries in shape), dtype)[1]

    def input(self, array: Array) -> Array:
        """A copy, which has to stay as it is."""
        whole, view = self.of(array)
        self.made[-1] = (whole, self.made[-1][1], array)
        return view

    def of(self, array: Array) -> tuple[Array, Array]:
        whole, view = self._make(array.shape, array.dtype)
        view[...] = array
        return whole, view

    def _make(self, shape: tuple[int, ...], dtype: Any) -> tuple[Array, Array]:
        layout = str(self.rng.choice(list(self.layouts)))
        dims = len(shape)
        order, steps, before, after = list(range(dims)), [1] * dims, [0] * dims, [0] * dims
        if layout == "F":
            order.reverse()
        elif layout == "R":  # dimensions in any order and direction, steps, and gaps at both ends
            order = [int(at) for at in self.rng.permutation(dims)]
            steps = [int(step) for step in self.rng.choice([1, 1, 1, 2, 3, -1, -2], dims)]
            before, after = (self.rng.integers(0, 3, dims).tolist() for _ in range(2))
        lengths = [before[at] + shape[at] * abs(steps[at]) + after[at] for at in order]
        places = tuple(slice(before[at], before[at] + shape[at] * abs(steps[at]), abs(steps[at])) for at in order)
        flips = tuple(slice(None, None, -1 if steps[at] < 0 else 1) for at in order)
        back = [order.index(at) for at in range(dims)]

        def view(whole: Array) -> Array:
            if dims == 0:
                return whole[1:2].reshape(())
            result: Array = whole[places][flips].transpose(back)
            return result

        shared = self.rng.random() < 0.3
        lengths = lengths or [3]
        whole = np.asarray(self.comm.empty(lengths, dtype)) if shared else np.empty(lengths, dtype)
        testing.poison(whole)
        self.made.append((whole, view, None))
        return whole, view(whole)

    def check(self, what: str) -> None:
        """What lies between the elements is poison still."""
        for whole, view, array in self.made:
            if array is not None:
                same(view(whole), array, f"{what}: an input")
            rest = whole.copy()
            gaps = view(rest)
            gaps[...] = np.frombuffer(np.full(rest.itemsize, POISON).tobytes(), rest.dtype)[0]
            assert (rest.reshape(-1).view(np.uint8) == POISON).all(), f"{what}: {gaps.shape} {gaps.strides}: gaps"
        self.made.clear()


def same(actual: Any, expected: Any, what: str) -> None:
    difference = testing.first_difference(np.ascontiguousarray(actual), np.ascontiguousarray(expected))
    strides = getattr(actual, "strides", None)
    assert difference is None, f"{what}: {np.shape(actual)} of strides {strides}: {difference}"


@dataclass
class Operation:
    """One call for any tensors. ``fresh()`` makes new ones: what is sent, what is received into, and what the latter
    holds then; without it, the former."""

    call: Callable[..., Any]
    fresh: Callable[[], tuple[Any, Any, Any]]
    plan: Callable[[Any, Any], a2a.Plan] | None = None
    """None also where what is sent is a part of what is received into, which plans do not take."""
    back: Callable[[], tuple[Any, Any, Any]] | None = None
    """Tensors for the transposed plan."""


class Case:
    def __init__(self, comm: a2a.Communicator, seed: int, most: int) -> None:
        self.comm, self.rank, self.n = comm, comm.rank, comm.size
        self.rng = np.random.default_rng(seed)  # alike on all ranks
        self.own = np.random.default_rng((seed, comm.rank))
        self.tensors = Tensors(comm, self.own)
        self.dtype = dtype_of(str(self.rng.choice(DTYPES)))
        self.most = most

    def shape(self, dims: int) -> list[int]:
        """Few elements more often than many; a dimension of no entries now and then, and of one."""
        elems = np.exp(self.rng.uniform(0, np.log(self.most)))
        shape = [max(1, int(elems**weight)) for weight in self.rng.dirichlet(np.ones(dims))]
        for at in range(dims):
            if self.rng.random() < 0.15:
                shape[at] = 0 if self.rng.random() < 0.2 else 1
        return shape

    def dims(self, least: int = 1) -> int:
        return int(self.rng.integers(least, 6))

    def random(self, *shape: int) -> Array:
        """The same bits on every rank."""
        return testing.random_array(self.rng, shape, self.dtype)

    def numbers(self, *shape: int) -> Array:
        """So small that every order of folding gives the same."""
        return self.rng.integers(0, 4, shape).astype(self.dtype)

    def axis(self, dims: int) -> int:
        return int(self.rng.integers(-dims, dims))

    def output(self, *shape: int) -> Array:
        return self.tensors.output(shape, self.dtype)

    def input(self, array: Array) -> Array:
        return self.tensors.input(array)


def alltoall(case: Case) -> Operation:
    dims = case.dims()
    split, concat = case.axis(dims), case.axis(dims)
    send_shape = case.shape(dims)
    recv_shape = list(send_shape)
    send_shape[split] *= case.n
    recv_shape[concat] *= case.n
    axes = {} if split == concat == 0 and case.rng.random() < 0.5 else {"split_axis": split, "concat_axis": concat}

    def fresh() -> tuple[Any, Any, Any]:
        sends = [case.random(*send_shape) for _ in range(case.n)]
        expected = testing.alltoall(sends, split, concat)[case.rank]
        return case.input(sends[case.rank]), case.output(*recv_shape), expected

    def back() -> tuple[Any, Any, Any]:
        sends = [case.random(*recv_shape) for _ in range(case.n)]
        expected = testing.alltoall(sends, concat, split)[case.rank]
        return case.input(sends[case.rank]), case.output(*send_shape), expected

    return Operation(
        lambda send, recv, **more: case.comm.alltoall(send, recv, **axes, **more),
        fresh,
        lambda send, recv: case.comm.plan_alltoall(send, recv, **axes),
        back,
    )


def places(rng: np.random.Generator, counts: Array) -> tuple[list[int], int]:
    """Displacements in any order, with gaps, and how many entries that takes."""
    displs, at = [0] * len(counts), 0
    for peer in rng.permutation(len(counts)):
        at += int(rng.integers(0, 3))
        displs[peer] = at
        at += int(counts[peer])
    return displs, at + int(rng.integers(0, 3))


def alltoallv(case: Case) -> Operation:
    n, rank, dims = case.n, case.rank, case.dims()
    split, concat = case.axis(dims), case.axis(dims)
    block = case.shape(dims)
    if split % dims == concat % dims:
        send_counts = case.rng.integers(0, block[split] + 1, (n, n)) * (case.rng.random((n, n)) < 0.8)
        recv_counts = send_counts.T
    else:  # a block has all of the sender's entries along one axis and all of the receiver's along the other
        given, taken = (case.rng.integers(0 if dims == 2 else 1, block[axis] + 2, n) for axis in (concat, split))
        send_counts, recv_counts = np.array([taken] * n), np.array([given] * n)
    send_places = [places(case.rng, counts) for counts in send_counts]
    recv_places = [places(case.rng, counts) for counts in recv_counts]
    send_shapes, recv_shapes = [list(block) for _ in range(n)], [list(block) for _ in range(n)]
    packed = case.rng.random() < 0.3
    for r in range(n):
        send_shapes[r][concat], recv_shapes[r][split] = given_to(case, recv_counts, r), given_to(case, send_counts, r)
        send_shapes[r][split] = int(send_counts[r].sum()) if packed else send_places[r][1]
        recv_shapes[r][concat] = int(recv_counts[r].sum()) if packed else recv_places[r][1]
    send_displs, recv_displs = ([displs for displs, _ in all_places] for all_places in (send_places, recv_places))
    forth = {} if packed else {"send_displs": send_displs, "recv_displs": recv_displs}
    back_displs = {} if packed else {"send_displs": recv_displs, "recv_displs": send_displs}
    mine = {name: displs[rank] for name, displs in forth.items()} | {"split_axis": split, "concat_axis": concat}

    def fresh() -> tuple[Any, Any, Any]:
        sends = [case.random(*shape) for shape in send_shapes]
        recvs = [testing.poison(np.empty(shape, case.dtype)) for shape in recv_shapes]
        expected = testing.alltoallv(sends, send_counts, recvs, **forth, split_axis=split, concat_axis=concat)[rank]
        return case.input(sends[rank]), case.output(*recv_shapes[rank]), expected

    def back() -> tuple[Any, Any, Any]:
        sends = [case.random(*shape) for shape in recv_shapes]
        recvs = [testing.poison(np.empty(shape, case.dtype)) for shape in send_shapes]
        expected = testing.alltoallv(sends, recv_counts, recvs, **back_displs, split_axis=concat, concat_axis=split)
        return case.input(sends[rank]), case.output(*send_shapes[rank]), expected[rank]

    return Operation(
        lambda send, recv, **more: case.comm.alltoallv(
            send, send_counts[rank], recv, recv_counts[rank], **mine, **more
        ),
        fresh,
        lambda send, recv: case.comm.plan_alltoallv(send, send_counts[rank], recv, recv_counts[rank], **mine),
        back,
    )


def given_to(case: Case, counts: Array, rank: int) -> int:
    """Of every peer alike, where the axes differ."""
    return int(counts[0][rank])


def alltoall_list(case: Case) -> Operation:
    n, rank = case.n, case.rank
    counts = case.rng.integers(0, max(2, case.most // 4), (n, n)) * (case.rng.random((n, n)) < 0.8)

    def shaped(array: Array) -> Array:
        elems = array.size
        divisors = [d for d in (1, 2, 3, 4, 5, 8) if elems % d == 0]
        d = int(case.own.choice(divisors))
        return array.reshape(case.own.permutation([d, elems // d]))

    def fresh() -> tuple[Any, Any, Any]:
        blocks = [[case.random(int(count)) for count in row] for row in counts]
        expected = testing.alltoall_list(blocks)[rank]
        sends = [case.input(shaped(block)) for block in blocks[rank]]
        return sends, [case.output(*shaped(block).shape) for block in expected], expected

    return Operation(case.comm.alltoall_list, fresh)


def allgather(case: Case) -> Operation:
    n, rank = case.n, case.rank
    shape = case.shape(case.dims(0))
    form = str(case.rng.choice(["stacked", "joined", "in place"]))
    if form == "joined" and not shape:
        form = "stacked"
    recv_shape = [n * shape[0], *shape[1:]] if form == "joined" else [n, *shape]

    def fresh() -> tuple[Any, Any, Any]:
        sends = [case.random(*shape) for _ in range(n)]
        expected = np.concatenate([send.reshape(1, *shape) for send in sends]).reshape(recv_shape)
        recv = case.output(*recv_shape)
        if form != "in place":
            return case.input(sends[rank]), recv, expected
        send = recv[rank : rank + 1].reshape(shape) if not shape else recv[rank]
        if not np.shares_memory(send, recv) and send.size > 0:
            return case.input(sends[rank]), recv, expected
        send[...] = sends[rank]
        return send, recv, expected

    return Operation(case.comm.allgather, fresh, None if form == "in place" else case.comm.plan_allgather)


def allgatherv(case: Case) -> Operation:
    n, rank = case.n, case.rank
    shape = case.shape(case.dims())
    counts = case.rng.integers(0, shape[0] + 1, n)
    displs, rows = places(case.rng, counts)
    in_place = bool(case.rng.random() < 0.3)

    def fresh() -> tuple[Any, Any, Any]:
        sends = [case.random(int(count), *shape[1:]) for count in counts]
        blank = testing.poison(np.empty((rows, *shape[1:]), case.dtype))
        expected = testing.allgatherv(sends, [blank] * n, displs)[rank]
        recv = case.output(rows, *shape[1:])
        if in_place:
            send = recv[displs[rank] : displs[rank] + counts[rank]]
            send[...] = sends[rank]
            return send, recv, expected
        return case.input(sends[rank]), recv, expected

    return Operation(
        lambda send, recv, **more: case.comm.allgatherv(send, recv, counts, displs, **more),
        fresh,
        None if in_place else lambda send, recv: case.comm.plan_allgatherv(send, recv, counts, displs),
    )


def experts(case: Case, gather: bool) -> Operation:
    n, rank = case.n, case.rank
    shape = case.shape(case.dims())
    per_rank = int(case.rng.integers(1, 4))
    local = case.rng.integers(0, shape[0] + 1, (n, n * per_rank)) * (case.rng.random((n, n * per_rank)) < 0.8)
    global_ = testing.global_counts(local)
    name = "global_gather" if gather else "global_scatter"
    counts = (local[rank], global_[rank])

    def fresh() -> tuple[Any, Any, Any]:
        rows = (global_ if gather else local).sum(1)
        xs = [case.random(int(count), *shape[1:]) for count in rows]
        expected = (testing.global_gather if gather else testing.global_scatter)(xs, local)[rank]
        return case.input(xs[rank]), case.output(*expected.shape), expected

    def call(send: Any, recv: Any, async_op: bool = False) -> Any:
        done = getattr(case.comm, name)(send, *counts, recv, async_op=async_op)
        return done if async_op else None

    return Operation(call, fresh, lambda send, _: getattr(case.comm, f"plan_{name}")(send, *counts))


def global_scatter(case: Case) -> Operation:
    return experts(case, False)


def global_gather(case: Case) -> Operation:
    return experts(case, True)


def exchange(case: Case) -> Operation:
    n, rank = case.n, case.rank
    shape = case.shape(case.dims())
    counts = case.rng.integers(0, shape[0] + 1, (n, n))

    def fresh() -> tuple[Any, Any, Any]:
        sends = [case.random(int(count), *shape[1:]) for count in counts.sum(1)]
        blanks = [np.empty((count, *shape[1:]), case.dtype) for count in counts.sum(0)]
        return case.input(sends[rank]), None, testing.alltoallv(sends, counts, blanks)[rank]

    def call(send: Any, recv: Any, async_op: bool = False) -> Any:
        received, recv_counts = case.comm.exchange(send, counts[rank])
        assert recv_counts.tolist() == counts[:, rank].tolist()
        return Result(received)

    return Operation(call, fresh)


class Result:
    """Of a call that allocates it."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def wait(self) -> None:
        pass


def fold_of(case: Case) -> str:
    if case.dtype.kind == "c":
        return "sum"
    return str(case.rng.choice(["sum", "min", "max"]))


def allreduce(case: Case) -> Operation:
    shape, op = case.shape(case.dims(0)) if case.rng.random() < 0.9 else [], fold_of(case)
    in_place = bool(case.rng.random() < 0.4)

    def fresh() -> tuple[Any, Any, Any]:
        sends = [case.numbers(*shape) for _ in range(case.n)]
        expected = testing.fold(sends, op)
        if in_place:
            return case.tensors.of(sends[case.rank])[1], None, expected
        recv_shape = case.own.permutation(shape) if case.own.random() < 0.2 else shape
        return case.input(sends[case.rank]), case.output(*recv_shape), expected

    return Operation(
        lambda send, recv, **more: case.comm.allreduce(send, recv, op, **more),
        fresh,
        lambda send, recv: case.comm.plan_allreduce(send, recv, op=op),
    )


def reduce_scatter(case: Case) -> Operation:
    n, rank = case.n, case.rank
    shape, op = case.shape(case.dims()), fold_of(case)
    uneven, in_place = (bool(case.rng.random() < 0.5) for _ in range(2))
    counts = [int(c) for c in case.rng.integers(0, shape[0] + 1, n)] if uneven else [shape[0]] * n
    at = sum(counts[:rank])

    def fresh() -> tuple[Any, Any, Any]:
        sends = [case.numbers(sum(counts), *shape[1:]) for _ in range(n)]
        expected = testing.reduce_scatter(sends, op, counts)[rank]
        if in_place:
            send = case.tensors.of(sends[rank])[1]
            return send, send[at : at + counts[rank]], expected
        return case.input(sends[rank]), case.output(*expected.shape), expected

    if uneven:
        return Operation(
            lambda send, recv, **more: case.comm.reduce_scatterv(send, counts, recv, op, **more),
            fresh,
            None if in_place else lambda send, recv: case.comm.plan_reduce_scatterv(send, counts, recv, op),
        )
    return Operation(
        lambda send, recv, **more: case.comm.reduce_scatter(send, recv, op, **more),
        fresh,
        None if in_place else lambda send, recv: case.comm.plan_reduce_scatter(send, recv, op),
    )


def reduce(case: Case) -> Operation:
    n, rank, root = case.n, case.rank, int(case.rng.integers(case.n))
    shape, op = case.shape(case.dims()), fold_of(case)
    in_place = bool(case.rng.random() < 0.5)

    def fresh() -> tuple[Any, Any, Any]:
        sends = [case.numbers(*shape) for _ in range(n)]
        if rank != root:
            return case.input(sends[rank]), None, sends[rank]
        expected = testing.fold(sends, op)
        if in_place:
            return case.tensors.of(sends[rank])[1], None, expected
        return case.input(sends[rank]), case.output(*shape), expected

    return Operation(
        lambda send, recv, **more: case.comm.reduce(send, recv, root, op, **more),
        fresh,
        lambda send, recv: case.comm.plan_reduce(send, recv, root, op),
    )


def broadcast(case: Case) -> Operation:
    rank, root, shape = case.rank, int(case.rng.integers(case.n)), case.shape(case.dims(0))

    def fresh() -> tuple[Any, Any, Any]:
        sent = case.random(*shape)
        return case.input(sent) if rank == root else case.output(*shape), None, sent

    return Operation(
        lambda send, recv, **more: case.comm.broadcast(send, root, **more),
        fresh,
        lambda send, recv: case.comm.plan_broadcast(send, root),
    )


def gather(case: Case) -> Operation:
    n, rank, root = case.n, case.rank, int(case.rng.integers(case.n))
    shape, in_place = case.shape(case.dims()), bool(case.rng.random() < 0.4)

    def fresh() -> tuple[Any, Any, Any]:
        sends = [case.random(*shape) for _ in range(n)]
        if rank != root:
            return case.input(sends[rank]), None, sends[rank]
        expected, recv = np.concatenate(sends), case.output(n * shape[0], *shape[1:])
        if in_place:
            send = recv[rank * shape[0] : (rank + 1) * shape[0]]
            send[...] = sends[rank]
            return send, recv, expected
        return case.input(sends[rank]), recv, expected

    return Operation(
        lambda send, recv, **more: case.comm.gather(send, recv, root, **more),
        fresh,
        None if in_place else lambda send, recv: case.comm.plan_gather(send, recv, root),
    )


def scatter(case: Case) -> Operation:
    n, rank, root = case.n, case.rank, int(case.rng.integers(case.n))
    shape, in_place = case.shape(case.dims()), bool(case.rng.random() < 0.4)

    def fresh() -> tuple[Any, Any, Any]:
        sent = case.random(n * shape[0], *shape[1:])
        expected = testing.scatter(sent, n)[rank]
        if rank != root:
            return None, case.output(*shape), expected
        send = case.input(sent)
        if in_place:
            return send, send[rank * shape[0] : (rank + 1) * shape[0]], expected
        return send, case.output(*shape), expected

    return Operation(
        lambda send, recv, **more: case.comm.scatter(send, recv, root, **more),
        fresh,
        None if in_place else lambda send, recv: case.comm.plan_scatter(send, recv, root),
    )


def messages(case: Case) -> Operation:
    """To the next rank, from the one before."""
    n, rank = case.n, case.rank
    shape, tag = case.shape(case.dims(0)), int(case.rng.integers(3))

    def fresh() -> tuple[Any, Any, Any]:
        sends = [case.random(*shape) for _ in range(n)]
        return case.input(sends[rank]), case.output(*shape), sends[rank - 1]

    def call(send: Any, recv: Any, async_op: bool = False) -> Any:
        work = case.comm.send(send, (rank + 1) % n, tag, async_op=True)
        assert work is not None
        received = case.comm.recv(recv, (rank - 1) % n, tag, async_op=async_op)
        work.wait()
        return received if async_op else None

    return Operation(call, fresh)


OPERATIONS: dict[str, Callable[[Case], Operation]] = {
    made.__name__: made
    for made in (
        alltoall,
        alltoallv,
        alltoall_list,
        allgather,
        allgatherv,
        global_scatter,
        global_gather,
        exchange,
        allreduce,
        reduce_scatter,
        reduce,
        broadcast,
        gather,
        scatter,
        messages,
    )
}


def compare(recv: Any, send: Any, expected: Any, what: str) -> None:
    if isinstance(expected, list):
        for actual, part in zip(recv, expected, strict=True):
            same(actual, part, what)
        return
    same(send if recv is None else recv, expected, what)


def cases(comm: a2a.Communicator, name: str, seeds: list[int], most: int) -> None:
    """Random cases of one operation, each called, planned or left to itself meanwhile."""
    for seed in seeds:
        case = Case(comm, seed, most)
        made = OPERATIONS[name](case)
        how = str(case.rng.choice(["call", "async", "plan"]))
        what = f"seed {seed}, {how}"
        if how == "plan" and made.plan is not None:
            run_plan(made.plan(*made.fresh()[:2]), made, case, what)
        elif how == "async":
            works = []
            for _ in range(3):
                send, recv, expected = made.fresh()
                works.append((made.call(send, recv, async_op=True), send, recv, expected))
            for work, send, recv, expected in works:
                work.wait()
                compare(work.result if isinstance(work, Result) else recv, send, expected, what)
        else:
            send, recv, expected = made.fresh()
            done = made.call(send, recv)
            compare(done.result if isinstance(done, Result) else recv, send, expected, what)
        case.tensors.check(what)


def run_plan(plan: a2a.Plan, made: Operation, case: Case, what: str) -> None:
    """Several times, with tensors of other strides each time."""
    for run in range(3):
        send, recv, expected = made.fresh()
        plan.run(send, recv) if run % 2 else plan.start(send, recv).wait()
        compare(recv, send, expected, f"{what}, run {run}")
    if made.back is not None:
        transposed = plan.transpose()
        for run in range(2):
            send, recv, expected = made.back()
            transposed.run(send, recv)
            compare(recv, send, expected, f"{what}, transposed, run {run}")


# ---- sizes -----------------------------------------------------------------------------------------------------------


def sizes(comm: a2a.Communicator, path: str, bytes_per_pair: list[int]) -> None:
    """Every pair exchanges as many bytes, with gaps on either side, on both and on none."""
    with with_thresholds(comm, path) as group:
        for size in bytes_per_pair:
            for layouts in ("C", "F", "R"):
                repeated(group, size, "float32" if size % 4 == 0 else "uint8", layouts + "CFR"[size % 3], 1)


def repeats(comm: a2a.Communicator, bytes_per_pair: list[int]) -> None:
    """The same facts again and again, contiguous at first, and with gaps, and contiguous again. Each rank has its own
    order of them."""
    for size in bytes_per_pair:
        dtype = "int16" if size % 2 == 0 else "int8"
        for layouts in ("C", "R" if comm.rank % 2 else "C", "C" if comm.rank % 2 else "R", "R", "CF"):
            repeated(comm, size, dtype, layouts, 3)


def repeated(comm: a2a.Communicator, size: int, dtype: str, layouts: str, times: int) -> None:
    n, rank = comm.size, comm.rank
    elems = size // dtype_of(dtype).itemsize
    wide = next(d for d in (7, 6, 5, 4, 3, 2, 1) if elems % d == 0)
    for again in range(times):
        tensors = Tensors(comm, np.random.default_rng((size, rank, again)), layouts)
        inputs = np.random.default_rng((size, again))
        sends = [testing.random_array(inputs, (n * wide, elems // wide), dtype) for _ in range(n)]
        send, recv = tensors.input(sends[rank]), tensors.output(sends[rank].shape, dtype_of(dtype))
        comm.alltoall(send, recv)
        what = f"{size} bytes, {layouts}, again: {again}"
        same(recv, testing.alltoall(sends)[rank], what)
        tensors.check(what)


# ---- in place --------------------------------------------------------------------------------------------------------


def in_place(comm: a2a.Communicator, along: bool, seeds: list[int], most: int) -> None:
    """``along`` any axis, or the first one."""
    n, rank = comm.size, comm.rank
    for seed in seeds:
        case = Case(comm, seed, most)
        dims = case.dims()
        axis = case.axis(dims) if along else 0
        shape = case.shape(dims)
        shape[axis] *= n
        sends = [case.random(*shape) for _ in range(n)]
        expected = testing.alltoall(sends, axis, axis)
        again = testing.alltoall(expected, axis, axis)
        x = case.tensors.of(sends[rank])[1]
        how = str(case.rng.choice(["call", "async", "plan"]))
        if how == "plan":
            plan = comm.plan_alltoall(x, x, axis, axis)
            plan.run(x, x)
            same(x, expected[rank], f"seed {seed}, planned in place")
            y = case.output(*shape)
            plan.run(x, y)
            same(y, again[rank], f"seed {seed}, planned in place, run apart")
            plan.run(x, x)
            same(x, again[rank], f"seed {seed}, planned in place, again")
        else:
            work = comm.alltoall(x, x, axis, axis, async_op=how == "async")
            if work is not None:
                work.wait()
            same(x, expected[rank], f"seed {seed}, {how} in place")
            comm.alltoall(x, x[...], axis, axis)  # another view of the same elements
            same(x, again[rank], f"seed {seed}, in place again")
        case.tensors.check(f"seed {seed}")


# ---- disagreements and refusals --------------------------------------------------------------------------------------


def outcome(call: Callable[[], Any]) -> str:
    try:
        call()
    except a2a.Error as error:
        return f"{type(error).__name__}: {error}"
    return ""


def works_still(comm: a2a.Communicator) -> None:
    n, rank = comm.size, comm.rank
    send = np.arange(6.0 * n).reshape(2, 3 * n)[:, ::-1] + 100 * rank
    recv = np.zeros((3, 2 * n)).T
    comm.alltoall(send, recv, 1, 0)
    sends = [np.arange(6.0 * n).reshape(2, 3 * n)[:, ::-1] + 100 * r for r in range(n)]
    same(recv, testing.alltoall(sends, 1, 0)[rank], "after an error")


def divided(comm: a2a.Communicator, send: Array, split: int, concat: int) -> None:
    shape = list(send.shape)
    shape[split] //= comm.size
    shape[concat] *= comm.size
    comm.alltoall(send, np.zeros(shape, send.dtype), split, concat)


def disagreements(comm: a2a.Communicator, scale: int) -> list[tuple[str, str]]:
    """Rank 1 has other axes, or blocks of another shape, of as many bytes."""
    n, odd = comm.size, comm.rank == 1
    cube = np.ones((n * scale, n * scale, n * scale), np.float32)
    square = np.ones((n * scale, 4 * scale) if odd else (2 * n * scale, 2 * scale), np.float32)
    counts = [scale] * n

    def uneven(axis: int, **more: Any) -> Any:
        return comm.alltoallv(cube, counts, np.zeros_like(cube), counts, split_axis=axis, concat_axis=axis, **more)

    calls: dict[str, Callable[[], Any]] = {
        "split": lambda: divided(comm, cube, 1 if odd else 0, 2),
        "both": lambda: divided(comm, cube, 2 if odd else 1, 2 if odd else 1),
        "first or last": lambda: divided(comm, cube, -1 if odd else 0, 2 if odd else 0),
        "with gaps": lambda: divided(comm, cube.T, 2 if odd else 1, 2 if odd else 1),
        "block": lambda: divided(comm, square, 0, 1),
        "uneven": lambda: uneven(2 if odd else 1),
        "async": lambda: uneven(2 if odd else 1, async_op=True).wait(),
    }
    said = []
    for name, call in calls.items():
        said.append((name, outcome(call)))
        works_still(comm)
    return said


def refusals(comm: a2a.Communicator) -> list[tuple[str, str, str]]:
    """What rank 0 asks for that cannot be; the others do what is right. Each with how it ends, and what that says."""
    n, first = comm.size, comm.rank == 0
    x, y = np.ones((2 * n, 3 * n)), np.zeros((2 * n, 3 * n))
    line, flat = np.ones(2 * n), np.broadcast_to(np.zeros(3 * n), (2 * n, 3 * n))
    ones, threes = [1] * n, [3] * n
    flat.flags.writeable = True
    bad: list[tuple[str, Callable[[], Any]]] = [
        ("split_axis is 2, but send .* has 2 dimensions", lambda: comm.alltoall(x, y, 2)),
        ("concat_axis is -3, but recv .* has 2 dimensions", lambda: comm.alltoall(x, y, 0, -3)),
        ("split_axis", lambda: comm.alltoall(x, y, "0")),  # type: ignore[arg-type]
        ("concat_axis", lambda: comm.alltoall(x, y, 1, 1.0)),  # type: ignore[arg-type]
        ("split_axis", lambda: comm.alltoall(x, y, None)),  # type: ignore[arg-type]
        ("split_axis", lambda: comm.alltoall(x, y, 1 << 40)),
        ("send", lambda: comm.alltoall(np.ones(()), np.zeros(()))),
        ("split_axis is 1, but send", lambda: comm.alltoall(np.ones(()), np.zeros(()), 1)),
        ("split_axis is 1, but send", lambda: comm.alltoall(line, np.zeros(2 * n), 1)),
        ("numbers of dimensions", lambda: comm.alltoall(x, np.zeros((6 * n, 1, n)), 1)),
        ("a block of shape .* of send .* axis 1, .*recv .* axis 0", lambda: comm.alltoall(x, y, 1, 0)),
        (f"send has {2 * n + 1} entries along split_axis", lambda: comm.alltoall(np.ones((3, 2 * n + 1)), y, 1)),
        (f"recv has {3 * n - 1} entries along concat_axis", lambda: comm.alltoall(x, y[:, 1:], 1, 1)),
        ("send.*float64.*recv.*float32", lambda: comm.alltoall(x, y.astype(np.float32), 1, 1)),
        ("share memory", lambda: comm.alltoall(x, flat)),
        ("share memory", lambda: comm.alltoall(x, flat, 1, 1)),
        ("share memory", lambda: comm.alltoall(x, x.reshape(3 * n, 2 * n).T, 1, 1)),
        ("send and recv share memory", lambda: comm.alltoall(x[:, : 2 * n], x[:, n:], 1, 1)),
        ("a block of shape", lambda: comm.alltoall(x, x, 1, 0)),
        ("send_counts", lambda: comm.alltoallv(x, [-1] * n, y, [-1] * n, split_axis=1, concat_axis=1)),
        ("send_counts.*leaves axis 1", lambda: comm.alltoallv(x, [4] * n, y, [4] * n, split_axis=1, concat_axis=1)),
        (
            "recv_counts.*leaves axis 1",
            lambda: comm.alltoallv(x, ones, y, ones, None, [3 * n] * n, split_axis=1, concat_axis=1),
        ),
        ("send_displs", lambda: comm.alltoallv(x, ones, y, ones, [-1] * n, split_axis=1, concat_axis=1)),
        ("overlap", lambda: comm.alltoallv(x, threes, y, threes, None, [0] * n, split_axis=1, concat_axis=1)),
        ("concat_axis", lambda: comm.alltoallv(x, ones, y, ones, concat_axis=7)),
    ]
    ended = []
    for text, call in bad:
        if n == 1 and any(
            word in text for word in ("block", "entries", "overlap")
        ):  # one rank sends itself all there is
            continue
        ended.append((text, *told(call if first else lambda: comm.alltoall(x, y.copy(), 1, 1))))
        works_still(comm)
    return ended


def told(call: Callable[[], Any]) -> tuple[str, str]:
    kind, _, said = outcome(call).partition(": ")
    return kind, said


# ---- frameworks ------------------------------------------------------------------------------------------------------


def mixed(comm: a2a.Communicator, dtype: str, rows: int) -> None:
    """Rank 0 has NumPy's tensors, rank 1 Torch's, rank 2 Paddle's, each transposed; rank 3 sends from JAX."""
    n, rank = comm.size, comm.rank
    rng = np.random.default_rng(rows)
    name = frameworks.INSTALLED[rank % len(frameworks.INSTALLED)]
    writable = "numpy" if name == "jax" else name
    sends = [testing.random_array(rng, (5, n * rows, 2 * n), dtype_of(dtype)) for _ in range(n)]
    for split, concat in ((0, 0), (1, 2), (2, 1), (1, 1)):
        if split == concat == 0:
            shaped = [np.ascontiguousarray(send.transpose(1, 0, 2)) for send in sends]
        else:
            shaped = sends
        expected = testing.alltoall(shaped, split, concat)[rank]
        send, recv = transposed(name, shaped[rank]), transposed(writable, np.zeros_like(expected))
        what = f"{name}, {split} to {concat}"
        comm.alltoall(send, recv, split, concat)
        same(contents(recv), expected, what)
        plan = comm.plan_alltoall(send, recv, split, concat)
        for _ in range(2):
            recv = transposed(writable, np.zeros_like(expected))
            plan.start(send, recv).wait()
            same(contents(recv), expected, f"{what}, planned")
    numbers = np.arange(rows * 6).reshape(rows, 6).astype(dtype_of(dtype)) % 16
    summed = transposed(writable, numbers)
    comm.allreduce(summed, op="max")
    same(contents(summed), numbers, f"{name}, allreduce")


def transposed(framework: str, array: Array) -> Any:
    """The same elements, those of the first dimension next to each other in memory."""
    dims = list(range(array.ndim))[::-1]
    tensor = frameworks.tensor(framework, np.ascontiguousarray(array.transpose(dims)))
    if framework == "torch":
        return tensor.permute(dims)
    return tensor.transpose(dims)


def contents(tensor: Any) -> Any:
    return tensor if isinstance(tensor, np.ndarray) else testing.as_bytes(tensor)
