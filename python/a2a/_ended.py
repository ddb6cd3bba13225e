"""Messages about ranks that end: from a launcher to ranks that wait for others to join, and from a rank that fails to
its launcher. src/cpp/bootstrap/ended_ranks.h has the format."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import sys
from pathlib import Path
from typing import IO

from ._core import AbortedError, MismatchError, PeerLostError, TimeoutError
from ._descriptors import above_standard
from ._launchers import is_child_of_rank

VARIABLE = "A2A_ENDED"
_RESTARTS = "A2A_RESTARTS"
# Errors that may be what a rank notices when another one fails.
_ECHOES = (PeerLostError, AbortedError, MismatchError, TimeoutError)
_MOST_TOLD = 4 << 20  # bytes; ranks write, too
RAISED, FOLLOWED = "raised", "gave up:"
"""The kinds of messages: of an error of the rank itself, and of one that another rank caused."""
_TO_LAUNCHER = "launcher: "
"""Begins the line with the descriptor of the file for the reasons of ranks that may be started again."""


class EndedRanks:
    """A file in memory, in no folder: ranks open it through this process, so it does not outlive the job. ``restarts``
    is how many failed ranks the launcher starts again at most. With 0 the reason of a failing rank stands in the same
    file, for all to read. Otherwise only the launcher knows whether the rank has ended for good, so it alone reads the
    reasons: they are in a file of their own."""

    def __init__(self, job: str, size: int, restarts: int = 0) -> None:
        self._file = _appended("a2a-ended")
        self._reasons = _appended("a2a-reasons") if restarts else self._file
        self._write(f"{size} {job}")
        if restarts:
            self._write(f"{_TO_LAUNCHER}{self._reasons}")
        self._restarts = restarts
        self._begins: dict[int, int] = {}  # where the reasons of the present process of a rank begin

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables by which ranks find it."""
        return {VARIABLE: f"/proc/{os.getpid()}/fd/{self._file}", _RESTARTS: str(self._restarts)}

    def add(self, rank: int, how: str) -> None:
        """Tell the others that a rank has ended for good."""
        self._write(f"{rank} {how}")

    def start_again(self, rank: int) -> None:
        """Forget the reasons that earlier processes of the rank gave."""
        self._begins[rank] = os.fstat(self._reasons).st_size

    def last_words(self, rank: int) -> str:
        """Return the reason that a failed rank gave; "" if it gave none."""
        begin = self._begins.get(rank, 0)
        size = min(os.fstat(self._reasons).st_size - begin, _MOST_TOLD)
        text = os.pread(self._reasons, size, begin).decode(errors="replace")
        told = [line.partition(" ")[2] for line in text.splitlines() if line.startswith(f"{rank} ")]
        return next((words for words in told if words.startswith((RAISED, FOLLOWED))), "")

    def close(self) -> None:
        for file in {self._file, self._reasons}:
            os.close(file)

    def _write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode(errors="replace"))


def _appended(name: str) -> int:
    file = above_standard(os.memfd_create(name, os.MFD_CLOEXEC))
    fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)  # ranks write, too
    return file


_told = False


def tell_why_it_fails() -> None:
    """Make this process, if it is a rank of ``a2a run``, tell its launcher when it ends by an exception."""
    global _told
    env = os.environ
    if _told or not all(env.get(name) for name in (VARIABLE, "A2A_RANK", "A2A_JOB")) or is_child_of_rank(env):
        return
    _told = True
    atexit.register(_tell, os.getpid(), env[VARIABLE], env["A2A_RANK"], env["A2A_JOB"])


def _tell(process: int, path: str, rank: str, job: str) -> None:
    error = getattr(sys, "last_value", None)  # the interpreter sets it when it prints a traceback and ends
    if error is None or os.getpid() != process:
        return
    with contextlib.suppress(OSError), _opened(Path(path)) as notices:
        head = os.pread(notices.fileno(), 4096, 0).decode(errors="replace")
        first, second, *_ = [*head.split("\n", 2), ""]
        if first.partition(" ")[2] != job:
            return
        descriptor = second.removeprefix(_TO_LAUNCHER)
        elsewhere = descriptor != second and descriptor.isdigit()
        with _opened(Path(path).parent / descriptor if elsewhere else Path(path)) as reasons:
            reasons.write(f"{rank} {_words(error)}\n".encode(errors="replace"))


def _opened(path: Path) -> IO[bytes]:
    flags = os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags), "r+b", buffering=0)


def _words(error: BaseException) -> str:
    said = str(error).strip().splitlines()
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.").removeprefix("__main__.")
    followed = any(isinstance(link, _ECHOES) for link in _chain(error))
    return f"{FOLLOWED if followed else RAISED} {name}" + (f": {said[0][:500]}" if said else "")


def _chain(error: BaseException | None) -> list[BaseException]:
    """Return the error and its causes."""
    chain: list[BaseException] = []
    while error is not None and not any(error is link for link in chain):
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain
