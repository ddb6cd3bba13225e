"""spawn() with processes. The parent gives every rank one sealed memory file with the pickled call; a rank puts its
result into a memory file of its own and writes one byte into a pipe. So a rank that dies or stops half way can neither
block the parent nor send it a broken result. The results need no exit status, so they do not depend on how the parent
handles SIGCHLD, or on other parts of it that wait for all child processes."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import mmap
import os
import pickle
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from ._calls import pack_call, pack_result, unpack_call
from ._core import Error, PeerLostError, connect, describe_process
from ._descriptors import above_standard
from ._ended import EndedRanks
from ._job import job_name, new_secret
from ._outcomes import Outcome, call_rank, first_failure, unfinished
from ._printed import Printed
from ._signals import held_signals
from .launch import mark_as_rank

# How long to wait for the rank that caused a failure after other ranks noticed it.
_CAUSE_SECONDS = 0.5
# How long a rank may take to write its stack. A rank that does not handle the signal yet dies of it.
_STACK_SECONDS = 2.0
# How long a rank may take to leave, after its result or after SIGTERM, before SIGKILL.
_LEAVE_SECONDS = 2.0

_PR_SET_PDEATHSIG = 1

# Without a function to call in the child, Popen does not call the hooks of os.fork(), with which JAX warns.
_OWN_GROUP: dict[str, Any]
if sys.version_info >= (3, 11):
    _OWN_GROUP = {"process_group": 0}
else:
    _OWN_GROUP = {"preexec_fn": os.setpgrp}


class _Process:
    """The parent's side of one rank."""

    def __init__(
        self, rank: int, size: int, job: str, secret: str, call: int, ended: EndedRanks, printed: Printed
    ) -> None:
        self.rank = rank
        self._lost = ""
        self.board = above_standard(os.memfd_create("a2a-result", os.MFD_CLOEXEC))
        self.news, writer = map(above_standard, os.pipe())
        facts = (rank, size, job, os.getpid(), call, self.board, writer)
        # In ranks, too, a2a-sdk may have replaced this package's ``__init__.py``, which that module repairs.
        imports = "import a2a_comm; " if "a2a_comm" in sys.modules else ""
        imports += "from a2a._processes import rank_main"
        program = f"import sys; sys.path[:] = {sys.path!r}; {imports}; rank_main{facts!r}"
        env = os.environ | {
            "A2A_RANK": str(rank),
            "A2A_SIZE": str(size),
            "A2A_JOB": job,
            "A2A_LOCAL_RANK": str(rank),
            **ended.environment,
        }
        env.pop("A2A_RESTART", None)  # of this process, if it is a rank itself
        if secret:
            env["A2A_SECRET"] = secret
        try:
            # A process group of its own: Ctrl-C reaches only the parent, and the rank can be ended with its children.
            # Not a session: Linux schedules sessions as units (autogroup), and a yield to a peer would not reach it.
            with printed.streams() as streams:
                self.child = subprocess.Popen(
                    [sys.executable, "-c", program],
                    env=env,
                    stdin=subprocess.DEVNULL,
                    pass_fds=(call, self.board, writer),
                    stdout=streams.get("stdout"),
                    stderr=streams.get("stderr"),
                    **_OWN_GROUP,
                )
        except BaseException:
            os.close(self.news)
            os.close(self.board)
            raise
        finally:
            os.close(writer)

    def outcome(self) -> Outcome | None:
        """Return the outcome of the rank, or None as long as it runs. Never blocks."""
        death = self.death()
        if _readable([self.news], 0) and os.read(self.news, 1):
            with mmap.mmap(self.board, 0, prot=mmap.PROT_READ) as board:
                return _unpack(self.rank, pickle.loads(board))
        if death is None:
            return None
        if death.startswith("exited"):
            death += " before it returned"
        return Outcome(self.rank, error=PeerLostError(f"rank {self.rank} {death}"), time=time.monotonic())

    def death(self) -> str | None:
        # The child stays a zombie until close(), so that no other process or group gets its number before. If the
        # kernel or another part of this program has reaped it, its status is unknown, and its number is not used any
        # more.
        if self._lost:
            return self._lost
        try:
            state = os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            self.signal(signal.SIGKILL)  # its children: the group keeps the number as long as it has members
            self._lost = "ended; its exit status is lost to this process, as where SIGCHLD is ignored"
            return self._lost
        if state is None:
            return None
        if state.si_code == os.CLD_EXITED:
            return f"exited with code {state.si_status}"
        return f"was killed by {_signal_name(state.si_status)}"

    def stack(self) -> str:
        """Return the stack of a rank that does not end, which its fault handler writes."""
        size = os.fstat(self.board).st_size
        return os.pread(self.board, min(size, 1 << 16), 0).decode(errors="replace")

    def signal(self, number: int) -> None:
        if self._lost:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, number)

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        self.child.wait()
        os.close(self.news)
        os.close(self.board)


