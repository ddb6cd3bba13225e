"""Ranks of several frameworks in one exchange, of which the Paddle ranks use a2a.paddle: bit for bit the same."""

from __future__ import annotations

from typing import Any

import frameworks
import numpy as np
import pytest
from rank_pool import Pool

paddle = pytest.importorskip("paddle")
import a2a.paddle as dist
from exchange_ranks import Recipe
from paddle_ranks import part

import a2a
from a2a import testing

pytestmark = pytest.mark.timeout(110)
RANKS = 4
FRAMEWORKS = ["paddle", *(name for name in ("torch", "numpy", "jax") if name in frameworks.INSTALLED)]


def framework_of(rank: int) -> str:
    return FRAMEWORKS[rank % len(FRAMEWORKS)]


def global_calls(comm: a2a.Communicator) -> tuple[Any, Any]:
    if framework_of(comm.rank) != "paddle":
        return comm.global_scatter, comm.global_gather
    return (
        lambda x, *counts: dist.utils.global_scatter(x, *(paddle.to_tensor(count) for count in counts), group=comm),
        lambda x, *counts: dist.utils.global_gather(x, *(paddle.to_tensor(count) for count in counts), group=comm),
    )


def run_experts(world: a2a.Communicator, recipe: Recipe) -> list[bytes]:
    comm = part(world, RANKS)
    if comm is None:
        return []
    local = recipe.local_counts(RANKS)
    counts = local[comm.rank], testing.global_counts(local)[comm.rank]
    scatter, gather = global_calls(comm)
    x = frameworks.tensor(framework_of(comm.rank), recipe.array(comm.rank, counts[0].sum()))
    y = scatter(x, *counts)
    assert frameworks.name_of(y) == frameworks.name_of(x)
    return [testing.as_bytes(tensor).tobytes() for tensor in (y, gather(y, *counts))]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int8", "float8_e4m3fn"])
def test_experts(paddle_pool: Pool, dtype: str) -> None:
    recipe = Recipe(seed=len(dtype), dtype=dtype, trailing=(5,), max_rows=40, empty=0.3, experts=3)
    local = recipe.local_counts(RANKS)
    xs = [recipe.array(rank, row.sum()) for rank, row in enumerate(local)]
    found = paddle_pool.run(run_experts, recipe)[:RANKS]
    for rank, (x, y) in enumerate(zip(xs, testing.global_scatter(xs, local), strict=True)):
        assert [bytes_ for bytes_ in found[rank]] == [np.ascontiguousarray(array).tobytes() for array in (y, x)]


def run_others(world: a2a.Communicator) -> list[Any]:
    """alltoall_single meets alltoallv, lists meet alltoall_list, all_gather meets allgather."""
    comm = part(world, 2)
    if comm is None:
        return []
    if comm.rank == 0:
        out, parts, gathered = paddle.empty([3], "int64"), [paddle.empty([1]), paddle.empty([2])], []
        dist.alltoall_single(out, paddle.arange(4), [1, 3], [1, 2], group=comm)
        dist.alltoall(parts, [paddle.zeros([1]), paddle.full([3], 1.0)], group=comm)
        dist.all_gather(gathered, paddle.zeros([2]), group=comm)
        dist.barrier(comm)
        return [out.tolist(), [tensor.tolist() for tensor in parts], [tensor.tolist() for tensor in gathered]]
    received, both = np.empty(4, np.int64), np.empty((2, 2), np.float32)
    comm.alltoallv(np.arange(10, 13), [2, 1], received, [3, 1])
    recvs = [np.empty(3, np.float32), np.empty(1, np.float32)]
    comm.alltoall_list([np.full(2, 2, np.float32), np.full(1, 3, np.float32)], recvs)
    comm.allgather(np.ones(2, np.float32), both)
    comm.barrier()
    return [received.tolist(), [array.tolist() for array in recvs], both.tolist()]


def test_other_calls(paddle_pool: Pool) -> None:
    gathered = [[0.0, 0.0], [1.0, 1.0]]
    assert paddle_pool.run(run_others)[:2] == [
        [[0, 10, 11], [[0.0], [2.0, 2.0]], gathered],
        [[1, 2, 3, 12], [[1.0, 1.0, 1.0], [3.0]], gathered],
    ]
