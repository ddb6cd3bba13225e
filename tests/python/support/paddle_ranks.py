"""What ranks do in the tests of a2a.paddle, and the cases that every rank derives alike from a few numbers. Each
function returns what differs from the oracle."""

from __future__ import annotations

import itertools
from typing import Any

import a2a.paddle as dist
import frameworks
import numpy as np
import paddle
from exchange_ranks import Recipe, dtype_of

import a2a
from a2a import testing

DTYPES = "float16 bfloat16 float32 float64 int32 int64 int8 uint8 bool".split()
ALSO = "int16 complex64 complex128 float8_e4m3fn float8_e5m2".split()  # DLPack carries these, too

_parts: dict[tuple[int, int], a2a.Communicator | None] = {}


def part(comm: a2a.Communicator, n: int) -> a2a.Communicator | None:
    """The first ``n`` ranks. Made once, by all ranks."""
    key = (id(comm), n)
    if key not in _parts:
        _parts[key] = comm.group(range(n))
    return _parts[key]


def tensor(array: Any, gradient: bool = False) -> Any:
    made = frameworks.tensor("paddle", np.atleast_1d(array))
    if np.ndim(array) == 0:
        made = made.reshape([])
    made.stop_gradient = not gradient
    return made


def numbers(seed: int, rank: int, shape: Any, dtype: str) -> Any:
    """Numbers that every dtype has, so that adding a gradient to nothing keeps their bits."""
    rng = np.random.default_rng((seed, rank, 99))
    return rng.integers(0, 2 if dtype == "bool" else 8, shape).astype(dtype_of(dtype))


def compare(what: str, actual: Any, expected: Any) -> list[str]:
    if list(actual.shape) != list(expected.shape):
        return [f"{what}: shape {list(actual.shape)} instead of {list(expected.shape)}"]
    difference = testing.first_difference(actual, expected)
    return [] if difference is None else [f"{what}: {difference}"]


def differentiate(what: str, out: Any, x: Any, seed: int, rank: int, dtype: str, expected: Any) -> list[str]:
    """The gradient of ``x`` when that of ``out`` is numbers()."""
    gradient = tensor(numbers(seed, rank, out.shape, dtype))
    paddle.autograd.backward([out], [gradient])
    return compare(f"gradient of {what}", x.grad, expected)


def experts(world: a2a.Communicator, n: int, each: int, dtypes: list[str], seed: int) -> list[str]:
    """global_scatter and global_gather with random counts, forward and backward."""
    comm = part(world, n)
    problems: list[str] = []
    if comm is None:
        return problems
    for dtype in dtypes:
        recipe = Recipe(seed, dtype, (3,), max_rows=5, empty=0.5, experts=each)
        local = recipe.local_counts(n)
        global_ = testing.global_counts(local)
        counts = tensor(local[comm.rank]), tensor(global_[comm.rank])
        xs = [recipe.array(rank, row.sum()) for rank, row in enumerate(local)]
        ys = testing.global_scatter(xs, local)
        grads = [
            [numbers(seed, rank, (row.sum(), 3), dtype) for rank, row in enumerate(rows)] for rows in (global_, local)
        ]
        for call, given, out, back in (
            (dist.utils.global_scatter, xs, ys, testing.global_gather(grads[0], local)),
            (dist.utils.global_gather, ys, xs, testing.global_scatter(grads[1], local)),
        ):
            what = f"{call.__name__} of {dtype}, {n} ranks, {each} experts"
            x = tensor(given[comm.rank], gradient=True)
            result = call(x, *counts, group=comm)
            problems += compare(what, result, out[comm.rank])
            problems += differentiate(what, result, x, seed, comm.rank, dtype, back[comm.rank])
    return problems


