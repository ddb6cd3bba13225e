"""The examples of Paddle's documentation of alltoall_single, alltoall, all_gather, global_scatter and global_gather,
with the printed values, and the cases of Paddle's own tests of these calls."""

from __future__ import annotations

import itertools
from typing import Any

import frameworks
import numpy as np
import pytest
from rank_pool import Pool

paddle = pytest.importorskip("paddle")
import a2a.paddle as dist
from paddle_ranks import part

import a2a
from a2a import testing

pytestmark = pytest.mark.timeout(110)

# Both of the ranks print this.
TWICE = [[2, 4], [6, 8], [10, 12], [14, 16], [18, 20]]
SCATTERED = [[[1, 2], [3, 4], [1, 2], [5, 6], [3, 4]], [[7, 8], [5, 6], [7, 8], [9, 10], [9, 10]]]
GATHERED = [[[1, 2], [3, 4], [7, 8], [1, 2], [7, 8]], [[5, 6], [9, 10], [3, 4], [5, 6], [9, 10]]]


def example_alltoall_single(comm: a2a.Communicator) -> list[Any]:
    rank = comm.rank
    output = paddle.empty([2], dtype="int64")
    data = paddle.to_tensor([0, 1] if rank == 0 else [2, 3])
    task = dist.stream.alltoall_single(output, data, sync_op=False, group=comm)
    assert task is not None and not task.is_sync()
    assert task.wait() and task.is_completed()
    task.synchronize()
    printed = [output.numpy().tolist()]

    size = dist.get_world_size(comm)
    output = paddle.empty([(rank + 1) * size, size], dtype="float32")
    data = paddle.full([3, 2], float(rank))
    out_split_sizes = [rank + 1 for i in range(size)]
    in_split_sizes = [i + 1 for i in range(size)]
    task = dist.stream.alltoall_single(output, data, out_split_sizes, in_split_sizes, sync_op=False, group=comm)
    assert task is not None
    task.wait()
    return [*printed, output.numpy().tolist()]


def example_plain_alltoall_single(comm: a2a.Communicator) -> list[Any]:
    rank, size = comm.rank, comm.size
    output = paddle.empty([2], dtype="int64")
    dist.alltoall_single(output, paddle.arange(2, dtype="int64") + rank * 2, group=comm)
    printed = [output.tolist()]
    sizes = [i + 1 for i in range(size)], [rank + 1 for i in range(size)]
    data = paddle.ones([sum(sizes[0]), size], dtype="float32") * rank
    output = paddle.empty([(rank + 1) * size, size], dtype="float32")
    task = dist.alltoall_single(output, data, *sizes, sync_op=False, group=comm)
    assert task is not None
    task.wait()
    return [*printed, output.tolist()]


def example_alltoall(comm: a2a.Communicator) -> list[Any]:
    first = comm.rank == 0
    out_tensor_list: list[Any] = []
    start = 1 if first else 13
    data = [paddle.arange(start + 6 * i, start + 6 * i + 6).reshape([2, 3]) for i in range(2)]
    task = dist.stream.alltoall(out_tensor_list, data, sync_op=False, group=comm)
    assert task is not None
    task.wait()
    printed = [[tensor.tolist() for tensor in out_tensor_list]]
    uneven = (
        [paddle.to_tensor([[1, 2, 3], [4, 5, 6]]), paddle.to_tensor([7])]
        if first
        else [paddle.to_tensor([[8, 9], [10, 11], [12, 13]]), paddle.to_tensor([[14, 15, 16, 17]])]
    )
    for shapes in (((2, 3), (3, 2)), ((1,), (1, 4)))[comm.rank], ():
        outputs = [paddle.empty(shape, dtype=uneven[0].dtype) for shape in shapes]
        dist.alltoall(outputs, uneven, group=comm)
        printed.append([tensor.tolist() for tensor in outputs])
    return printed


def example_all_gather(comm: a2a.Communicator) -> list[Any]:
    tensor_list: list[Any] = []
    data = paddle.to_tensor([[4, 5, 6], [4, 5, 6]] if comm.rank == 0 else [[1, 2, 3], [1, 2, 3]])
    task = dist.stream.all_gather(tensor_list, data, sync_op=False, group=comm)
    task.wait()
    return [tensor.tolist() for tensor in tensor_list]


def example_experts(comm: a2a.Communicator, name: str) -> list[Any]:
    local_input_buf = np.array([[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]], dtype=np.float32)
    local_count = np.array([2, 1, 1, 1] if comm.rank == 0 else [1, 1, 2, 1])
    local_input_buf = paddle.to_tensor(local_input_buf, dtype="float32", stop_gradient=False)
    local_count = paddle.to_tensor(local_count, dtype="int64")
    global_count = local_count.clone()
    a = getattr(dist.utils, name)(local_input_buf, local_count, global_count, group=comm)
    a.stop_gradient = False
    c = a * a
    c.backward()
    assert local_count.grad is None
    return [a.tolist(), local_input_buf.grad.tolist()]


