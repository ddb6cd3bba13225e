"""A child that is forked after init() gets errors at once, and the parent goes on as if nothing had happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from forked import End, apart, assert_usable, connect, job_name, raised, run, values

import a2a


def fork_and_check(comm: a2a.Communicator, call: Callable[[], Any]) -> str:
    """What the call raises in a forked child, and how long it takes."""

    def child(_: int) -> tuple[str, float]:
        begin = time.monotonic()
        return raised(a2a.AbortedError, call), time.monotonic() - begin

    ends: list[End] = run(1, child, timeout=10)
    text, seconds = values(ends)[0]
    assert seconds < 1, seconds
    return str(text)


def use_inherited(rank: int, n: int, job: str) -> int:
    comm = connect(rank, n, job)
    data = np.zeros(n)
    plan = comm.plan_alltoall(data, data.copy())
    work = comm.alltoall(np.ones(n * 50_000), np.zeros(n * 50_000), async_op=True)
    calls = [
        lambda: comm.alltoall(data, data.copy()),
        lambda: comm.alltoallv(data, [1] * n, data.copy(), [1] * n),
        lambda: comm.alltoall_list([data] * n, [data.copy() for _ in range(n)]),
        lambda: comm.allgather(data[:1], data.copy()),
        lambda: comm.exchange(data, [1] * n),
        lambda: comm.global_scatter(data, [1] * n, [1] * n),
        lambda: comm.global_gather(data, [1] * n, [1] * n),
        lambda: comm.plan_alltoall(data, data.copy()),
        lambda: plan.run(data, data.copy()),
        lambda: plan.transpose(),
        lambda: comm.allgather_bytes(b"x"),
        lambda: comm.split(0),
        lambda: comm.group([0]),
        lambda: comm.shrink(timeout=5),
        comm.barrier,
        work.wait,
        work.done,
        lambda: work.arrived(1),
        lambda: work.order_before(None),
    ]
    if rank == 0:
        for call in calls:
            assert "fork" in fork_and_check(comm, call)
        values(run(1, lambda _: leave_inherited(comm)))
    work.wait()
    assert_usable(comm)
    comm.close()
    return len(calls)


def leave_inherited(comm: a2a.Communicator) -> None:
    """What a child may do without knowing; the parent must not notice."""
    assert comm.closed or comm.broken
    comm.abort("in a child")
    repr(comm)
    for leave in (comm.close, lambda: comm.__exit__(ValueError, None, None)):
        try:
            leave()
        except a2a.AbortedError:
            continue


@pytest.mark.timeout(60)
@apart
def test_forked_child() -> None:
    values(run(3, use_inherited, 3, job_name()))


def allocate_inherited(rank: int, n: int, job: str) -> str:
    comm = connect(rank, n, job)
    return fork_and_check(comm, lambda: comm.empty(10))


@apart
def test_forked_child_allocates() -> None:
    values(run(2, allocate_inherited, 2, job_name()))
