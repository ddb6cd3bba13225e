"""A2A_PROGRESS_THREAD: operations in flight get done while the program does something else."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import apart, assert_usable, connect, job_name, raised, run, values

import a2a

pytestmark = pytest.mark.timeout(60)

BYTES = 3 << 20  # more than a rank copies, or a ring holds, when it starts the operation
SLEEP, LONGEST = 0.3, 20.0  # seconds; the second where the machine is busy


def threads() -> int:
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since the directory was read
            names.append((task / "comm").read_text().strip())
    return names.count("a2a-progress")


def sent(rank: int, n: int) -> Any:
    return np.repeat(np.arange(n, dtype=np.uint8) + 10 * rank, BYTES)


def expected(rank: int, n: int) -> Any:
    return np.repeat(10 * np.arange(n, dtype=np.uint8) + rank, BYTES)


def sleep_through(rank: int, n: int, job: str, thread: str, cma: str) -> tuple[int, bool]:
    """How many threads a communicator brings, and whether all bytes have come while every rank slept."""
    os.environ.update(A2A_PROGRESS_THREAD=thread, A2A_SHM_CMA=cma)
    comm = connect(rank, n, job)
    send, recv = sent(rank, n), np.zeros(n * BYTES, np.uint8)
    if rank != 0:
        time.sleep(0.05)  # the first rank finds nothing of the others when it starts
    work = comm.alltoall(send, recv, async_op=True)
    time.sleep(SLEEP)
    until = time.monotonic() + (0 if thread == "0" else LONGEST)
    while not (come := bool(np.array_equal(recv, expected(rank, n)))) and time.monotonic() < until:
        time.sleep(0.05)
    started = threads()  # by now it has its name
    work.wait()
    assert np.array_equal(recv, expected(rank, n))
    assert_usable(comm)
    comm.close()
    del work, comm
    deadline = time.monotonic() + 5
    while threads() > 0:  # ended, as far as it has to do with the communicator; the kernel takes its time
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return started, come


@apart
@pytest.mark.parametrize("cma", ["0", "1"])
@pytest.mark.parametrize("n", [2, 3])
def test_operations_go_on_while_ranks_sleep(n: int, cma: str) -> None:
    assert values(run(n, sleep_through, n, job_name(), "1", cma)) == [(1, True)] * n


@apart
def test_there_is_none_unless_asked_for() -> None:
    ends = values(run(2, sleep_through, 2, job_name(), "0", "0"))
    assert [started for started, _ in ends] == [0, 0] and not all(come for _, come in ends)


def many(rank: int, n: int, job: str) -> bool:
    """Random operations, several in flight, on two communicators; this thread and the other one both lend a hand."""
    os.environ["A2A_PROGRESS_THREAD"] = "1"
    chance = np.random.default_rng(7)  # the same choices on all ranks
    comms = [connect(rank, n, job)]
    other = comms[0].split(0)
    assert other is not None
    comms.append(other)
    for _ in range(60):
        flying = []
        for _ in range(int(chance.integers(1, 6))):
            comm, rows = comms[int(chance.integers(2))], int(chance.choice([1, 50, 3_000, 100_000]))
            recv = np.zeros(n * rows)
            work = comm.alltoall(np.repeat(np.arange(n) + 10.0 * rank, rows), recv, async_op=True)
            flying.append((work, recv, rows))
        if chance.integers(2):
            comms[0].barrier()
        if chance.integers(2):
            time.sleep(0.001)
        for work, recv, rows in flying[:: int(chance.choice([-1, 1]))]:
            work.wait()
            assert np.array_equal(recv, np.repeat(10.0 * np.arange(n) + rank, rows))
    for comm in comms:
        comm.close()
    return True


@apart
def test_many_operations() -> None:
    assert all(values(run(3, many, 3, job_name())))


def lose_a_peer(rank: int, n: int, job: str) -> str:
    os.environ["A2A_PROGRESS_THREAD"] = "1"
    comm = connect(rank, n, job)
    comm.barrier()
    if rank == 1:
        time.sleep(SLEEP / 3)  # a rank still in the barrier would raise there
        os._exit(0)
    work = comm.alltoall(np.zeros(n * BYTES, np.uint8), np.zeros(n * BYTES, np.uint8), async_op=True)
    time.sleep(SLEEP)
    assert comm.broken  # found out by nobody else
    return raised(a2a.PeerLostError, work.wait)


@apart
def test_it_notices_a_lost_peer() -> None:
    ends = run(3, lose_a_peer, 3, job_name())
    assert "rank 1" in ends[0].value and "rank 1" in ends[2].value


def fork_in_flight(rank: int, n: int, job: str) -> bool:
    os.environ["A2A_PROGRESS_THREAD"] = "1"
    comm = connect(rank, n, job)
    send, recv = sent(rank, n), np.zeros(n * BYTES, np.uint8)
    work = comm.alltoall(send, recv, async_op=True)
    pid = os.fork()
    if pid == 0:
        del work, comm  # what the child inherited has no thread here
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    work.wait()
    return bool(np.array_equal(recv, expected(rank, n)))


@apart
def test_fork_in_flight() -> None:
    assert all(values(run(2, fork_in_flight, 2, job_name())))


def leave_in_flight(rank: int, n: int, job: str) -> None:
    """Interpreter threads and communicators that nobody closes."""
    os.environ["A2A_PROGRESS_THREAD"] = "1"
    comm = connect(rank, n, job)
    send, recv = sent(rank, n), np.zeros(n * BYTES, np.uint8)
    comm.alltoall(send, recv, async_op=True)
    threading.Thread(target=time.sleep, args=(0.05,)).start()


@apart
def test_exit_in_flight() -> None:
    assert [end.status for end in run(2, leave_in_flight, 2, job_name())] == [0, 0]


def refuse(_: int) -> str:
    os.environ["A2A_PROGRESS_THREAD"] = "maybe"
    return raised(a2a.InvalidArgumentError, a2a.init, 0, 1)


@apart
def test_a_wrong_value() -> None:
    assert "A2A_PROGRESS_THREAD=maybe in the environment is none of auto, 1, 0" in values(run(1, refuse))[0]
