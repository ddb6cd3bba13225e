"""One process of a rank of ``a2a run``."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import IO

__all__ = ["RankProcess"]

_PR_SET_PDEATHSIG = 1
# Looked up before fork: a child between fork and exec may only call it.
_prctl = ctypes.CDLL(None).prctl


class RankProcess:
    """A process, with all that it starts. Dead, it stays a zombie until reap(), so that the number of its group cannot
    become another's."""

    def __init__(self, program: Sequence[str], env: dict[str, str], piped: bool) -> None:
        launcher = os.getpid()

        def follow_launcher() -> None:
            # A process group of its own: only the launcher gets a terminal's Ctrl-C, and a rank is ended with its
            # children. Not a session: Linux schedules sessions as units (autogroup), and a yield to a peer would not
            # reach it.
            os.setpgrp()
            # The kernel ends the rank when the launcher dies, however it dies; it may be dead already.
            if _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0 or os.getppid() != launcher:
                os._exit(1)

        pipe = subprocess.PIPE if piped else None
        self._child = subprocess.Popen(
            program, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, preexec_fn=follow_launcher
        )

    @property
    def outputs(self) -> list[tuple[IO[bytes], int]]:
        """Return the pipes from which its output is read, each with the descriptor to which it goes. The caller closes
        them."""
        streams = ((self._child.stdout, 1), (self._child.stderr, 2))
        return [(stream, target) for stream, target in streams if stream is not None]

    def end(self) -> tuple[int, str] | None:
        """Return its exit code, 128 + number for a signal, and how it ended in words; None as long as it runs."""
        state = os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if state is None:
            return None
        if state.si_code == os.CLD_EXITED:
            return state.si_status, f"exited with code {state.si_status}"
        return 128 + state.si_status, f"was killed by {_name(state.si_status)}"

    def signal(self, number: int) -> None:
        """Send a signal to it and to what it has started, also to what it left behind when it ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)

    def reap(self) -> None:
        """Wait until it has ended. Only its pipes may be used after this."""
        self._child.wait()


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
