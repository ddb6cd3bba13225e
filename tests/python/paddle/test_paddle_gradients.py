"""Gradients of a2a.paddle as Paddle's users expect them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rank_pool import Pool

paddle = pytest.importorskip("paddle")
import a2a.paddle as dist
from paddle_ranks import part

import a2a

pytestmark = pytest.mark.timeout(110)


def on(world: a2a.Communicator, n: int, fn: Any) -> Any:
    comm = part(world, n)
    return None if comm is None else fn(comm)


def values(comm: a2a.Communicator, gradient: bool = True) -> Any:
    x = paddle.arange(2.0 * comm.size).reshape([-1, 2]) + 10.0 * comm.rank
    x.stop_gradient = not gradient
    return x


def stop_gradient(comm: a2a.Communicator) -> None:
    """Results want a gradient exactly when their input does, and gradients are being recorded."""
    counts = paddle.ones([comm.size], "int64")
    for gradient in (True, False):
        x, out = values(comm, gradient), paddle.empty([comm.size, 2])
        dist.alltoall_single(out, x, group=comm)
        assert out.stop_gradient is not gradient and out.is_leaf is not gradient
        with paddle.no_grad():
            out, listed = paddle.empty([comm.size, 2]), []
            dist.alltoall_single(out, x, group=comm)
            dist.alltoall(listed, [row.contiguous() for row in x], group=comm)
            scattered = dist.utils.global_scatter(x, counts, counts, group=comm)
        assert out.stop_gradient and scattered.stop_gradient and all(tensor.stop_gradient for tensor in listed)
        assert dist.utils.global_gather(x, counts, counts, group=comm).stop_gradient is not gradient
    gathered: list[Any] = []
    dist.all_gather(gathered, values(comm), group=comm)
    assert all(tensor.stop_gradient for tensor in gathered)


def one_of_a_list(comm: a2a.Communicator) -> list[Any]:
    """Only some tensors of a list want a gradient, and only some results are used."""
    given = [paddle.full([peer + 1], 1.0) for peer in range(comm.size)]
    given[0].stop_gradient = False
    out: list[Any] = []
    dist.alltoall(out, given, group=comm)
    (out[-1] * 3.0).sum().backward()
    return [None if tensor.grad is None else tensor.grad.tolist() for tensor in given]


def strided_gradient(comm: a2a.Communicator) -> list[Any]:
    """A gradient that comes transposed."""
    x, out = values(comm), paddle.empty([comm.size, 2])
    dist.alltoall_single(out, x, group=comm)
    factors = paddle.arange(2.0 * comm.size).reshape([2, -1]) + 100.0 * comm.rank
    (out.T * factors).sum().backward()
    return x.grad.tolist()


def output_in_a_loop(comm: a2a.Communicator) -> list[float]:
    """One output tensor for all steps of a training loop, with gradients that add up in a parameter."""
    weight, out = paddle.ones([2]), paddle.empty([comm.size, 2])
    weight.stop_gradient = False
    for step in range(3):
        dist.alltoall_single(out, values(comm, False) * weight * (step + 1.0), group=comm)
        out.sum().backward()
    return weight.grad.tolist()


def overwritten(comm: a2a.Communicator) -> str:
    """A tensor that a backward pass still needs is received into."""
    weight, out = paddle.ones([2]), paddle.ones([2 * comm.size])
    weight.stop_gradient = False
    y = out * weight.sum()
    dist.alltoall_single(out, paddle.zeros([2 * comm.size]), group=comm)
    try:
        y.sum().backward()
    except RuntimeError as error:
        return str(error)
    return "nothing raised"


def other_rows(comm: a2a.Communicator) -> list[Any]:
    """The two tensors have rows of different shapes, and the same elements."""
    x, out = values(comm), paddle.empty([2 * comm.size])
    dist.alltoall_single(out, x, group=comm)
    (out * paddle.arange(2.0 * comm.size)).sum().backward()
    nothing = paddle.empty([0])
    dist.alltoall_single(nothing, paddle.empty([0, 3, 2]), group=comm)
    return [out.tolist(), x.grad.tolist()]


def without_rows(comm: a2a.Communicator) -> list[Any]:
    """Rank 0 sends everything to itself; the others have nothing, and still take part in the backward pass."""
    first = comm.rank == 0
    local = paddle.to_tensor([3, *[0] * (2 * comm.size - 1)] if first else [0] * (2 * comm.size))
    x = paddle.ones([3 if first else 0, 2])
    x.stop_gradient = False
    y = dist.utils.global_scatter(x, local, local, group=comm)
    back = dist.utils.global_gather(y * 2.0, local, local, group=comm)
    back.sum().backward()
    return x.grad.tolist()


def through_both(comm: a2a.Communicator) -> bool:
    """There and back again is the identity, and so is its gradient."""
    rng = np.random.default_rng(5)
    matrix = rng.integers(0, 4, (comm.size, comm.size * 2))
    local = paddle.to_tensor(matrix[comm.rank])
    global_ = paddle.empty_like(local)
    dist.alltoall_single(global_, local, group=comm)
    x = paddle.randn([int(local.sum()), 5])
    x.stop_gradient = False
    y = dist.utils.global_scatter(x, local, global_, group=comm)
    back = dist.utils.global_gather(y, local, global_, group=comm)
    weights = paddle.randn(back.shape)
    (back * weights).sum().backward()
    return bool((back == x).all()) and bool((x.grad == weights).all())


def test_stop_gradient(paddle_pool: Pool) -> None:
    paddle_pool.run(on, 3, stop_gradient)


def test_one_of_a_list(paddle_pool: Pool) -> None:
    # Only what went to rank 0 has a gradient; of the results only those from rank 2 count, so only rank 2 gets 3.
    expected = [[[0.0], None, None], [[0.0], None, None], [[3.0], None, None]]
    assert paddle_pool.run(on, 3, one_of_a_list)[:3] == expected


def test_strided_gradient(paddle_pool: Pool) -> None:
    expected = [[[100.0 * peer + rank, 100.0 * peer + rank + 2] for peer in range(2)] for rank in range(2)]
    assert paddle_pool.run(on, 2, strided_gradient)[:2] == expected


def test_output_in_a_loop(paddle_pool: Pool) -> None:
    assert paddle_pool.run(on, 2, output_in_a_loop)[:2] == [[12.0, 24.0], [132.0, 144.0]]


def test_overwritten(paddle_pool: Pool) -> None:
    assert "inplace" in paddle_pool.run(on, 2, overwritten)[0]


def test_rows_of_different_shapes(paddle_pool: Pool) -> None:
    expected = [
        [[0.0, 1.0, 10.0, 11.0], [[0.0, 1.0], [0.0, 1.0]]],
        [[2.0, 3.0, 12.0, 13.0], [[2.0, 3.0], [2.0, 3.0]]],
    ]
    assert paddle_pool.run(on, 2, other_rows)[:2] == expected


def test_ranks_without_rows(paddle_pool: Pool) -> None:
    assert paddle_pool.run(on, 3, without_rows)[:3] == [[[2.0, 2.0]] * 3, [], []]


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_there_and_back(paddle_pool: Pool, ranks: int) -> None:
    assert paddle_pool.run(on, ranks, through_both)[:ranks] == [True] * ranks


def second_order(world: a2a.Communicator) -> Any:
    """Twice through global_scatter and global_gather: the derivative of (sum of y ** 3)' is 6 x."""

    def check(comm: a2a.Communicator) -> None:
        counts = paddle.ones([comm.size], "int64")
        for exchange in (dist.utils.global_scatter, dist.utils.global_gather):
            x = values(comm)
            y = exchange(x, counts, counts, group=comm)
            (first,) = paddle.grad((y**3).sum(), x, create_graph=True)
            (x.sum() + first.sum()).backward()
            assert np.array_equal(x.grad.numpy(), 1 + 6 * x.numpy())

    return on(world, 2, check)


def test_second_order(paddle_pool: Pool) -> None:
    paddle_pool.run(second_order)


def shared_memory(world: a2a.Communicator) -> Any:
    def check(comm: a2a.Communicator) -> None:
        whole = paddle.zeros([6])
        with pytest.raises(a2a.InvalidArgumentError, match=r"in_tensor and out_tensor share memory"):
            dist.stream.alltoall_single(whole[2:], whole[:4], group=comm)
        part_ = paddle.zeros([2])
        with pytest.raises(a2a.InvalidArgumentError, match=r"out_tensor_list\[\d\] and out_tensor_list\[\d\] share"):
            dist.alltoall([part_, part_], [paddle.ones([2]), paddle.ones([2])], group=comm)

    return on(world, 2, check)


def test_shared_memory(paddle_pool: Pool) -> None:
    paddle_pool.run(shared_memory)