def run_processes(
    fn: Callable[..., Any], n: int, args: tuple[Any, ...], deadline: float, keep_going: bool
) -> list[Outcome]:
    call = _in_memory(pack_call(fn, args))
    ranks: list[_Process] = []
    job, secret = job_name(), new_secret()
    ended, printed = EndedRanks(job, n), Printed()
    try:
        for rank in range(n):
            with held_signals():
                ranks.append(_Process(rank, n, job, secret, call, ended, printed))
        return _collect(ranks, deadline, keep_going, ended, printed)
    finally:
        os.close(call)
        try:
            _end(ranks, printed)
        finally:
            printed.close()
            ended.close()


def _collect(
    ranks: list[_Process], deadline: float, keep_going: bool, told: EndedRanks, printed: Printed
) -> list[Outcome]:
    running = dict(enumerate(ranks))
    outcomes: list[Outcome] = []
    while running:
        # The pipe reports an end at once; the time limit finds ranks whose own children keep the pipe open.
        _readable([*(process.news for process in running.values()), *printed.pipes], 0.05)
        printed.copy()
        ended = {rank: outcome for rank, process in running.items() if (outcome := process.outcome()) is not None}
        for rank, outcome in ended.items():
            outcomes.append(outcome)
            del running[rank]
            told.add(rank, ranks[rank].death() or ("returned" if outcome.error is None else "failed"))
        failure = None if keep_going else first_failure(outcomes)
        if failure is not None and (not failure.follows or time.monotonic() > failure.time + _CAUSE_SECONDS):
            break
        if running and time.monotonic() > deadline:
            raise unfinished(len(ranks), outcomes, _stacks(list(running.values())))
        if not ended:
            time.sleep(0.001)  # the pipe of a dying rank is readable shortly before the rank is dead
    return sorted(outcomes, key=lambda outcome: outcome.rank)


def _readable(descriptors: list[int], seconds: float) -> bool:
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def _stacks(running: list[_Process]) -> str:
    for process in running:
        process.signal(signal.SIGUSR2)
    patience = time.monotonic() + _STACK_SECONDS
    while not all(process.stack() for process in running) and time.monotonic() < patience:
        time.sleep(0.01)
    time.sleep(0.05)  # the stacks may be written only in part yet
    return "".join(f"\nrank {process.rank} was at:\n{process.stack()}" for process in running)


def _end(ranks: list[_Process], printed: Printed) -> None:
    """End and reap all ranks. A rank that has given its result may leave by itself."""
    try:
        leaving = [process for process in ranks if _readable([process.news], 0)]
        for process in ranks:
            if process not in leaving:
                process.signal(signal.SIGTERM)
        deadline = time.monotonic() + _LEAVE_SECONDS
        while any(process.death() is None for process in ranks) and time.monotonic() < deadline:
            printed.copy()
            time.sleep(0.002)
    finally:
        for process in ranks:
            process.close()
        printed.copy()


def _in_memory(content: bytes) -> int:
    board = above_standard(os.memfd_create("a2a-call", os.MFD_CLOEXEC))
    with open(board, "wb", closefd=False) as file:
        file.write(content)
    return board


def _unpack(rank: int, message: tuple[str, Any, str, float]) -> Outcome:
    kind, content, text, when = message
    if kind == "value":
        try:
            return Outcome(rank, value=pickle.loads(content))
        except Exception as error:
            return Outcome(rank, error=error, traceback=traceback.format_exc(), time=time.monotonic())
    return Outcome(rank, error=pickle.loads(content), traceback=text, time=when)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def rank_main(rank: int, size: int, job: str, parent: int, call: int, board: int, news: int) -> None:
    """The program of one rank."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # inherited from the parent; this rank may start processes
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mark_as_rank()
    for descriptor in (call, board, news):
        os.set_inheritable(descriptor, False)
    if sys.stderr is not None:
        faulthandler.enable()
    with open(board, "r+b", buffering=0, closefd=False) as stack:
        faulthandler.register(signal.SIGUSR2, file=stack, all_threads=True)
        try:
            with mmap.mmap(call, 0, prot=mmap.PROT_READ) as file:
                fn, args = unpack_call(file)
            describe_process(job)
            value = call_rank(fn, args, connect(rank, size, job=job))
            message = ("value", pack_result(value), "", 0.0)
        except BaseException as error:
            message = ("error", _portable(error), traceback.format_exc(), time.monotonic())
        faulthandler.unregister(signal.SIGUSR2)
    content = pickle.dumps(message)
    os.ftruncate(board, len(content))
    with mmap.mmap(board, len(content)) as memory:
        memory[:] = content
    os.write(news, b".")
    os.close(news)
    sys.exit(1 if message[0] == "error" else 0)


def _portable(error: BaseException) -> bytes:
    """Return the pickled exception, or one with the same text if it cannot be pickled and unpickled."""
    if not isinstance(error, Exception):
        error = Error(f"{type(error).__name__}: {error}")  # SystemExit must not end the parent too
    try:
        content = pack_result(error)
        pickle.loads(content)
    except Exception:
        content = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return content
