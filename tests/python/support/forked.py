"""Ranks for tests of faults: forked, which is cheap, from a process that holds nothing but NumPy and this package.

A test that is marked ``@apart`` runs in such a process. There it may fork ranks with ``run``, which takes any function,
kill them, and change limits and variables, and none of it reaches the process that runs the tests.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import os
import pickle
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from possessions import children, descriptors, shared_files

import a2a

_STAGE_SECONDS = 110


@dataclass
class End:
    """How a forked rank ended. Times are on the monotonic clock that all processes share."""

    rank: int
    value: Any = None
    error: BaseException | None = None
    time: float = 0.0
    status: int | None = None
    """Exit code; negative for a signal."""
    trace: str = ""

    @property
    def text(self) -> str:
        return "" if self.error is None else str(self.error)


def job_name() -> str:
    return f"fault-{os.getpid()}-{secrets.token_hex(6)}"


def connect(rank: int, size: int, job: str, timeout: float = 20.0) -> a2a.Communicator:
    return a2a.init(rank=rank, size=size, job=job, timeout=timeout)


def die_with_parent() -> None:
    """Nothing of a test that is ended from outside stays behind, a stopped process neither."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


# ---- ranks -----------------------------------------------------------------------------------------------------------


def _child(pipe: int, rank: int, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    end = End(rank)
    try:
        end.value = fn(rank, *args)
        end.time = time.monotonic()
    except BaseException as error:
        end.time, end.error, end.trace = time.monotonic(), error, traceback.format_exc()
    try:
        data = pickle.dumps(end)
    except Exception as error:
        data = pickle.dumps(End(rank, error=RuntimeError(f"rank {rank}: {end!r} cannot be pickled: {error}")))
    with os.fdopen(pipe, "wb") as file:
        file.write(data)


def fork(fn: Callable[..., Any], rank: int, args: tuple[Any, ...]) -> tuple[int, int]:
    """Returns (pid, descriptor on which the End comes)."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            die_with_parent()
            _child(writer, rank, fn, args)
        finally:
            os._exit(0)
    os.close(writer)
    return pid, reader


def run(
    n: int, fn: Callable[..., Any], *args: Any, during: Callable[[list[int]], Any] | None = None, timeout: float = 30.0
) -> list[End]:
    """Runs ``fn(rank, *args)`` on n forked ranks. ``during(pids)`` runs here meanwhile. A rank that is not done after
    ``timeout`` seconds is killed, and the test fails; so it does when ranks leave a descriptor or a file behind."""
    before = descriptors(), shared_files()
    started = [fork(fn, rank, args) for rank in range(n)]
    pids = [pid for pid, _ in started]
    readers = {reader: rank for rank, (_, reader) in enumerate(started)}
    received = [b""] * n
    late: list[int] = []
    try:
        if during is not None:
            during(pids)
        late = _collect(readers, received, time.monotonic() + timeout)
    finally:
        for reader, rank in readers.items():
            os.close(reader)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[rank], signal.SIGKILL)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    ends = [pickle.loads(data) if data else End(rank) for rank, data in enumerate(received)]
    for end, status in zip(ends, statuses, strict=True):
        end.status = status
    assert not late, f"ranks {late} hang; all ranks ended so: {ends}"
    assert (descriptors(), shared_files()) == before, (
        f"left behind: {descriptors()}, {shared_files()}; before: {before}"
    )
    return ends


def _collect(readers: dict[int, int], received: list[bytes], deadline: float) -> list[int]:
    """Reads what the ranks say at their end, and returns those that have not ended at the deadline."""
    while readers:
        ready, _, _ = select.select(list(readers), [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            return sorted(readers.values())
        for reader in ready:
            data = os.read(reader, 1 << 16)
            if data:
                received[readers[reader]] += data
            else:
                del readers[reader]
                os.close(reader)
    return []


def values(ends: list[End]) -> list[Any]:
    """What the ranks returned. Fails when one of them raised or died."""
    for end in ends:
        assert end.error is None and end.status == 0, f"rank {end.rank} ended with status {end.status}\n{end.trace}"
    return [end.value for end in ends]


def raised(kind: type[BaseException], fn: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The text of the error that the call raises, which must be of this very class."""
    try:
        fn(*args, **kwargs)
    except kind as error:
        assert type(error) is kind, repr(error)
        return str(error)
    raise AssertionError(f"{fn} did not raise {kind.__name__}")


def assert_usable(comm: a2a.Communicator) -> None:
    """An exchange of each kind of path is right."""
    for count in (1, 3000, 100_000):
        send = np.repeat(np.arange(comm.size) + 100 * comm.rank + count, count)
        recv = np.full_like(send, -1)
        comm.alltoall(send, recv)
        assert (recv.reshape(comm.size, count).T == 100 * np.arange(comm.size) + comm.rank + count).all(), count


# ---- the process in which a test runs --------------------------------------------------------------------------------


def apart(test: Callable[..., None]) -> Callable[..., None]:
    """The test in a process of its own; its arguments are pickled, so no fixtures."""

    @functools.wraps(test)
    def run_apart(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        kind, text = _template().run(test.__module__, test.__qualname__, args, kwargs)
        if kind == "skipped":
            pytest.skip(text)
        if kind != "passed":
            pytest.fail(text, pytrace=False)

    return run_apart


class _Template:
    """A process that imported the package once and forks one process per test."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        code = f"import sys; sys.path[:] = {sys.path!r}; import forked; forked._serve({theirs.fileno()})"
        self.process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()])
        theirs.close()
        self.connection = Connection(ours.detach())
        atexit.register(self.stop)

    def run(self, *test: Any) -> tuple[str, str]:
        result = ("failed", "the process of the test died")
        try:
            self.connection.send(test)
            while (message := self.connection.recv())[0] != "ended":
                result = message
        except BaseException:  # the test's time is over: what it still says is not for the next one
            _template.cache_clear()
            self.process.kill()
            self.stop()
            raise
        if message[1] != 0 and result[0] == "passed":
            result = ("failed", f"the process of the test ended with {message[1]}")
        return result

    def stop(self) -> None:
        self.connection.close()
        self.process.wait(timeout=10)


@functools.cache
def _template() -> _Template:
    return _Template()


def _serve(fd: int) -> None:
    die_with_parent()
    connection = Connection(fd)
    with contextlib.suppress(EOFError):
        while True:
            test = connection.recv()
            pid = os.fork()
            if pid == 0:
                _stage(connection, *test)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            connection.send(("ended", status))


def _stage(connection: Connection, module: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        die_with_parent()
        signal.alarm(_STAGE_SECONDS)
        test = getattr(importlib.import_module(module), name).__wrapped__
        try:
            test(*args, **kwargs)
            gc.collect()
            assert not children(), f"left processes behind: {children()}"
            connection.send(("passed", ""))
        except pytest.skip.Exception as reason:
            connection.send(("skipped", str(reason)))
        except BaseException as error:
            shown = traceback.TracebackException.from_exception(error, capture_locals=True)
            connection.send(("failed", "".join(shown.format())[-20_000:]))
    finally:
        os._exit(0)
