"""Signals that wait while a process is started."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["held_signals"]


@contextlib.contextmanager
def held_signals() -> Iterator[set[int]]:
    """Hold SIGINT and SIGTERM back until the end of the block. What their handlers raise there would be lost in the
    hooks of os.fork(), or come between the start of a process and the note of its number. Yields the signals that were
    held back before; the new process sets them with ``signal.pthread_sigmask(signal.SIG_SETMASK, ...)``."""
    before = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))}
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
