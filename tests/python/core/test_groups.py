"""Communicators made from communicators, many of them side by side, and what is left when they are closed."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_ranks import Recipe
from rank_pool import OPERATION_SECONDS, Pool, reconnect

import a2a
from a2a import testing

pytestmark = pytest.mark.timeout(110)


@pytest.fixture(scope="module", params=[(2, False), (5, False), (5, True)], ids=["2", "5", "5-threads"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool(*request.param) as pool:
        yield pool


def members_of(group: a2a.Communicator, rank_in_parent: int) -> list[int]:
    """The ranks of a group as its parent numbers them, learned by an exchange in the group."""
    recv = np.full(group.size, -1)
    group.allgather(np.array([rank_in_parent]), recv)
    return recv.tolist()


def require_working(comm: a2a.Communicator, seed: int = 0, dtype: str = "int16") -> None:
    recipe = Recipe(seed, dtype, (9,), max_rows=40)
    case, rank = recipe.case(comm.size), comm.rank
    recv = recipe.poisoned(case.recv_rows[rank])
    sends = [recipe.array(peer, rows) for peer, rows in enumerate(case.send_rows)]
    displs = (case.send_displs[rank], case.recv_displs[rank])
    comm.alltoallv(sends[rank], case.send_counts[rank], recv, case.recv_counts[rank], *displs)
    recvs = [recipe.poisoned(rows) for rows in case.recv_rows]
    expected = testing.alltoallv(sends, case.send_counts, recvs, case.send_displs, case.recv_displs)
    assert testing.first_difference(recv, expected[rank]) is None


def run_split(comm: a2a.Communicator, seed: int) -> None:
    rng = np.random.default_rng(seed)
    colors, keys = rng.integers(-1, 3, comm.size).tolist(), rng.integers(-2, 3, comm.size).tolist()
    color = colors[comm.rank]
    group = comm.split(color, keys[comm.rank])
    if color < 0:
        assert group is None
        return
    expected = sorted((key, rank) for rank, key in enumerate(keys) if colors[rank] == color)
    assert group is not None and group.timeout == comm.timeout
    with group:
        assert members_of(group, comm.rank) == [rank for _, rank in expected]
        assert expected[group.rank][1] == comm.rank and group.size == len(expected)
        require_working(group)


@pytest.mark.parametrize("seed", range(6))
def test_split(pool: Pool, seed: int) -> None:
    pool.run(run_split, seed)


def run_group(comm: a2a.Communicator, ranks: list[int]) -> None:
    group = comm.group(ranks)
    if comm.rank not in ranks:
        assert group is None
        comm.barrier()
        return
    assert group is not None
    with group:
        # The others do not take part, they wait for us.
        assert members_of(group, comm.rank) == ranks and ranks[group.rank] == comm.rank
        require_working(group)
    comm.barrier()


def test_groups_with_and_without_everybody(pool: Pool) -> None:
    everybody = list(range(pool.n))
    for ranks in ([0], [pool.n - 1], everybody, everybody[::-1], everybody[1:], everybody[::2][::-1], []):
        pool.run(run_group, ranks)


def run_wrong_group(comm: a2a.Communicator, wrong: str) -> str:
    """Rank 1 asks for another group than the others."""
    ranks = [0, 1] if comm.rank != 1 else {"twice": [0, 0], "nobody": [0, comm.size], "other": [1, 0]}[wrong]
    text = ""
    try:
        comm.group(ranks)
    except a2a.Error as error:
        text = f"{type(error).__name__}: {error}"
    require_working(comm)
    return text


@pytest.mark.parametrize("wrong", ["twice", "nobody", "other"])
def test_ranks_that_want_different_groups(pool: Pool, wrong: str) -> None:
    for rank, text in enumerate(pool.run(run_wrong_group, wrong)):
        kind = "InvalidArgumentError" if rank == 1 and wrong != "other" else "MismatchError"
        assert text.startswith(kind) and "rank 1" in text, text


def run_nested(comm: a2a.Communicator) -> None:
    """Halves of halves, all in use at once, closed from the outermost to the innermost."""
    nest = [comm]
    while nest[-1].size > 1:
        outer = nest[-1]
        inner = outer.split(outer.rank * 2 // outer.size, -outer.rank)
        assert inner is not None and inner.size < outer.size
        nest.append(inner)
    for group in nest + nest[::-1]:
        require_working(group, group.size)
    for at, group in enumerate(nest[1:], 1):
        group.close()
        for inner in nest[at + 1 :]:
            require_working(inner)


def test_nested_groups_outlive_their_parents(pool: Pool) -> None:
    pool.run(run_nested)


def run_closed(comm: a2a.Communicator) -> None:
    group = comm.split(0)
    assert group is not None and not group.closed
    plan = group.plan_alltoall(np.zeros(group.size), np.zeros(group.size))
    with group:
        work = group.alltoall(np.ones(group.size), np.empty(group.size), async_op=True)
    assert group.closed and work is not None and work.done()
    work.wait()
    group.close()
    calls = (
        group.barrier,
        lambda: group.split(0),
        lambda: group.exchange(np.zeros(group.size), [1] * group.size),
        lambda: plan.run(np.zeros(group.size), np.zeros(group.size)),
        lambda: group.allgather_bytes(b""),
    )
    for call in calls:
        with pytest.raises(a2a.AbortedError, match=f"rank {group.rank}"):
            call()
    require_working(comm)


def test_a_closed_communicator(pool: Pool) -> None:
    pool.run(run_closed)


def run_many(comm: a2a.Communicator, count: int) -> None:
    """Operations in flight on all of them, started and awaited in another order by each rank."""
    groups = [comm.split(0, comm.rank * (-1) ** at) for at in range(count)]
    rng = np.random.default_rng(comm.rank)
    started: dict[int, tuple[Any, Any]] = {}
    for at in rng.permutation(count).tolist():
        group = groups[at]
        recv = np.full((group.size, 5000), -1)
        work = group.alltoall(np.full((group.size, 5000), 100 * at + group.rank), recv, async_op=True)
        started[at] = (work, recv)
    for at in rng.permutation(count).tolist():
        work, recv = started[at]
        work.wait()
        assert (recv == 100 * at + np.arange(comm.size)[:, None]).all()
    for group in groups:
        require_working(group)
    for group in groups:
        group.close()


def test_sixty_four_communicators(pool: Pool) -> None:
    pool.run(run_many, 64)


def run_opposite(comm: a2a.Communicator, elements: int, blocking: bool) -> None:
    """Even ranks use one communicator first, odd ranks the other."""
    groups = [comm.split(0), comm.split(0)]
    order = (0, 1) if comm.rank % 2 == 0 else (1, 0)
    for _ in range(10):
        recvs = [np.full((comm.size, elements), -1) for _ in groups]
        sends = [np.full((comm.size, elements), 10 * at + comm.rank) for at in range(2)]
        first, second = order
        works = [groups[first].alltoall(sends[first], recvs[first], async_op=True)]
        works.append(groups[second].alltoall(sends[second], recvs[second], async_op=not blocking))
        for work in works:
            if work is not None:
                work.wait()
        for at, recv in enumerate(recvs):
            assert (recv == 10 * at + np.arange(comm.size)[:, None]).all()
    for group in groups:
        group.close()


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("elements", [1, 2000, 200_000])
def test_opposite_order_does_not_deadlock(pool: Pool, elements: int, blocking: bool) -> None:
    pool.run(run_opposite, elements, blocking)


def footprint(threads: int) -> dict[str, Any]:
    """What this process has. Waits until it has no more than so many threads: that of a close() ends a moment later."""
    gc.collect()
    until = time.monotonic() + 2
    while True:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        if int(status["Threads"]) <= threads or time.monotonic() > until:
            break
        time.sleep(0.01)
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "descriptors": sorted(kinds()),
        "threads": int(status["Threads"]),
        "shared mappings": sum("memfd" in line for line in maps),
        "mappings": len(maps),
        "shared KiB": int(status["RssShmem"].split()[0]),
    }


def footprint_in_turn(comm: a2a.Communicator, threads: int = 1000) -> dict[str, Any]:
    """Threads share what is counted, and counting opens files."""
    for rank in range(comm.size):
        comm.barrier()
        if rank == comm.rank:
            result = footprint(threads)
    comm.barrier()
    return result


def kinds() -> Iterator[str]:
    for entry in Path("/proc/self/fd").iterdir():
        try:
            yield str(entry.readlink()).split(":")[0]
        except FileNotFoundError:
            continue  # the descriptor that lists this directory


def use_once(comm: a2a.Communicator, job: str | None) -> None:
    if job is None:
        made = reconnect(comm)
    else:
        made = a2a.init(comm.rank, comm.size, job=job, timeout=OPERATION_SECONDS)
    inner = made.split(comm.rank % 2)
    assert inner is not None
    work = made.alltoall(np.zeros((made.size, 30_000)), np.zeros((made.size, 30_000)), async_op=True)
    require_working(inner)
    made.empty(1000, "float32")
    assert work is not None
    work.wait()
    inner.close()
    made.close()


def run_cycles(comm: a2a.Communicator, jobs: bool, count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    name = comm.allgather_bytes(os.urandom(8).hex().encode())[0].decode()
    for cycle in range(5):
        use_once(comm, f"{name}-warm-{cycle}" if jobs else None)
    before = footprint_in_turn(comm)
    for cycle in range(count):
        use_once(comm, f"{name}-{cycle}" if jobs else None)
    return before, footprint_in_turn(comm, before["threads"])


@pytest.mark.parametrize("jobs", [False, True], ids=["bootstrap", "job"])
def test_nothing_is_left_of_closed_communicators(pool: Pool, jobs: bool) -> None:
    for before, after in pool.run(run_cycles, jobs, 30):
        exact = ("descriptors", "threads", "shared mappings")
        assert {key: after[key] for key in exact} == {key: before[key] for key in exact}
        # Malloc may map a little more, and shared pages that were used stay with the process for the next use.
        assert after["mappings"] <= before["mappings"] + 5
        assert after["shared KiB"] <= before["shared KiB"] + 4096
