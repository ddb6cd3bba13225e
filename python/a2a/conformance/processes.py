"""The processes of a session's ranks: starts them, runs one of them, and ends them."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import secrets
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from .. import _core, frameworks
from .._signals import held_signals
from ..launch import Launch
from . import mpiexec
from .groups import OPERATION_SECONDS, WAYS, Place
from .rank import Task, preload, prepare, run, tell, verdict_of

__all__ = ["Child", "Processes", "die_with_parent", "run_rank"]

LAUNCHED = "a2a.conformance.launched"
_PR_SET_PDEATHSIG = 1


class Child:
    """A child process, or a descendant that has sent its rank, watched by a descriptor that is readable once it has
    ended."""

    def __init__(self, pid: int, ranks: Sequence[int], launcher: bool = False) -> None:
        self.ranks = tuple(ranks)
        """The ranks that end when it does."""
        self._pid, self._launcher = pid, launcher
        self._watch = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._watch

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._watch, number)

    def how_it_ended(self) -> str:
        """Return the end of a child that has ended: "SIGSEGV", "exit code 3". For a descendant only its parent
        knows."""
        state = None
        with contextlib.suppress(ChildProcessError):
            state = os.waitid(os.P_PIDFD, self._watch, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if state is None:
            return "the process ended"
        if state.si_code != os.CLD_EXITED:
            return signal.Signals(state.si_status).name
        if self._launcher and state.si_status > 128:  # the signal that ended a rank
            return signal.Signals(state.si_status - 128).name
        return f"exit code {state.si_status}"

    def close(self) -> None:
        """Kill it, with its process group if it has one of its own, and reap it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(self._pid) == self._pid:
                os.killpg(self._pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self._watch, os.WEXITED)
        os.close(self._watch)


class Processes:
    """A context manager: ranks run tasks in it, and none of their processes is left after it."""

    def __init__(self, how: str, ranks: int, tasks: Sequence[Task], address: str) -> None:
        self._how, self._ranks, self._tasks, self._address = how, ranks, tasks, address
        self.children: list[Child] = []

    def __enter__(self) -> Processes:
        job = f"conformance-{secrets.token_hex(8)}"
        with contextlib.ExitStack() as stack:
            folder = None
            if WAYS[self._how].folder:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="a2a-conformance-")))
            stack.callback(self._end)
            self._start(Place(self._ranks, job, folder, _free_ports(self._ranks + 1)), stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        if WAYS[self._how].launcher == "mpiexec":  # it is ended first, because only it knows all of its descendants
            for number in (0, signal.SIGTERM):
                for child in self.children:
                    child.signal(number)
                _wait_for(self.children, 1.0)
        for child in self.children:
            child.close()

    def _start(self, place: Place, stack: contextlib.ExitStack) -> None:
        everyone = range(self._ranks)
        launcher = WAYS[self._how].launcher
        if launcher in ("fork", "threads"):
            preload(self._tasks, WAYS[self._how])
        if launcher == "mpiexec":
            file = stack.enter_context(self._session(place))
            command = mpiexec.command(self._ranks, "-m", LAUNCHED, file)
            self.children.append(Child(_fork(lambda: os.execvp(command[0], command)), everyone, launcher=True))
        elif launcher == "exec":
            file = stack.enter_context(self._session(place))
            for rank in everyone:
                program = [sys.executable, "-m", LAUNCHED, file, str(rank)]
                self.children.append(Child(_fork(partial(os.execv, sys.executable, program)), [rank]))
        elif launcher == "threads":
            self.children.append(Child(_fork(self._threads), everyone))
        else:
            for rank in everyone:
                self.children.append(Child(_fork(partial(self._process, rank, place)), [rank]))

    def _process(self, rank: int, place: Place) -> None:
        run_rank(self._how, rank, place, self._tasks, self._address)

    def _threads(self) -> None:
        def body(rank: int, bootstrap: _core.CoreBootstrap) -> None:
            comm = _core.connect(rank, self._ranks, bootstrap=bootstrap, timeout=OPERATION_SECONDS)
            prepared = prepare(self._tasks, rank, WAYS[self._how])
            with comm, _connected(self._address, rank) as runner:
                run(self._tasks, rank, comm, WAYS[self._how], prepared, runner)

        for name in {name for task in self._tasks for name in task.frameworks}:
            with contextlib.suppress(Exception):  # each rank tells it
                frameworks.load(name).prepare(0)  # in one thread, before there are several
        meeting = enumerate(_core.thread_bootstraps(self._ranks))
        threads = [threading.Thread(target=body, args=one, daemon=True) for one in meeting]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @contextlib.contextmanager
    def _session(self, place: Place) -> Iterator[str]:
        """Yield, for ranks that are other programs, the path of a file that a2a.conformance.launched reads. It is in no
        folder, so it does not outlive this process."""
        cases = list({id(task.case): task.case for task in self._tasks}.values())
        number = {id(case): at for at, case in enumerate(cases)}
        given = {
            "how": self._how,
            "ranks": self._ranks,
            "job": place.job,
            "address": self._address,
            "runner": os.getpid(),
            "cases": [case.facts for case in cases],
            "tasks": [[number[id(task.case)], task.dtype, task.signatures, task.frameworks] for task in self._tasks],
        }
        with os.fdopen(os.memfd_create("a2a-conformance"), "w", encoding="utf-8") as file:
            json.dump(given, file)
            file.flush()
            yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


def run_rank(how: str, rank: int, place: Place, tasks: Sequence[Task], address: str) -> None:
    """Run a rank that is a process. ``rank`` is -1 where the group gives the number."""
    way = WAYS[how]
    assert way.join is not None
    with contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(way.join(rank, place))
        except Exception as error:
            own = rank if rank >= 0 else Launch.from_environ().rank
            with _connected(address, own) as runner:
                tell(runner, {"rank": own, "apart": verdict_of(error, way)})
            raise
        rank = group.rank if rank < 0 else rank
        prepared = prepare(tasks, rank, way)
        with _connected(address, rank) as runner:
            run(tasks, rank, group, way, prepared, runner)


@contextlib.contextmanager
def _connected(address: str, rank: int) -> Iterator[socket.socket]:
    """Yield the connection to the runner, on which this rank's number comes first."""
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(address)
        tell(end, {"rank": rank})
        yield end


def _fork(body: Callable[[], None]) -> int:
    parent = os.getpid()
    with held_signals() as release:
        pid = os.fork()
        if pid == 0:
            _run_child(body, parent, release)
    return pid


def _run_child(body: Callable[[], None], parent: int, release: Callable[[], None]) -> NoReturn:
    try:
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        os.setpgid(0, 0)  # only the runner gets Ctrl-C; it ends the ranks
        faulthandler.disable()  # a crash is a result, which handlers of a framework would delay
        for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
            signal.signal(number, signal.SIG_DFL)
        release()
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        body()
    except BaseException:
        os._exit(1)
    os._exit(0)


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _free_ports(count: int) -> tuple[int, ...]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return tuple(probe.getsockname()[1] for probe in probes)


def _wait_for(children: Sequence[Child], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for child in children:
        select.select([child], [], [], max(0.0, deadline - time.monotonic()))
