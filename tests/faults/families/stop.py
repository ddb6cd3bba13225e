"""Ranks that are stopped: the others learn it at the deadline, by name; and that it is stopped, not dead."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import random
import signal
import struct
import time
from collections.abc import Sequence

import numpy as np

import a2a
from a2a._core import from_pointer

from ..harness import Answer, Board, End, NotRun, Report, arm, attempt, connect, job_name, judge, run, works
from ..rows import row
from .death import WAYS, Way, meet, meeting_point, named, pick, take_part

DEADLINE, JOINING = 0.5, 1.5
LATE = ("TimeoutError",)


def _stopped(pid: int, limit: float = 20.0) -> bool:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        state = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if state is not None:
            return bool(state.si_code == os.CLD_STOPPED)
        time.sleep(0.002)
    return False


def wait_in_vain(rank: int, n: int, job: str, victim: int, board: Board, way: Way) -> Answer:
    os.environ.update(way[0])
    comm = connect(rank, n, job)
    size = n * way[1]
    send, recv = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    comm.alltoall(send, recv)
    board.words[rank] = 1
    while rank == victim:
        time.sleep(0.001)
    board.await_all(2)  # it is stopped
    return attempt(comm.alltoall, send, recv, timeout=DEADLINE)


def _slowest(ends: list[End], victim: int) -> float:
    return max(end.value.seconds for end in ends if end.rank != victim and isinstance(end.value, Answer))


@row("stopped before an exchange", "raise by name at the deadline +-10 %", 2, 100, exactly=DEADLINE)
def stopped(chance: random.Random) -> Report:
    return stopped_in(job_name(), WAYS, ["alive but stopped"], chance)


def stopped_in(job: str, ways: Sequence[Way], words: list[str], chance: random.Random) -> Report:
    n = chance.choice([2, 3, 4])
    victim, board = chance.randrange(n), Board(n)

    def during(pids: list[int]) -> None:
        board.await_all(1)
        os.kill(pids[victim], signal.SIGSTOP)
        assert _stopped(pids[victim])
        for rank in range(n):
            board.words[rank] = 2
        time.sleep(DEADLINE + 0.3)
        os.kill(pids[victim], signal.SIGKILL)

    ends = run(n, wait_in_vain, n, job, victim, board, chance.choice(ways), during=during)
    report = judge(ends, LATE, [named(victim, job), *words], but=[victim])
    report.seconds = _slowest(ends, victim)
    return report


def open_userfaultfd() -> int:
    number = {"x86_64": 323, "aarch64": 282}.get(platform.machine(), -1)
    return int(ctypes.CDLL(None).syscall(number, os.O_CLOEXEC))


def stalling_tensor(size: int) -> object:
    """Its page faults never end, as those of a file on a file system that does not answer."""
    libc, fd = ctypes.CDLL(None), open_userfaultfd()
    libc.mmap.restype = ctypes.c_void_p
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE, private, -1, 0)
    fcntl.ioctl(fd, 0xC018AA3F, bytearray(struct.pack("QQQ", 0xAA, 0, 0)))  # UFFDIO_API
    fcntl.ioctl(fd, 0xC020AA00, bytearray(struct.pack("QQQQ", address, size, 1, 0)))  # UFFDIO_REGISTER
    return from_pointer(address, (size,), "uint8")


def send_stalling(rank: int, n: int, job: str, victim: int, board: Board) -> Answer:
    os.environ["A2A_SHM_CMA_MIN"] = "1"
    comm = connect(rank, n, job)
    size = n << 20
    send, recv = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    comm.alltoall(send, recv)
    if rank == victim:
        send = stalling_tensor(size)  # type: ignore[assignment]
    board.words[rank] = 1
    board.await_all(1)
    return attempt(comm.alltoall, send, recv, timeout=DEADLINE)


@row("its page faults do not end", "raise by name at the deadline +-10 %", 2, 60, exactly=DEADLINE)
def stalled(chance: random.Random) -> Report:
    if (fd := open_userfaultfd()) < 0:
        raise NotRun("no userfaultfd")
    os.close(fd)
    n = chance.choice([2, 3])
    victim, job, board = chance.randrange(n), job_name(), Board(n)

    def during(pids: list[int]) -> None:
        board.await_all(1)
        time.sleep(DEADLINE + 0.5)
        os.kill(pids[victim], signal.SIGKILL)

    ends = run(n, send_stalling, n, job, victim, board, during=during)
    report = judge(ends, LATE, [named(victim, job)], but=[victim])
    report.seconds = _slowest(ends, victim)
    return report


def stop_in(phase: str, chance: random.Random) -> Report:
    n = chance.choice([2, 3, 4])
    return stop_at(n, *pick(phase, n, chance), chance)


def stop_at(n: int, point: str, count: int, way: Way, chance: random.Random) -> Report:
    """The operation in which it is stopped has a deadline; earlier ones of the loop take no time."""
    victim = chance.randrange(n)
    since = [0.0]

    def during(pids: list[int]) -> None:
        assert _stopped(pids[victim]), "the victim was not struck"
        since[0] = time.monotonic()
        time.sleep(DEADLINE + 0.3)
        os.kill(pids[victim], signal.SIGKILL)

    program = (take_part, n, job_name(), victim, (point, count, int(signal.SIGSTOP)), way, DEADLINE)
    ends = run(n, *program, during=during)
    return judge(ends, LATE, [f"rank {victim} (pid", "alive but stopped"], since=since[0], but=[victim])


@row("stopped in publish", "raise by name at the deadline +-10 %", 2, 60, exactly=DEADLINE, faultpoints=True)
def stopped_in_publish(chance: random.Random) -> Report:
    return stop_in("publish", chance)


@row("stopped in copy", "raise by name at the deadline +-10 %", 2, 60, exactly=DEADLINE, faultpoints=True)
def stopped_in_copy(chance: random.Random) -> Report:
    return stop_in("copy", chance)


@row("stopped in acknowledge", "raise by name at the deadline +-10 %", 2, 60, exactly=DEADLINE, faultpoints=True)
def stopped_in_acknowledge(chance: random.Random) -> Report:
    return stop_in("acknowledge", chance)


def shrink_until_it_works(rank: int, n: int, job: str, victim: int, point: str) -> Answer:
    """Whoever meets a deadline shrinks what it has, again: those too whose shrink() was over when the stopped rank's
    own deadline passed in it."""
    group, patience = connect(rank, n, job), DEADLINE
    group.barrier()
    if rank == victim:
        arm(point, 1, signal.SIGSTOP)
    while True:
        try:
            group = group.shrink(timeout=patience)
            right = group.size == n and works(group)
            break
        except a2a.TimeoutError:
            patience = 20
    group.close()
    return Answer("right" if right else "wrong", time.monotonic(), text=f"{group.size} of {n} ranks")


@row("stopped in shrink(), which is called again", "right", 4, 60, faultpoints=True)
def stopped_in_shrink(chance: random.Random) -> Report:
    n = chance.choice([2, 3, 4])
    victim = chance.randrange(n)

    def during(pids: list[int]) -> None:
        assert _stopped(pids[victim]), "the victim was not struck"
        time.sleep(DEADLINE + 0.3)
        os.kill(pids[victim], signal.SIGCONT)

    point = chance.choice(["propose", "commit", "committed"])
    return judge(run(n, shrink_until_it_works, n, job_name(), victim, point, during=during), (), must_raise=False)


@row("stopped in bootstrap", "raise by name at the deadline +-10 %", 2, 60, exactly=JOINING, faultpoints=True)
def stopped_in_bootstrap(chance: random.Random) -> Report:
    n = chance.choice([2, 3, 4])
    victim = chance.randrange(n)
    point, count = meeting_point(n, victim, chance)
    begin = time.monotonic()

    def during(pids: list[int]) -> None:
        assert _stopped(pids[victim]), "the victim was not struck"
        time.sleep(JOINING + 0.8)
        os.kill(pids[victim], signal.SIGKILL)

    ends = run(n, meet, n, job_name(), victim, point, count, signal.SIGSTOP, JOINING, during=during)
    # Whoever has met already waits in the barrier; whoever met one that gave up lost it.
    report = judge(ends, (*LATE, "PeerLostError"), [f"rank {victim} (pid", "stopped"], since=begin, but=[victim])
    return report


@row("stopped, and continued before the deadline", "the right result", 2, 100)
def continued(chance: random.Random) -> Report:
    n = chance.choice([2, 3])
    victim, board = chance.randrange(n), Board(n)

    def during(pids: list[int]) -> None:
        board.await_all(1)
        for _ in range(3):
            time.sleep(chance.random() * 0.01)
            os.kill(pids[victim], signal.SIGSTOP)
            time.sleep(0.05 + chance.random() * 0.1)
            os.kill(pids[victim], signal.SIGCONT)

    ends = run(n, continue_exchange, n, job_name(), board, during=during)
    return judge(ends, (), must_raise=False)


def continue_exchange(rank: int, n: int, job: str, board: Board) -> Answer:
    """The same number of exchanges on every rank, enough to outlast the stops."""
    comm = connect(rank, n, job)
    send, recv = np.arange(n << 15), np.zeros(n << 15, np.int64)
    part = send.reshape(n, -1)[rank]
    wrong = 0

    def many() -> None:
        nonlocal wrong
        for _ in range(400):
            recv.fill(-1)
            board.words[rank] += 1
            comm.alltoall(send, recv, timeout=10)
            wrong += not (recv.reshape(n, -1) == part).all()

    return attempt(many, right=lambda: wrong == 0)
