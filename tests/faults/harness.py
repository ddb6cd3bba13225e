"""Real rank processes under a guard: forked, watched, killed at a limit; how each of them ended, and what it left."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import gc
import mmap
import os
import pickle
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import a2a

KILLED = -int(signal.SIGKILL)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_prctl = ctypes.CDLL(None).prctl


class NotRun(Exception):
    """This machine cannot do it; the message says why."""


@dataclass
class Answer:
    """What one call did on one rank. ``time`` is on the monotonic clock that all processes share."""

    kind: str  # "right", "wrong" or "error"
    time: float
    error: str = ""
    text: str = ""
    seconds: float = 0.0
    note: Any = None


@dataclass
class End:
    """How a rank ended: with the value of its program, or without."""

    rank: int
    value: Any = None
    status: int | None = None
    """Exit code; negative for a signal."""
    hung: bool = False
    died: float = 0.0
    """When the guard saw its end."""

    @property
    def answers(self) -> list[Answer]:
        return list(self.value) if isinstance(self.value, list | tuple) else [self.value]


@dataclass
class Report:
    """How one fault ended for the ranks that it did not hit."""

    outcome: str
    seconds: float | None = None
    text: str = ""
    note: str = ""
    """What else was measured."""


# From good to bad. A trial is as bad as the worst of its ranks.
OUTCOMES = ("right", "clear", "unclear", "silent", "abort", "hang", "crash")


# ---- in a rank -------------------------------------------------------------------------------------------------------


def attempt(call: Callable[..., Any], *args: Any, right: Callable[[], bool] = lambda: True, **kwargs: Any) -> Answer:
    """Makes the call. Whether its result is right is looked at only when it returns."""
    begin = time.monotonic()
    try:
        call(*args, **kwargs)
    except BaseException as error:
        now = time.monotonic()
        return Answer("error", now, type(error).__name__, str(error), now - begin)
    now = time.monotonic()
    return Answer("right" if right() else "wrong", now, seconds=now - begin)


def connect(
    rank: int, size: int, job: str, timeout: float = 30.0, secret: str = "", hosts: str = "ab"
) -> a2a.Communicator:
    """Of ranks on one host, or, where the job is a network_job(), of ranks that its network connects: they take turns
    to be on one of these hosts."""
    if not between_hosts(job):
        return a2a.init(rank=rank, size=size, job=job, timeout=timeout)
    os.environ["A2A_HOSTS"] = ",".join(hosts[r % len(hosts)] for r in range(size))
    os.environ["A2A_NETWORK"], _, place = job.partition("://")
    os.environ["UCX_TLS"] = "tcp"  # it would find that the hosts share a kernel, and use its memory
    address, _, name = place.partition("/")
    meeting = a2a.TcpBootstrap(rank, size, address, job=name, secret=secret or name, timeout=timeout)
    return a2a.init(rank=rank, size=size, bootstrap=meeting, timeout=timeout)


def job_name() -> str:
    return f"fault-{os.getpid()}-{secrets.token_hex(6)}"


def between_hosts(job: str) -> bool:
    return "://" in job


def network_job(network: str = "tcp") -> str:
    """A job whose ranks meet at a free port of this machine and exchange over that network, "tcp" or "ucx"."""
    if network == "ucx":
        need_ucx()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"{network}://127.0.0.1:{probe.getsockname()[1]}/{job_name()}"


@functools.cache
def need_ucx() -> None:
    """Asked in a child, so that this process does not load UCX: those that it forks would all inherit it."""
    code = "from a2a import _core; _core.library_of('ucx')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotRun(done.stderr.strip().rpartition("\n")[2])


def exchange(comm: a2a.Communicator, count: int, round_: int = 0) -> bool:
    """An exchange of ``count`` elements for each pair; whether every one of them is right."""
    send = np.repeat(np.arange(comm.size) + 100 * comm.rank + round_, count)
    recv = np.full_like(send, -1)
    comm.alltoall(send, recv)
    expected = 100 * np.arange(comm.size) + comm.rank + round_
    return bool((recv.reshape(comm.size, count).T == expected).all())


def works(comm: a2a.Communicator) -> bool:
    return all(exchange(comm, count) for count in (1, 3000, 40_000))


def arm(point: str, count: int, number: int = signal.SIGKILL) -> None:
    """This process gets the signal when it passes that point of the library for the count-th time from now on."""
    os.environ["A2A_FAULT"] = f"{point}:{count}:{int(number)}"


class Board:
    """Words that all processes see."""

    def __init__(self, words: int) -> None:
        self.words = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")
        self.size = words

    def await_all(self, count: int, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while any(self.words[i] < count for i in range(self.size)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"ranks did not come: {list(self.words[: self.size])}")
            time.sleep(0.0005)


# ---- the guard -------------------------------------------------------------------------------------------------------


def be_guard() -> None:
    """Descendants that lose their parent become children of this process, so that none can get away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def fork(body: Callable[[], Any], silent: bool = True) -> tuple[int, int]:
    """Returns (pid, descriptor on which the pickled value of ``body`` comes)."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            die_with_parent()
            faulthandler.disable()  # a crash is a result
            if silent:
                os.dup2(os.open(os.devnull, os.O_RDWR), 2)
            try:
                value = body()
            except BaseException as error:
                value = Answer("error", time.monotonic(), type(error).__name__, str(error))
            with os.fdopen(writer, "wb") as file:
                file.write(pickle.dumps(value))
        finally:
            os._exit(0)
    os.close(writer)
    return pid, reader


def run(
    n: int,
    program: Callable[..., Any],
    *args: Any,
    during: Callable[[list[int]], Any] | None = None,
    limit: float = 20.0,
) -> list[End]:
    """Runs ``program(rank, *args)`` on n forked ranks, and ``during(pids)`` here meanwhile. Ranks that are not done
    after ``limit`` seconds hang: they are killed."""
    started = [fork(lambda rank=rank: program(rank, *args)) for rank in range(n)]  # type: ignore[misc]
    pids = [pid for pid, _ in started]
    ends = [End(rank) for rank in range(n)]
    try:
        if during is not None:
            during(pids)
        _watch(ends, pids, [reader for _, reader in started], time.monotonic() + limit)
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for end, pid in zip(ends, pids, strict=True):
            end.status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for _, reader in started:
            os.close(reader)
    return ends


def _watch(ends: list[End], pids: list[int], readers: list[int], deadline: float) -> None:
    deaths = {os.pidfd_open(pid): end for pid, end in zip(pids, ends, strict=True)}
    news = dict(zip(readers, ends, strict=True))
    received = {reader: b"" for reader in readers}
    try:
        while deaths or news:
            ready, _, _ = select.select([*deaths, *news], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                for end in deaths.values():
                    end.hung = True
                break
            for fd in ready:
                if fd in deaths:
                    deaths.pop(fd).died = time.monotonic()
                    os.close(fd)
                elif data := os.read(fd, 1 << 16):
                    received[fd] += data
                else:
                    del news[fd]
    finally:
        for fd in deaths:
            os.close(fd)
    for reader, end in zip(readers, ends, strict=True):
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            end.value = pickle.loads(received[reader])


# ---- judging ---------------------------------------------------------------------------------------------------------


def outcome_of(end: End, answer: Answer | None, errors: Sequence[str], names: Sequence[str]) -> str:
    if end.hung:
        return "hang"
    if end.status is not None and end.status < 0:
        return "abort" if end.status == -signal.SIGABRT else "crash"
    if answer is None:
        return "crash"
    if answer.kind != "error":
        return {"right": "right", "wrong": "silent"}[answer.kind]
    return "clear" if answer.error in errors and all(name in answer.text for name in names) else "unclear"


def judge(
    ends: Sequence[End],
    errors: Sequence[str],
    names: Sequence[str] = (),
    since: float | None = None,
    but: Sequence[int] = (),
    at: int = 0,
    must_raise: bool = True,
) -> Report:
    """The worst of what the ranks met, those in ``but`` apart, at their answer number ``at``. Clear is an error of one
    of these classes whose message holds all ``names``; where the call ``must_raise``, success is silent."""
    worst, text, seconds = -1, "", 0.0
    for end in ends:
        if end.rank in but:
            continue
        answer = end.answers[at] if len(end.answers) > at else None
        if not isinstance(answer, Answer):
            answer = None
        outcome = outcome_of(end, answer, errors, names)
        if must_raise and outcome == "right":
            outcome = "silent"
        if answer is not None and since is not None:
            seconds = max(seconds, answer.time - since)
        if OUTCOMES.index(outcome) > worst:
            worst = OUTCOMES.index(outcome)
            said = f"{answer.error}: {answer.text}" if answer else f"ended with {end.status} before, {end.value}"
            text = f"rank {end.rank}: {said}"
    return Report(OUTCOMES[worst], seconds if since is not None else None, text)


def worse(*reports: Report) -> Report:
    return max(reports, key=lambda report: OUTCOMES.index(report.outcome))


# ---- what is left ----------------------------------------------------------------------------------------------------

# A process makes these once and keeps them for all its communicators.
_KEPT = ("/memfd:a2a (deleted)", "/memfd:a2a-common (deleted)")


@dataclass(frozen=True)
class Belongings:
    """What a trial could leave: files in shared memory and the temporary directory, descriptors and children here."""

    files: frozenset[str]
    descriptors: frozenset[tuple[int, str]]
    processes: frozenset[int]

    @staticmethod
    def now() -> Belongings:
        gc.collect()
        temporary = os.environ.get("A2A_FAULTS_TMP")  # all of it is ours; in shared memory others come and go
        files = {str(path) for path in Path("/dev/shm").glob("*a2a*")} | _files_of_mpi()
        files |= {str(path) for path in Path(temporary).rglob("*")} if temporary else set()
        return Belongings(frozenset(files), frozenset(_descriptors()), frozenset(_children()))

    def has_more_than(self, before: Belongings) -> bool:
        return bool(
            self.files - before.files or self.descriptors - before.descriptors or self.processes - before.processes
        )

    def left_since(self, before: Belongings) -> dict[str, int]:
        """Counts what was not there before, and ends such processes."""
        for pid in self.processes - before.processes:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return {
            "files": len(self.files - before.files),
            "descriptors": len(self.descriptors - before.descriptors),
            "processes": len(self.processes - before.processes),
        }


def _files_of_mpi() -> set[str]:
    from .launched import files_in_shared_memory

    return files_in_shared_memory()


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        pids: list[str] = []
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended since
            pids = (task / "children").read_text().split()
        for pid in map(int, pids):
            # One that has ended and is an orphan of a rank waits for nobody but this guard.
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == pid:
                    continue
            found.add(pid)
    return found


def _descriptors() -> set[tuple[int, str]]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists this directory
            target = str(entry.readlink())
            if target not in _KEPT and not target.startswith("/proc/"):
                found.add((int(entry.name), target))
    return found
