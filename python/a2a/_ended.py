"""Messages about ranks that end: from a launcher to ranks that wait for others to join, and from a rank that fails to
its launcher. src/cpp/bootstrap/ended_ranks.h has the format."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import sys

from ._core import AbortedError, MismatchError, PeerLostError, TimeoutError
from ._descriptors import above_standard
from ._launchers import is_child_of_rank

VARIABLE = "A2A_ENDED"
# Errors that may be what a rank notices when another one fails.
_ECHOES = (PeerLostError, AbortedError, MismatchError, TimeoutError)
_MOST_TOLD = 4 << 20  # bytes; ranks write, too
RAISED, FOLLOWED = "raised", "gave up:"
"""The kinds of messages: of an error of the rank itself, and of one that another rank caused."""


class EndedRanks:
    """A file in memory, in no folder: ranks open it through this process, so it does not outlive the job."""

    def __init__(self, job: str, size: int) -> None:
        self._file = above_standard(os.memfd_create("a2a-ended", os.MFD_CLOEXEC))
        fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)  # ranks write, too
        self._write(f"{size} {job}")

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables by which ranks find it."""
        return {VARIABLE: f"/proc/{os.getpid()}/fd/{self._file}"}

    def add(self, rank: int, how: str) -> None:
        self._write(f"{rank} {how}")

    def last_words(self, rank: int) -> str:
        """Return the reason that a failed rank gave; "" if it gave none."""
        text = os.pread(self._file, min(os.fstat(self._file).st_size, _MOST_TOLD), 0).decode(errors="replace")
        told = [line.partition(" ")[2] for line in text.splitlines()[1:] if line.startswith(f"{rank} ")]
        return next((words for words in told if words.startswith((RAISED, FOLLOWED))), "")

    def close(self) -> None:
        os.close(self._file)

    def _write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode(errors="replace"))


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
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        if os.pread(file, 4096, 0).partition(b"\n")[0].partition(b" ")[2] == job.encode():
            os.write(file, f"{rank} {_words(error)}\n".encode(errors="replace"))
        os.close(file)


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
