"""Ranks in different frameworks: rank 0 NumPy, 1 Torch, 2 Paddle, 3 JAX, as far as they are installed. JAX arrays
cannot be written, so rank 3 only sends from them; what it receives is allocated for it, or is NumPy's."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import frameworks
import numpy as np
import pytest
from exchange_ranks import GUARD, Recipe, dtype_of
from rank_pool import Pool

import a2a
from a2a import testing

pytestmark = pytest.mark.timeout(110)
RANKS = 4
DTYPES = frameworks.COMMON
NARROW = ("bfloat16", "float8_e4m3fn", "bool", "float32")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(RANKS) as pool:
        yield pool


def mine(rank: int) -> str:
    return frameworks.INSTALLED[rank % len(frameworks.INSTALLED)]


def writable(framework: str) -> str:
    return "numpy" if framework == "jax" else framework


def recipe_of(dtype: str) -> Recipe:
    return Recipe(seed=len(dtype), dtype=dtype, trailing=(3,), max_rows=40, experts=3)


def poisoned(framework: str, recipe: Recipe, rows: int) -> Any:
    return frameworks.tensor(writable(framework), recipe.poisoned(rows))


def raw(tensor: Any) -> bytes:
    return testing.as_bytes(tensor).tobytes()


def require_same(results: list[bytes], expected: list[Any]) -> None:
    for rank, (left, right) in enumerate(zip(results, expected, strict=True)):
        bytes_ = np.ascontiguousarray(right).tobytes()
        if left != bytes_:
            pytest.fail(f"rank {rank}, {mine(rank)}: {testing.first_difference(left, bytes_)}")


def run_alltoallv(comm: a2a.Communicator, recipe: Recipe, how: str) -> bytes:
    case, rank = recipe.case(comm.size), comm.rank
    send = frameworks.tensor(mine(rank), recipe.array(rank, case.send_rows[rank]))
    recv = poisoned(mine(rank), recipe, case.recv_rows[rank] + 2 * GUARD)
    counts = (send, case.send_counts[rank], recv, case.recv_counts[rank])
    displs = (case.send_displs[rank], case.recv_displs[rank] + GUARD)
    if how == "call":
        comm.alltoallv(*counts, *displs)
    else:
        comm.alltoallv(*counts, *displs, async_op=True).wait()
    return raw(recv)


@pytest.mark.parametrize("how", ["call", "async"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_alltoallv(pool: Pool, dtype: str, how: str) -> None:
    recipe = recipe_of(dtype)
    case = recipe.case(RANKS)
    sends = [recipe.array(rank, rows) for rank, rows in enumerate(case.send_rows)]
    recvs = [recipe.poisoned(rows + 2 * GUARD) for rows in case.recv_rows]
    expected = testing.alltoallv(sends, case.send_counts, recvs, case.send_displs, case.recv_displs + GUARD)
    require_same(pool.run(run_alltoallv, recipe, how), expected)


def run_exchange(comm: a2a.Communicator, recipe: Recipe) -> tuple[str, str, list[int], bytes]:
    counts = recipe.case(comm.size).send_counts[comm.rank]
    recv, recv_counts = comm.exchange(frameworks.tensor(mine(comm.rank), recipe.array(comm.rank, counts.sum())), counts)
    return frameworks.name_of(recv), str(recv.dtype).rpartition(".")[2], recv_counts.tolist(), raw(recv)


@pytest.mark.parametrize("dtype", DTYPES)
def test_exchange_returns_the_framework_of_the_sender(pool: Pool, dtype: str) -> None:
    recipe = recipe_of(dtype)
    case = recipe.case(RANKS)
    sends = [recipe.array(rank, counts.sum()) for rank, counts in enumerate(case.send_counts)]
    recvs = [recipe.poisoned(counts.sum()) for counts in case.recv_counts]
    results = pool.run(run_exchange, recipe)
    assert [result[0] for result in results] == [mine(rank) for rank in range(RANKS)]
    assert {result[1] for result in results} == {dtype}
    assert [result[2] for result in results] == case.recv_counts.tolist()
    require_same([result[3] for result in results], testing.alltoallv(sends, case.send_counts, recvs))


def run_experts(comm: a2a.Communicator, recipe: Recipe, how: str) -> list[tuple[str, bytes]]:
    counts, rank = recipe.local_counts(comm.size), comm.rank
    local, global_ = counts[rank], testing.global_counts(counts)[rank]
    tensor = frameworks.tensor(mine(rank), recipe.array(rank, local.sum()))
    results = []
    for call, rows in ((comm.global_scatter, global_.sum()), (comm.global_gather, local.sum())):
        if how == "allocated":
            tensor = call(tensor, local, global_)
        elif how == "allocated later":
            work = call(tensor, local, global_, async_op=True)
            work.wait()
            tensor = work.result
        else:
            # The output of another framework than the input.
            out = poisoned(mine(rank + 1), recipe, rows)
            assert call(tensor, local, global_, out=out) is out
            tensor = out
        results.append((frameworks.name_of(tensor), raw(tensor)))
    return results


@pytest.mark.parametrize("how", ["allocated", "allocated later", "given"])
@pytest.mark.parametrize("dtype", NARROW)
def test_global_scatter_and_gather(pool: Pool, dtype: str, how: str) -> None:
    recipe = recipe_of(dtype)
    counts = recipe.local_counts(RANKS)
    xs = [recipe.array(rank, row.sum()) for rank, row in enumerate(counts)]
    scattered = testing.global_scatter(xs, counts)
    results = pool.run(run_experts, recipe, how)
    for step, expected in enumerate((scattered, xs)):
        require_same([result[step][1] for result in results], expected)
    if how != "given":
        assert [result[1][0] for result in results] == [mine(rank) for rank in range(RANKS)]


def run_other_operations(comm: a2a.Communicator, recipe: Recipe) -> list[bytes]:
    rank, rows = comm.rank, 2 * comm.size
    array = recipe.array(rank, rows)
    send = frameworks.tensor(mine(rank), array)
    equal, gathered = poisoned(mine(rank), recipe, rows), poisoned(mine(rank), recipe, rows * comm.size)
    comm.alltoall(send, equal)
    comm.allgather(send, gathered)
    # Every entry of the lists in another framework.
    parts = [frameworks.tensor(mine(rank + peer), part) for peer, part in enumerate(np.split(array, comm.size))]
    recvs = [poisoned(mine(rank + peer + 1), recipe, 2) for peer in range(comm.size)]
    comm.alltoall_list(parts, recvs)
    return [raw(equal), raw(gathered), b"".join(raw(recv) for recv in recvs)]


@pytest.mark.parametrize("dtype", NARROW)
def test_alltoall_allgather_and_lists(pool: Pool, dtype: str) -> None:
    recipe = recipe_of(dtype)
    sends = [recipe.array(rank, 2 * RANKS) for rank in range(RANKS)]
    results = pool.run(run_other_operations, recipe)
    for step, expected in enumerate((testing.alltoall(sends), testing.allgather(sends), testing.alltoall(sends))):
        require_same([result[step] for result in results], expected)


def run_from_shared_memory(comm: a2a.Communicator, recipe: Recipe, like: str, rows: int) -> list[bytes]:
    """There into tensors of empty(), and back from them."""
    array = recipe.array(comm.rank, rows * comm.size)
    middle = comm.empty(array.shape, recipe.dtype, like=like)
    assert frameworks.name_of(middle) == like and tuple(middle.shape) == array.shape
    comm.alltoall(array, middle)
    back = recipe.poisoned(rows * comm.size)
    comm.alltoall(middle, back)
    return [raw(middle), back.tobytes()]


@pytest.mark.parametrize("rows", [0, 1, 20_000])
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("like", [name for name in frameworks.INSTALLED if name != "jax"])
def test_shared_memory_as_output_and_as_source(pool: Pool, like: str, dtype: str, rows: int) -> None:
    recipe = recipe_of(dtype)
    sends = [recipe.array(rank, rows * RANKS) for rank in range(RANKS)]
    results = pool.run(run_from_shared_memory, recipe, like, rows)
    require_same([result[0] for result in results], testing.alltoall(sends))
    require_same([result[1] for result in results], sends)


def run_dropped(comm: a2a.Communicator, recipe: Recipe, rows: int) -> bytes:
    """Nobody but the communicator holds what it sends."""
    recv = poisoned(mine(comm.rank), recipe, rows * comm.size)
    send = frameworks.tensor(mine(comm.rank), recipe.array(comm.rank, rows * comm.size))
    work = comm.alltoall(send, recv, async_op=True)
    del send
    gc.collect()
    other = [frameworks.tensor(mine(comm.rank), recipe.poisoned(rows * comm.size)) for _ in range(3)]
    work.wait()
    del other
    return raw(recv)


@pytest.mark.parametrize("rows", [2, 1000, 50_000])
def test_dropped_sources(pool: Pool, rows: int) -> None:
    recipe = recipe_of("float32")
    sends = [recipe.array(rank, rows * RANKS) for rank in range(RANKS)]
    require_same(pool.run(run_dropped, recipe, rows), testing.alltoall(sends))


def run_plan(comm: a2a.Communicator, recipe: Recipe) -> list[bytes]:
    """A plan made with NumPy arrays serves tensors of every framework."""
    case, rank = recipe.case(comm.size), comm.rank
    array = recipe.array(rank, case.send_rows[rank])
    outputs = [recipe.poisoned(case.recv_rows[rank]) for _ in frameworks.INSTALLED]
    plan = comm.plan_alltoallv(
        array,
        case.send_counts[rank],
        outputs[0],
        case.recv_counts[rank],
        case.send_displs[rank],
        case.recv_displs[rank],
    )
    recvs = []
    for framework, output in zip(frameworks.INSTALLED, outputs, strict=True):
        recvs.append(frameworks.tensor(writable(framework), output))
        plan.run(frameworks.tensor(framework, array), recvs[-1])
    return [raw(recv) for recv in recvs]


def test_plans_serve_any_framework(pool: Pool) -> None:
    recipe = recipe_of("bfloat16")
    case = recipe.case(RANKS)
    sends = [recipe.array(rank, rows) for rank, rows in enumerate(case.send_rows)]
    recvs = [recipe.poisoned(rows) for rows in case.recv_rows]
    expected = testing.alltoallv(sends, case.send_counts, recvs, case.send_displs, case.recv_displs)
    results = pool.run(run_plan, recipe)
    for run in range(len(frameworks.INSTALLED)):
        require_same([result[run] for result in results], expected)


def run_nothing(comm: a2a.Communicator) -> list[Any]:
    """Tensors without rows, and rows without bytes."""
    zeros = [0] * comm.size
    send = frameworks.tensor(mine(comm.rank), np.empty((0, 3), dtype_of("bfloat16")))
    recv, counts = comm.exchange(send, zeros)
    scattered = comm.global_scatter(send, zeros, zeros)
    narrow = frameworks.tensor(mine(comm.rank), np.empty((comm.size, 0), np.float32))
    wide, wide_counts = comm.exchange(narrow, [1] * comm.size)
    return [frameworks.name_of(recv), recv.shape[1], scattered.shape[0], counts.sum(), *wide.shape, wide_counts.sum()]


def test_nothing_to_send(pool: Pool) -> None:
    assert pool.run(run_nothing) == [[mine(rank), 3, 0, 0, RANKS, 0, RANKS] for rank in range(RANKS)]


def on_another_device_than_jax_prefers(comm: a2a.Communicator) -> None:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    import jax

    _, other = jax.devices()
    bound = jax.device_put(np.arange(comm.size, dtype=np.float32), other)
    with jax.default_device(other):
        loose = jax.numpy.arange(comm.size, dtype=np.float32)
    for x in (bound, loose):
        for got in (comm.exchange(x, [1] * comm.size)[0], comm.global_scatter(x, [1] * comm.size, [1] * comm.size)):
            assert got.devices() == {other} and got.committed == x.committed
            assert got.tolist() == [comm.rank] * comm.size


def test_a_jax_array_arrives_on_the_device_of_the_one_that_is_sent(run_ranks: Callable[..., list[Any]]) -> None:
    pytest.importorskip("jax")
    run_ranks(2, on_another_device_than_jax_prefers)
