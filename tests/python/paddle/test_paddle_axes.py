"""alltoall_axis of a2a.paddle, and tensors of any strides in its other calls, against the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rank_pool import Pool
from sample import with_full

paddle = pytest.importorskip("paddle")
import a2a.paddle as dist
from paddle_ranks import part, tensor

import a2a
from a2a import testing

pytestmark = pytest.mark.timeout(110)


def strided(array: Any) -> Any:
    """A transposed view with gaps."""
    order = list(range(array.ndim))[::-1]
    wide = np.full([2 * entries for entries in array.T.shape], 99).astype(array.dtype)
    view = tensor(wide)[tuple(slice(1, None, 2) for _ in order)].transpose(order)
    if 0 in array.shape:
        return paddle.zeros(array.shape, str(array.dtype))
    view.copy_(tensor(array), True)
    assert array.ndim < 2 or not view.is_contiguous()
    return view


def inputs(size: int, seed: int) -> Any:
    """(inputs of all ranks, split axis, concat axis, split sizes, concat sizes), the sizes the same on all ranks."""
    rng = np.random.default_rng(seed)
    split, concat = ((0, 1), (1, 0), (2, 1), (1, 2), (0, 2))[seed % 5]
    to, from_ = ([int(one) for one in rng.integers(0, 4, size)] for _ in range(2))
    shape = [int(one) for one in rng.integers(1, 4, 3)]
    shape[split] = sum(to)
    given = []
    for rank in range(size):
        shape[concat] = from_[rank]
        given.append(rng.integers(-99, 99, shape).astype("float32"))
    return given, split, concat, to, from_


def values(world: a2a.Communicator, size: int) -> None:
    comm = part(world, size)
    if comm is None:
        return
    for seed in range(15):
        given, split, concat, to, from_ = inputs(size, seed)
        ends = np.cumsum(to)[:-1]
        wanted = np.concatenate([np.split(one, ends, split)[comm.rank] for one in given], concat)
        got = dist.alltoall_axis(strided(given[comm.rank]), split - 3, concat, comm, to, from_)
        assert got.shape == list(wanted.shape) and (got.numpy() == wanted).all(), (seed, size)
    equal = [np.arange(2.0 * size * 3).reshape(2 * size, 3) + 100 * rank for rank in range(size)]
    for split, concat in ((0, 1), (0, 0)):
        got = dist.alltoall_axis(strided(equal[comm.rank]), split, concat, comm)
        assert (got.numpy() == testing.alltoall(equal, split, concat)[comm.rank]).all()


@pytest.mark.parametrize("size", [3, *with_full([1, 2, 4])])
def test_values(paddle_pool: Pool, size: int) -> None:
    paddle_pool.run(values, size)


def derivatives(world: a2a.Communicator) -> list[Any]:
    """Of the first and of the second order, in numbers whose derivatives are known."""
    comm = part(world, 3)
    if comm is None:
        return []
    to, from_ = [2, 0, 1], [1, 2, 3]
    x = tensor(np.arange(3.0 * from_[comm.rank]).reshape(3, -1) + comm.rank)
    x.stop_gradient = False
    y = dist.alltoall_axis((x * x).t().t(), 0, 1, comm, to, from_)
    assert not y.stop_gradient
    (first,) = paddle.grad((y * y).t().sum(), x, create_graph=True)  # 4 x**3
    assert np.allclose(first.numpy(), 4 * x.numpy() ** 3)
    first.sum().backward()
    assert np.allclose(x.grad.numpy(), 12 * x.numpy() ** 2)
    still = x.detach()
    assert dist.alltoall_axis(still, 0, 1, comm, to, from_).stop_gradient
    with paddle.no_grad():
        assert dist.alltoall_axis(x, 0, 1, comm, to, from_).stop_gradient
    return []


def test_derivatives(paddle_pool: Pool) -> None:
    paddle_pool.run(derivatives)


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no tensor": (dict(in_tensor=[1.0]), "ArgumentTypeError", "in_tensor is list, not paddle.Tensor"),
    "axis": (dict(split_axis=2), "InvalidArgumentError", "split_axis is 2, but in_tensor [4, 6] has 2 axes"),
    "no axis": (dict(concat_axis=1.0), "ArgumentTypeError", "concat_axis is 1.0; pass the number of an axis"),
    "indivisible": (dict(split_axis=-2, in_tensor=3), "InvalidArgumentError", "[3, 6] has 3 entries along axis 0, wh"),
    "sum": (dict(split_sizes=[1, 2]), "InvalidArgumentError", "split_sizes [1, 2] sums to 3, but in_tensor [4, 6]"),
    "length": (dict(concat_sizes=[6]), "InvalidArgumentError", "concat_sizes is [6]; pass a size"),
    "words": (dict(split_sizes="24"), "ArgumentTypeError", "split_sizes is '24'; pass a list"),
    "own part": (dict(concat_sizes=[5, 6]), "InvalidArgumentError", "concat_sizes[0] is 5, but of in_tensor [4, 6]"),
}


def refused(world: a2a.Communicator, name: str) -> tuple[str, str]:
    comm = part(world, 2)
    if comm is None:
        return "", ""
    given: dict[str, Any] = dict(in_tensor=paddle.ones([4, 6]), split_axis=0, concat_axis=1, group=comm)
    wrong = given | REFUSED[name][0]
    if isinstance(wrong["in_tensor"], int):
        wrong["in_tensor"] = paddle.ones([wrong["in_tensor"], 6])
    with pytest.raises(a2a.Error) as caught:
        dist.alltoall_axis(**(wrong if comm.rank == 0 else given))
    assert dist.alltoall_axis(**given).shape == [2, 12]
    return type(caught.value).__name__, str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(paddle_pool: Pool, name: str) -> None:
    _, kind, words = REFUSED[name]
    (raised, text), (peer, told) = paddle_pool.run(refused, name)[:2]
    assert raised == kind and words in text
    assert peer == "MismatchError" and words[:20] in told


# ---- the other calls -------------------------------------------------------------------------------------------------


def any_strides(world: a2a.Communicator) -> None:
    comm = part(world, 3)
    if comm is None:
        return
    rank, size = comm.rank, comm.size
    arrays = [np.arange(24.0, dtype="float32").reshape(6, 4) * (peer + 1) for peer in range(size)]
    parts = [np.split(array, size) for array in arrays]
    mine, total = arrays[rank], testing.fold(arrays)

    def empty(shape: tuple[int, ...]) -> Any:
        return strided(np.zeros(shape, "float32"))

    def same(got: Any, wanted: Any, name: str) -> None:
        assert (got.numpy() == wanted).all(), name

    out = empty((6, 4))
    dist.alltoall_single(out, strided(mine), group=comm)
    same(out, testing.alltoall(arrays)[rank], "alltoall_single")
    outs = [empty((2, 4)) for _ in range(size)]
    dist.alltoall(outs, [strided(one) for one in parts[rank]], group=comm)
    same(paddle.concat(outs), testing.alltoall(arrays)[rank], "alltoall")
    outs = [empty((6, 4)) for _ in range(size)]
    dist.all_gather(outs, strided(mine), group=comm)
    same(paddle.concat(outs), np.concatenate(arrays), "all_gather")
    reduced = strided(mine)
    dist.all_reduce(reduced, group=comm)
    same(reduced, total, "all_reduce")
    reduced = strided(mine)
    dist.reduce(reduced, 1, group=comm)
    same(reduced, total if rank == 1 else mine, "reduce")
    out = empty((2, 4))
    dist.stream.reduce_scatter(out, strided(mine), group=comm)
    same(out, np.split(total, size)[rank], "reduce_scatter")
    out = empty((2, 4))
    dist.reduce_scatter(out, [strided(one) for one in parts[rank]], group=comm)
    same(out, np.split(total, size)[rank], "reduce_scatter of a list")
    spread = strided(mine)
    dist.broadcast(spread, 1, group=comm)
    same(spread, arrays[1], "broadcast")
    out = empty((2, 4))
    dist.stream.scatter(out, strided(mine) if rank == 1 else None, 1, group=comm)
    same(out, parts[1][rank], "scatter")
    out = empty((2, 4))
    dist.scatter(out, [strided(one) for one in parts[rank]] if rank == 1 else None, 1, group=comm)
    same(out, parts[1][rank], "scatter of a list")
    outs = [empty((6, 4)) for _ in range(size)] if rank == 1 else None
    dist.gather(strided(mine), outs, 1, group=comm)
    if outs is not None:
        same(paddle.concat(outs), np.concatenate(arrays), "gather")
    out = empty((6, 4))
    task = dist.isend(strided(mine), (rank + 1) % size, group=comm)
    dist.recv(out, (rank - 1) % size, group=comm)
    task.wait()
    same(out, arrays[rank - 1], "recv")


def test_tensors_of_any_strides(paddle_pool: Pool) -> None:
    paddle_pool.run(any_strides)
