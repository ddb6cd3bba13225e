"""Little memory, few descriptors, a tiny /dev/shm, and sizes beyond 2 GiB: right, or a clear error, never a signal."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..harness import OUTCOMES, Answer, End, NotRun, Report, attempt, connect, exchange, job_name, judge, run, worse
from ..rows import row

MIB = 1 << 20
# What the rank that meets its limit says, and what the others may see of that.
OWN, OTHERS = ("BackendError",), ("BackendError", "PeerLostError", "TimeoutError", "AbortedError")


def under_limit(rank: int, n: int, job: str, limit: Callable[[int], Any]) -> Answer:
    if rank == 1:
        limit(rank)

    def work() -> None:
        comm = connect(rank, n, job, timeout=1)
        for count in (1, 3000, 40_000):
            assert exchange(comm, count)
        tensor = comm.empty(MIB, "uint8")  # may be refused
        comm.alltoall(tensor[:n], np.empty(n, np.uint8))
        comm.close()

    return attempt(work)


def judge_limited(ends: list[End]) -> Report:
    """All is well; or the rank with the limit says what is wrong, and the others that they miss it."""
    worst = Report("right")
    for end in ends:
        answer = end.value
        if end.hung:
            outcome = "hang"
        elif (end.status or 0) < 0 or not isinstance(answer, Answer):
            outcome = "crash"
        elif answer.kind == "right":
            outcome = "right"
        else:
            clear = answer.error in (OWN if end.rank == 1 else OTHERS) and (end.rank == 1 or "rank" in answer.text)
            outcome = "clear" if clear or answer.error == "MemoryError" else "unclear"
        if OUTCOMES.index(outcome) > OUTCOMES.index(worst.outcome):
            said = f"{answer.error}: {answer.text}" if isinstance(answer, Answer) else f"status {end.status}"
            worst = Report(outcome, text=f"rank {end.rank}: {said}")
    return worst


def limited(limit: Callable[[int], Any]) -> Report:
    return judge_limited(run(3, under_limit, 3, job_name(), limit))


@row("few descriptors (RLIMIT_NOFILE)", "right, or BackendError", 6, 200)
def descriptors(chance: random.Random) -> Report:
    # Python itself and the guard's pipe need some.
    value = len(list(Path("/proc/self/fd").iterdir())) + chance.randrange(16)
    return limited(lambda _: resource.setrlimit(resource.RLIMIT_NOFILE, (value, value)))


@row("small files (RLIMIT_FSIZE)", "right, or BackendError", 4, 200)
def file_sizes(chance: random.Random) -> Report:
    value = chance.choice([0, 4096, MIB, 15 * MIB, 16 * MIB, 17 * MIB, 64 * MIB, chance.randrange(1 << 30)])
    return limited(lambda _: resource.setrlimit(resource.RLIMIT_FSIZE, (value, value)))


@row("little address space (RLIMIT_AS)", "right, or BackendError", 4, 200)
def address_space(chance: random.Random) -> Report:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    value = used + chance.choice([0, MIB, 4 * MIB, 24 * MIB, 128 * MIB, chance.randrange(1 << 28), 4 << 30])
    return limited(lambda _: resource.setrlimit(resource.RLIMIT_AS, (value, value)))


def call_without_threads(rank: int, job: str, name: str) -> list[Answer]:
    """Where the stack of no thread fits. The limit comes first, so that no stack is left from an earlier thread."""
    comm = connect(rank, 3, job)
    before = resource.getrlimit(resource.RLIMIT_AS)
    parked, over = [], threading.Event()
    if rank == 1:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 6 * MIB, before[1]))
        with contextlib.suppress(RuntimeError):
            while True:
                parked.append(threading.Thread(target=over.wait))
                parked[-1].start()
    first = attempt(lambda: comm.allgather_bytes(b"x") if name == "allgather_bytes" else comm.split(0))
    second = Answer("right" if exchange(comm, 10) else "wrong", 0.0)
    resource.setrlimit(resource.RLIMIT_AS, before)
    over.set()
    return [first, second]


@row("no further thread", "BackendError; MismatchError, and in step", 4, 200)
def threads(chance: random.Random) -> Report:
    ends = run(3, call_without_threads, job_name(), chance.choice(["allgather_bytes", "split"]))
    own = judge(ends, OWN, ["cannot start a thread"], but=[0, 2])
    others = judge(ends, ["MismatchError"], ["rank 1 does not take part", "cannot start a thread"], but=[1])
    return worse(own, others, judge(ends, (), at=1, must_raise=False))


_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 1 << 18


def tiny_shared_memory(rank: int) -> None:
    """A /dev/shm of 64 KiB, of this process alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.unshare(_CLONE_NEWNS) != 0
        or libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0
        or libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=64k") != 0
    ):
        raise NotRun(f"no mount namespace: {os.strerror(ctypes.get_errno())}")


@row("/dev/shm of 64 KiB", "the right result", 2, 100)
def shared_memory(chance: random.Random) -> Report:
    ends = run(3, under_limit, 3, job_name(), tiny_shared_memory)
    _skip_if_refused(ends)
    report = judge_limited(ends)
    return report if report.outcome != "clear" else Report("unclear", text=report.text)


def _skip_if_refused(ends: list[End]) -> None:
    for end in ends:
        if isinstance(end.value, Answer) and end.value.error == "NotRun":
            raise NotRun(end.value.text)


class MemoryGroup:
    """A control group of its own with a limit on memory, where this user may make one."""

    def __init__(self, limit: int) -> None:
        old, new = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
        parent, name = (old, "memory.limit_in_bytes") if old.is_dir() else (new, "memory.max")
        self.folder = parent / f"a2a-faults-{os.getpid()}"
        try:
            self.folder.mkdir()
            (self.folder / name).write_text(str(limit))
        except OSError as error:
            self.close()
            raise NotRun(f"no control group of its own: {error}") from None

    def enter(self, rank: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.folder.rmdir()


@row("little memory (control group)", "right, BackendError, or lost by name", 3, 100)
def control_group(chance: random.Random) -> Report:
    """The kernel may end the rank that goes beyond; the others have to learn that. It never gets a SIGBUS."""
    group = MemoryGroup(chance.choice([2, 4, 8, 16, 64]) * MIB)
    try:
        ends = run(3, under_limit, 3, job_name(), group.enter)
    finally:
        group.close()
    if ends[1].status == -9:
        ends[1].status, ends[1].value = 0, Answer("right", 0.0)
    return judge_limited(ends)


@row("more than 2 GiB and 2^31 elements", "exact", 0, 7, long=True)
def large(chance: random.Random, n: int, seconds: float) -> list[Report]:
    """The tests of large exchanges; each is one fault."""
    if seconds < 1800:
        raise NotRun("takes up to half an hour and 9 GiB of memory")
    tests = Path(__file__).parents[2] / "python" / "core" / "test_large.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", str(tests)]
    env = os.environ | {"A2A_TEST_LARGE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    words = [line.split()[0] for line in done.stdout.splitlines() if line.startswith(("PASSED", "FAILED", "ERROR"))]
    if not words:
        raise NotRun(f"the tests ended with exit code {done.returncode}, {done.stdout.strip()[-100:]}")
    return [Report("right" if word == "PASSED" else "silent", text=done.stdout[-600:]) for word in words]