def singles(world: a2a.Communicator, n: int, dtypes: list[str], seed: int) -> list[str]:
    """alltoall_single by sizes, in both orders of arguments, forward and backward."""
    comm = part(world, n)
    problems: list[str] = []
    if comm is None:
        return problems
    for at, (dtype, trailing) in enumerate(itertools.product(dtypes, ((), (3,), (2, 1)))):
        recipe = Recipe(seed + at, dtype, trailing, max_rows=6, empty=0.4)
        to = recipe.case(n).send_counts
        from_ = to.T
        sends = [recipe.array(rank, row.sum()) for rank, row in enumerate(to)]
        expected = testing.alltoallv(sends, to, [recipe.poisoned(row.sum()) for row in from_])
        grads = [numbers(seed, rank, (row.sum(), *trailing), dtype) for rank, row in enumerate(from_)]
        back = testing.alltoallv(grads, from_, [recipe.poisoned(row.sum()) for row in to])
        mine, sizes = comm.rank, (to[comm.rank].tolist(), from_[comm.rank].tolist())
        x, out = tensor(sends[mine], gradient=True), tensor(recipe.poisoned(sum(sizes[1])))
        sync = at % 2 == 0
        if at % 3 == 0:
            task = dist.alltoall_single(out, x, *sizes, group=comm, sync_op=sync)
        else:
            task = dist.stream.alltoall_single(out, x, sizes[1], sizes[0], group=comm, sync_op=sync)
        task.wait()
        what = f"alltoall_single of {dtype}, {n} ranks, rows {trailing}"
        problems += compare(what, out, expected[mine])
        problems += differentiate(what, out, x, seed, mine, dtype, back[mine])
    return problems


def lists(world: a2a.Communicator, n: int, dtypes: list[str], seed: int) -> list[str]:
    """alltoall of lists whose tensors have any shapes, into given outputs and into an empty list."""
    comm = part(world, n)
    problems: list[str] = []
    if comm is None:
        return problems
    for at, (dtype, empty) in enumerate(itertools.product(dtypes, (False, True))):
        recipe = Recipe(seed + at, dtype, max_rows=6, empty=0.4)
        shapes, mine = recipe.list_shapes(n), comm.rank
        sends = [
            [Recipe(seed, dtype, shape[1:]).array(rank, shape[0], peer) for peer, shape in enumerate(row)]
            for rank, row in enumerate(shapes)
        ]
        grads = [[numbers(seed + peer, rank, row[rank], dtype) for peer, row in enumerate(shapes)] for rank in range(n)]
        xs = [tensor(array, gradient=True) for array in sends[mine]]
        outs = [] if empty else [tensor(testing.poison(np.empty(row[mine], dtype_of(dtype)))) for row in shapes]
        dist.stream.alltoall(outs, xs, group=comm, sync_op=at % 3 > 0).wait()
        what = f"alltoall of lists of {dtype}, {n} ranks, {'empty' if empty else 'given'} outputs"
        for peer, (actual, expected) in enumerate(zip(outs, testing.alltoall_list(sends)[mine], strict=True)):
            problems += compare(f"{what}, from {peer}", actual, expected)
        paddle.autograd.backward(outs, [tensor(array) for array in grads[mine]])
        for peer, (x, expected) in enumerate(zip(xs, testing.alltoall_list(grads)[mine], strict=True)):
            problems += compare(f"gradient of {what}, for {peer}", x.grad, expected)
    return problems


def gathers(world: a2a.Communicator, n: int, dtypes: list[str], seed: int) -> list[str]:
    """all_gather in its forms: stacked, concatenated, an empty list, a given list; waited for in different ways."""
    comm = part(world, n)
    problems: list[str] = []
    if comm is None:
        return problems
    for at, (dtype, shape) in enumerate(itertools.product(dtypes, ((), (4,), (2, 3), (0, 2)))):
        arrays = [
            testing.random_array(np.random.default_rng((seed, at, rank)), shape, dtype_of(dtype)) for rank in range(n)
        ]
        x, expected = tensor(arrays[comm.rank]), np.stack(arrays)
        stacked, listed, given = paddle.empty([n, *shape], dtype), [], [paddle.empty(shape, dtype) for _ in range(n)]
        what = f"all_gather of {dtype}, {n} ranks, shape {shape}"
        dist.stream.all_gather(stacked, x, group=comm, use_calc_stream=True)
        dist.all_gather(listed, x, group=comm, sync_op=False)
        task = dist.all_gather(given, x, group=comm, sync_op=False)
        dist.wait(listed[0], group=comm)
        assert task.is_completed()
        problems += compare(f"{what}, stacked", stacked, expected)
        for out in (listed, given):
            problems += compare(f"{what}, list", paddle.stack(out), expected)
        if shape:
            joined = paddle.empty([n * shape[0], *shape[1:]], dtype)
            dist.stream.all_gather(joined, x, group=comm)
            problems += compare(f"{what}, concatenated", joined, np.concatenate(arrays))
    return problems
