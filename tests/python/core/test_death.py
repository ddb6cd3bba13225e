"""Ranks that die, stop, or leave early: the others learn it in time, by name, and can go on without them."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import multiprocessing
import os
import random
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from forked import apart, assert_usable, connect, job_name, raised, run, values

import a2a

MIB = 1 << 20
SIGKILLED = -int(signal.SIGKILL)


class Board:
    """Counters that ranks raise and the test reads."""

    def __init__(self, n: int) -> None:
        self.words = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
        self.n = n

    def await_all(self, count: int, but: int = -1, seconds: float = 40) -> None:
        deadline = time.monotonic() + seconds
        while any(self.words[rank] < count for rank in range(self.n) if rank != but):
            assert time.monotonic() < deadline, list(self.words[: self.n])
            time.sleep(0.0005)


def kill(victim: int, board: Board, count: int, killed: list[float], delay: float = 0) -> Callable[[list[int]], None]:
    def during(pids: list[int]) -> None:
        board.await_all(count)
        time.sleep(delay)
        os.kill(pids[victim], signal.SIGKILL)
        killed.append(time.monotonic())

    return during


def go_on(comm: a2a.Communicator, expected: int) -> None:
    """The survivors make a new communicator and use it."""
    assert comm.broken
    smaller = comm.shrink(timeout=20)
    assert smaller.size == expected, smaller
    assert_usable(smaller)
    smaller.close()


def exchange_until_loss(rank: int, n: int, job: str, board: Board, path: str) -> tuple[str, float]:
    comm = connect(rank, n, job)
    send = comm.empty(16 * MIB, "uint8") if path == "shared" else np.ones(16 * MIB, np.uint8)
    recv = np.ones(16 * MIB, np.uint8)
    assert "/dev/shm" not in Path("/proc/self/maps").read_text()
    comm.barrier()

    def forever() -> None:
        while True:
            board.words[rank] += 1
            comm.alltoall(send, recv)

    text = raised(a2a.PeerLostError, forever)
    when = time.monotonic()
    go_on(comm, n - 1)
    return text, when


# (name, environment, rounds). Each of 4 ranks sends 16 MiB, 64 MiB together.
KILLS: list[tuple[str, dict[str, str], int]] = [
    ("remote", {"A2A_SHM_CMA_MIN": "1"}, 14),
    ("shared", {}, 24),
    ("staged", {"A2A_SHM_CMA": "0"}, 12),
]


@pytest.mark.full
@pytest.mark.timeout(110)
@apart
def test_killed_50_times_in_the_middle_of_an_exchange() -> None:
    assert sum(kills[2] for kills in KILLS) == 50
    n, chance, delays = 4, random.Random(50), []
    for name, environment, rounds in KILLS:
        os.environ.pop("A2A_SHM_CMA_MIN", None)
        os.environ.update(environment)
        for victim in (i % n for i in range(rounds)):
            board, killed = Board(n), []
            during = kill(victim, board, 2, killed, chance.random() * 0.02)
            ends = run(n, exchange_until_loss, n, job_name(), board, name, during=during, timeout=60)
            assert ends.pop(victim).status == SIGKILLED
            for text, when in values(ends):
                assert f"rank {victim} (pid" in text, text
                delays.append(when - killed[0])
    assert statistics.median(delays) <= 0.05, sorted(delays)
    assert max(delays) <= 1, sorted(delays)


def wait_in_barrier(rank: int, n: int, job: str, board: Board, victim: int) -> tuple[str, float]:
    comm = connect(rank, n, job)
    comm.barrier()
    board.words[rank] = 1
    if rank == victim:
        time.sleep(60)
    text = raised(a2a.PeerLostError, comm.barrier)
    when = time.monotonic()
    assert_refuses(comm)
    go_on(comm, n - 1)
    return text, when


def assert_refuses(comm: a2a.Communicator) -> None:
    """A broken communicator does not wait for anything."""
    begin = time.monotonic()
    raised(a2a.PeerLostError, comm.barrier)
    raised(a2a.PeerLostError, comm.alltoall, np.zeros(comm.size), np.zeros(comm.size))
    raised(a2a.PeerLostError, comm.split, 0)
    assert time.monotonic() - begin < 1


@pytest.mark.timeout(60)
@apart
def test_killed_while_others_wait_in_a_barrier() -> None:
    n, delays = 4, []
    for victim in range(n):
        board, killed = Board(n), []
        # Asleep on their futexes, too.
        during = kill(victim, board, 1, killed, delay=0.1 * victim)
        ends = run(n, wait_in_barrier, n, job_name(), board, victim, during=during)
        assert ends.pop(victim).status == SIGKILLED
        for text, when in values(ends):
            assert f"rank {victim} (pid" in text and "barrier #" in text, text
            delays.append(when - killed[0])
    assert statistics.median(delays) <= 0.05, sorted(delays)


def meet_and_wait(rank: int, n: int, job: str, board: Board) -> tuple[str, str]:
    board.words[rank] = 1
    try:
        comm = connect(rank, n, job, timeout=2)
        comm.barrier()
        comm.barrier()
        while True:
            comm.barrier()
    except a2a.Error as error:
        return type(error).__name__, str(error)


@pytest.mark.timeout(80)
@apart
def test_killed_during_init() -> None:
    n, chance = 4, random.Random(4)
    for victim in [0, 1, 2, 3] * 5:
        board, killed = Board(n), []
        during = kill(victim, board, 1, killed, chance.random() * 0.03)
        ends = run(n, meet_and_wait, n, job_name(), board, during=during)
        assert ends.pop(victim).status == SIGKILLED
        for name, text in values(ends):
            # Who died before the others ever saw it is one who never came.
            assert name in ("PeerLostError", "TimeoutError"), (name, text)
            assert "rank" in text, text
        assert max(end.time for end in ends) - killed[0] < 4


def in_time(rank: int, n: int, job: str, board: Board, victim: int) -> tuple[str, float]:
    comm = connect(rank, n, job)
    comm.barrier()
    board.words[rank] = 1
    while rank == victim and board.words[n] == 0:  # stopped here
        time.sleep(0.01)
    begin = time.monotonic()
    text = raised(a2a.TimeoutError, comm.alltoall, np.zeros(n * 10), np.zeros(n * 10), timeout=1)
    seconds = time.monotonic() - begin
    go_on(comm, n)
    return text, seconds


@pytest.mark.timeout(40)
@apart
def test_stopped_rank() -> None:
    n, victim = 3, 1
    board = Board(n)

    def stop(pids: list[int]) -> None:
        board.await_all(1)
        os.kill(pids[victim], signal.SIGSTOP)
        time.sleep(1.5)
        board.words[n] = 1
        os.kill(pids[victim], signal.SIGCONT)

    results = values(run(n, in_time, n, job_name(), board, victim, during=stop))
    for rank, (text, seconds) in enumerate(results):
        assert f"rank {victim} (pid" in text and "stopped" in text and "last operation barrier #1" in text, text
        assert rank == victim or 0.9 <= seconds <= 1.15, seconds


def miss(rank: int, n: int, job: str, board: Board, dies: bool) -> tuple[str, float]:
    comm = connect(rank, n, job)
    comm.barrier()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    board.words[rank] = 1
    board.await_all(1)
    begin = time.monotonic()
    if rank == n - 1:
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(5)
        return "", 0
    kind = a2a.PeerLostError if dies else a2a.TimeoutError
    text = raised(kind, comm.alltoall, np.zeros(n), np.zeros(n), timeout=20 if dies else 1)
    return text, time.monotonic() - begin


def compute() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    while True:
        pass


@pytest.mark.full
@pytest.mark.timeout(60)
@pytest.mark.parametrize("dies", [False, True])
@apart
def test_missed_beside_programs_that_compute(dies: bool) -> None:
    """Each yield of a waiting rank lasts as long as the turns of all the others on its CPU."""
    n, board = 3, Board(3)
    busy = [multiprocessing.get_context("fork").Process(target=compute) for _ in range(10)]
    for process in busy:
        process.start()
    try:
        *ends, last = run(n, miss, n, job_name(), board, dies)
    finally:
        for process in busy:
            process.kill()
            process.join()
    assert last.status == (SIGKILLED if dies else 0)
    for text, seconds in values(ends):
        assert f"rank {n - 1} (pid" in text, text
        assert seconds < 2, seconds


def leave(rank: int, n: int, job: str, how: str, board: Board) -> str:
    comm = connect(rank, n, job)
    comm.barrier()
    board.words[rank] = 1
    if rank == n - 1:
        board.await_all(1)  # a rank still in the barrier would raise there
        if how == "exception":
            with comm:
                raise KeyError("a mistake")
        if how == "exit":
            os._exit(3)
        if how == "dropped":
            del comm
            time.sleep(1)
            return ""
    text = raised(a2a.PeerLostError, comm.alltoall, np.zeros(n * 100), np.zeros(n * 100), timeout=10)
    go_on(comm, n - 1)
    return text


@pytest.mark.timeout(40)
@pytest.mark.parametrize("how", ["exception", "exit", "dropped"])
@apart
def test_leaves_without_a_word(how: str) -> None:
    n = 3
    begin = time.monotonic()
    ends = run(n, leave, n, job_name(), how, Board(n), timeout=20)
    last = ends.pop()
    assert {"exception": isinstance(last.error, KeyError), "exit": last.status == 3, "dropped": last.status == 0}[how]
    for text in values(ends):
        assert f"rank {n - 1} (pid" in text and "alltoall #2" in text, text
    assert time.monotonic() - begin < 5


def close_early(rank: int, n: int, job: str, late: bool) -> tuple[str, str]:
    comm = connect(rank, n, job)
    if rank == 1:
        text = raised(a2a.MismatchError, comm.close)
        assert comm.closed
        return text, raised(a2a.AbortedError, comm.barrier)
    work = comm.alltoall(np.zeros(n), np.zeros(n), async_op=True)
    if late and rank == 2:
        time.sleep(1)  # rank 0 has lost rank 1 in its second barrier by now
    first = raised(a2a.MismatchError, work.wait)
    second = raised(a2a.PeerLostError, comm.barrier)
    go_on(comm, n - 1)
    return first, second


@pytest.mark.timeout(40)
@pytest.mark.parametrize("late", [False, True])
@apart
def test_closes_while_others_go_on(late: bool) -> None:
    n = 3
    results = values(run(n, close_early, n, job_name(), late))
    for rank, (first, second) in enumerate(results):
        assert "rank 1 calls close" in first and "calls alltoall" in first, first
        assert rank == 1 or "rank 1" in second, second


def lose_two(rank: int, n: int, job: str, board: Board) -> list[str]:
    comm = connect(rank, n, job)
    comm.barrier()
    board.words[rank] = 1
    if rank == 0:
        time.sleep(60)
    texts = [raised(a2a.PeerLostError, comm.barrier)]
    board.words[rank] = 2
    if rank == 2:
        time.sleep(60)  # does not come to shrink()
    smaller = comm.shrink(timeout=20)
    assert smaller.size == n - 2, smaller
    assert_usable(smaller)
    smaller.close()
    return texts


@pytest.mark.timeout(40)
@apart
def test_second_death_while_the_others_shrink() -> None:
    n = 4
    board = Board(n)

    def during(pids: list[int]) -> None:
        board.await_all(1)
        os.kill(pids[0], signal.SIGKILL)
        board.await_all(2, but=0)
        time.sleep(0.05)
        os.kill(pids[2], signal.SIGKILL)

    ends = run(n, lose_two, n, job_name(), board, during=during)
    assert [ends[0].status, ends[2].status] == [SIGKILLED, SIGKILLED]
    values([ends[1], ends[3]])


def shrink_with_a_stopped_rank(rank: int, n: int, job: str, board: Board, ends: bool) -> list[int]:
    comm = connect(rank, n, job)
    comm.barrier()
    board.words[rank] = 1
    while rank == 2 and board.words[n] == 0:
        time.sleep(0.001)  # it is stopped here
    raised(a2a.TimeoutError, comm.barrier, timeout=0.3)
    if rank == 2:
        board.words[rank] = 3
        smaller = comm.shrink(timeout=10)  # of ranks that have given up shrinking for now
    else:
        text = raised(a2a.TimeoutError, comm.shrink, timeout=0.3)
        assert "rank 2 (pid" in text and "alive but stopped" in text and "shrink again" in text, text
        taken = comm.empty(MIB + rank, "uint8")  # where another block would have stood
        board.words[rank] = 2
        while board.words[n] == 0 or (not ends and board.words[2] < 3):
            time.sleep(0.001)
        time.sleep(0.2)  # after the slower one has decided
        del taken
        smaller = comm.shrink(timeout=10)
    assert_usable(smaller)
    smaller.close()
    return [smaller.size, smaller.rank]


@pytest.mark.timeout(40)
@pytest.mark.parametrize("ends", [True, False])
@apart
def test_shrink_may_be_called_again_when_a_stopped_rank_has_ended_or_goes_on(ends: bool) -> None:
    n = 3
    board = Board(n + 1)

    def during(pids: list[int]) -> None:
        board.await_all(1, but=n)
        os.kill(pids[2], signal.SIGSTOP)
        while board.words[0] < 2 or board.words[1] < 2:
            time.sleep(0.001)
        board.words[n] = 1
        os.kill(pids[2], signal.SIGKILL if ends else signal.SIGCONT)

    results = run(n, shrink_with_a_stopped_rank, n, job_name(), board, ends, during=during)
    expected = 2 if ends else 3
    for end in results:
        if not (ends and end.rank == 2):
            assert end.value == [expected, end.rank], (end, end.trace)


def wait_for_a_living_rank(rank: int, n: int, job: str, board: Board) -> str:
    comm = connect(rank, n, job)
    comm.barrier()
    if rank == 1:
        while board.words[0] == 0:
            time.sleep(0.001)
        return ""
    text = raised(a2a.TimeoutError, comm.barrier, timeout=0.3)
    board.words[0] = 1
    return text


@pytest.mark.timeout(40)
@apart
def test_a_living_rank_is_not_called_dead_where_proc_is_of_another_namespace() -> None:
    new_pid_namespace = 0x20000000
    if ctypes.CDLL(None).unshare(new_pid_namespace) != 0:
        pytest.skip("no new PID namespace here")
    reader, writer = os.pipe()
    first = os.fork()  # the namespace lives as long as its first process
    if first == 0:
        # Numbers that nobody has outside.
        highest = int(Path("/proc/sys/kernel/pid_max").read_text())
        with contextlib.suppress(OSError):
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(highest - 1000))
        os.write(writer, b"!")
        time.sleep(60)
        os._exit(0)
    os.read(reader, 1)
    try:
        text = values(run(2, wait_for_a_living_rank, 2, job_name(), Board(2)))[0]
    finally:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
    assert "rank 1 (pid" in text and "alive" in text and "exited" not in text, text