def on_two(world: a2a.Communicator, example: Any, *args: Any) -> Any:
    comm = part(world, 2)
    return None if comm is None else example(comm, *args)


UNEVEN = [[[[1, 2, 3], [4, 5, 6]], [[8, 9], [10, 11], [12, 13]]], [[7], [[14, 15, 16, 17]]]]
EVEN = [
    [[[1, 2, 3], [4, 5, 6]], [[13, 14, 15], [16, 17, 18]]],
    [[[7, 8, 9], [10, 11, 12]], [[19, 20, 21], [22, 23, 24]]],
]
SINGLE = [[[0, 2], [[0, 0], [1, 1]]], [[1, 3], [[0, 0], [0, 0], [1, 1], [1, 1]]]]
PRINTED: list[tuple[Any, tuple[str, ...], list[Any]]] = [
    (example_alltoall_single, (), SINGLE),
    (example_plain_alltoall_single, (), SINGLE),
    (example_alltoall, (), [[EVEN[rank], UNEVEN[rank], UNEVEN[rank]] for rank in range(2)]),
    (example_all_gather, (), [[[[4, 5, 6]] * 2, [[1, 2, 3]] * 2]] * 2),
    (example_experts, ("global_scatter",), [[SCATTERED[rank], TWICE] for rank in range(2)]),
    (example_experts, ("global_gather",), [[GATHERED[rank], TWICE] for rank in range(2)]),
]


@pytest.mark.parametrize(("example", "args", "printed"), PRINTED)
def test_example(paddle_pool: Pool, example: Any, args: tuple[str, ...], printed: list[Any]) -> None:
    assert paddle_pool.run(on_two, example, *args)[:2] == printed


# ---- Paddle's own cases: two ranks, every dtype, every way to wait ---------------------------------------------------

WAYS = [
    {"sync_op": True, "use_calc_stream": True},
    {"sync_op": True, "use_calc_stream": False},
    {"sync_op": False, "use_calc_stream": False},
]
FAMILY_DTYPES = "float16 float32 float64 int32 int64 int8 uint8 bool bfloat16 complex64 complex128".split()
SHAPES: list[tuple[int, ...]] = [(10, 1000), (100, 1000)]


def family(comm: a2a.Communicator, form: str, dtypes: list[str]) -> int:
    """One call after another, each with data that both ranks derive from its number. Returns how many there were."""
    number = 0
    for number, (shape, dtype, way) in enumerate(itertools.product(SHAPES, dtypes, WAYS), 1):
        arrays = [numbers_of(dtype, shape, seed=2 * number + rank) for rank in range(comm.size)]
        given = frameworks.tensor("paddle", arrays[comm.rank])
        if form in ("all_gather tensor", "all_gather list"):
            expected = np.concatenate(arrays)
            out = paddle.empty(expected.shape, dtype) if form.endswith("tensor") else []
            dist.stream.all_gather(out, given, group=comm, **way).wait()
            found = out if form.endswith("tensor") else joined(out)
        else:
            expected = testing.alltoall(arrays)[comm.rank]
            if form == "alltoall list":
                halves: list[Any] = []
                parts = [frameworks.tensor("paddle", half) for half in np.split(arrays[comm.rank], comm.size)]
                dist.stream.alltoall(halves, parts, group=comm, **way).wait()
                found = joined(halves)
            else:
                found = paddle.empty(shape, dtype)
                call = dist.stream.alltoall if form == "alltoall tensor" else dist.stream.alltoall_single
                call(found, given, group=comm, **way).wait()
        assert testing.first_difference(found, expected) is None, (form, shape, dtype, way)
    return number


def joined(tensors: list[Any]) -> Any:
    return np.concatenate([testing.as_bytes(tensor) for tensor in tensors])


def numbers_of(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    import ml_dtypes

    return testing.random_array(np.random.default_rng(seed), shape, getattr(ml_dtypes, dtype, dtype))


@pytest.mark.parametrize(
    "form", ["alltoall_single", "alltoall tensor", "alltoall list", "all_gather tensor", "all_gather list"]
)
def test_family(paddle_pool: Pool, form: str) -> None:
    assert paddle_pool.run(on_two, family, form, FAMILY_DTYPES)[:2] == [len(FAMILY_DTYPES) * 6] * 2


def zero_dimensional(comm: a2a.Communicator) -> list[float]:
    """0-D tensors, in lists."""
    out: list[Any] = []
    dist.alltoall(out, [paddle.full([], 10.0 * comm.rank + peer) for peer in range(2)], group=comm)
    assert [tensor.shape for tensor in out] == [[], []]
    gathered: list[Any] = []
    dist.all_gather(gathered, paddle.full([], float(comm.rank)), group=comm)
    return [float(tensor) for tensor in (*out, *gathered)]


def test_zero_dimensional(paddle_pool: Pool) -> None:
    assert paddle_pool.run(on_two, zero_dimensional)[:2] == [[0.0, 10.0, 0.0, 1.0], [1.0, 11.0, 0.0, 1.0]]
