"""Views of the peers' tensors: whose memory it is, for how long, and whoever dies, leaves or forks meanwhile."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from forked import apart, connect, job_name, raised, run, values
from views_ranks import MIB, SECONDS, segment_bytes

import a2a
from a2a import _core

pytestmark = pytest.mark.timeout(110)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def given_back(comm: a2a.Communicator, before: int) -> bool:
    comm.empty(1)  # looks who has released what
    return segment_bytes() < before + MIB


@pytest.mark.ranks(3)
def test_an_owner_may_drop_its_tensor(comm: a2a.Communicator) -> None:
    comm.barrier()
    before = segment_bytes()
    mine = comm.empty(4 * MIB, "uint8")
    mine[:] = comm.rank + 1
    views = comm.allgather_views(mine)
    del mine
    other = comm.empty(4 * MIB, "uint8")
    other[:] = 0xAA
    assert segment_bytes() >= before + 8 * MIB
    comm.barrier()
    assert all((view == rank + 1).all() for rank, view in enumerate(views))
    comm.barrier()
    kept = views[0][MIB:]  # rank 2 lets go of the Views only, which releases nothing
    del other
    if comm.rank == 2:
        del views
        gc.collect()
    else:
        del kept
        views.release()
        with pytest.raises(a2a.TimeoutError, match=r"after 0\.1 seconds another rank still looks"):
            views.wait_released(0.1)
        assert not given_back(comm, before) and not comm.broken
    comm.barrier()
    if comm.rank == 2:
        assert (kept == 1).all()
        del kept
        gc.collect()
    else:
        views.wait_released()
    wait_for(lambda: given_back(comm, before))
    comm.close()


def show_for_ever(comm: a2a.Communicator, rounds: int) -> tuple[int, int]:
    def show() -> None:
        mine = comm.empty(MIB, "uint8")
        mine[::4096] = comm.rank
        assert comm.allgather_views(mine)[comm.size - 1][4096] == comm.size - 1

    for _ in range(20):
        show()
    comm.barrier()
    before = segment_bytes()
    for _ in range(rounds):
        show()
    comm.barrier()
    wait_for(lambda: given_back(comm, before))
    return before, segment_bytes()


def test_many_rounds_leave_nothing(run_ranks: Callable[..., list[Any]]) -> None:
    run_ranks(3, show_for_ever, 300)


KEPT: list[Any] = []


def outlive(rank: int, job: str) -> int | None:
    comm = connect(rank, 2, job)
    mine = comm.empty(3 * MIB, "uint8")
    mine[:] = rank + 7
    views, end = comm.allgather_views(mine), comm.allgather_views(comm.empty(0))
    seen = views[1 - rank]
    comm.close()
    if rank == 1:
        KEPT.append((views, end))
        return None
    del comm, mine
    gc.collect()
    end.wait_released(SECONDS)  # the other process is gone
    assert (seen == 8).all() and (views[0] == 7).all()
    views.release()
    assert int(seen[-1]) in range(256) and memoryview(seen).nbytes == 3 * MIB  # no crash
    del views
    return int(seen.sum() >= 0)


@apart
def test_views_outlive_communicator_and_owner() -> None:
    assert values(run(2, outlive, job_name())) == [1, None]


def lose_owner(rank: int, job: str) -> str | None:
    comm = connect(rank, 3, job)
    mine = comm.empty(3 * MIB, "uint8")
    mine[:] = rank + 7
    views = comm.allgather_views(mine)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    told = raised(a2a.PeerLostError, comm.barrier)
    views.release() if rank == 0 else None
    assert rank == 0 or [int(view[-1]) for view in views] == [7, 8, 9]
    smaller = comm.shrink(timeout=SECONDS)
    with smaller.allgather_views(mine) as again:  # the same tensor, in another group
        assert [int(view[-1]) for view in again] == [7, 9]
    smaller.barrier()
    views.release()
    views.wait_released(SECONDS)
    comm.close()
    smaller.close()
    return told


@apart
def test_an_owner_dies() -> None:
    ends = run(3, lose_owner, job_name())
    assert ends.pop(1).status == -signal.SIGKILL
    assert all("rank 1" in text for text in values(ends))


def lose_viewer(rank: int, job: str) -> None:
    comm = connect(rank, 2, job)
    comm.barrier()
    before = segment_bytes()
    mine = comm.empty(8 * MIB, "uint8")
    views = comm.allgather_views(mine)
    comm.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    del mine
    views.release()
    views.wait_released(SECONDS)
    wait_for(lambda: given_back(comm, before))


@apart
def test_a_viewer_dies() -> None:
    ends = run(2, lose_viewer, job_name())
    assert ends.pop(1).status == -signal.SIGKILL
    values(ends)


def come_late(rank: int, job: str, end: str) -> None:
    """Rank 2 does not come. What the others have shown is theirs again."""
    comm = connect(rank, 3, job)
    comm.barrier()
    before = segment_bytes()
    mine = comm.empty(8 * MIB, "uint8")
    if rank == 2:
        time.sleep(0.3)
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if end == "aborts":
            comm.abort("no more")
        if end == "leaves":
            comm.__exit__(ValueError, None, None)
        time.sleep(1)
        return
    kind = {"killed": a2a.PeerLostError, "aborts": a2a.AbortedError, "leaves": a2a.PeerLostError}
    raised(kind.get(end, a2a.TimeoutError), comm.allgather_views, mine, timeout=0.6)
    assert comm.broken
    del mine
    wait_for(lambda: given_back(comm, before))


@pytest.mark.parametrize("end", ["killed", "aborts", "leaves", "sleeps"])
@apart
def test_a_rank_does_not_come(end: str) -> None:
    ends = run(3, come_late, job_name(), end)
    ends.pop(2)
    values(ends)


def wait_in_turns(comm: a2a.Communicator) -> float:
    mine = comm.empty(16)
    views = comm.allgather_views(mine)
    started = time.monotonic()
    if comm.rank == 1:
        time.sleep(0.5)
        views.release()
    else:
        assert not views.released
        views.wait_released(SECONDS)
        assert views.released
    return time.monotonic() - started


@pytest.mark.parametrize("threads", [False, True])
def test_the_owner_waits(threads: bool, run_ranks: Callable[..., list[Any]]) -> None:
    waited = run_ranks(3, wait_in_turns, threads=threads)
    assert all(0.4 < waited[rank] < 5 for rank in (0, 2)), waited


def look_in_a_child(rank: int, job: str) -> None:
    comm = connect(rank, 2, job)
    mine = comm.empty(2 * MIB, "uint8")
    mine[:] = rank + 1
    views = comm.allgather_views(mine)

    def child(_: int) -> list[str]:
        assert (views[1 - rank] == 2 - rank).all()
        told = [raised(a2a.AbortedError, views.wait_released), raised(a2a.AbortedError, comm.allgather_views, mine)]
        views.release()
        return told

    if rank == 0:
        for told in values(run(1, child, timeout=20)):
            assert all("fork" in text for text in told)
    comm.barrier()
    if rank == 1:  # the child's release is nobody's
        raised(a2a.TimeoutError, views.wait_released, 0.1)
    comm.barrier()
    assert rank == 1 or (views[1] == 2).all()
    views.wait_released(SECONDS)
    comm.close()


@apart
def test_fork() -> None:
    values(run(2, look_in_a_child, job_name()))


def test_interrupted() -> None:
    """The operation goes on, and nobody looks at what comes of it."""
    bootstraps = _core.thread_bootstraps(2)
    go, done = threading.Event(), threading.Event()
    waited: list[Any] = []

    def peer() -> None:
        comm = _core.connect(1, 2, bootstrap=bootstraps[1], timeout=SECONDS)
        go.wait(SECONDS)
        views = comm.allgather_views(comm.empty(100))
        views.wait_released()
        waited.append(len(views))
        done.set()
        comm.close()

    thread = threading.Thread(target=peer)
    thread.start()
    comm = _core.connect(0, 2, bootstrap=bootstraps[0], timeout=SECONDS)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        comm.allgather_views(comm.empty(100))
    assert time.monotonic() - start < 1
    go.set()
    comm.close()
    assert done.wait(SECONDS) and waited == [2]
    thread.join()
