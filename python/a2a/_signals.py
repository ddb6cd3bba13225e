"""Signals that wait while a process is started."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

__all__ = ["held_signals"]


@contextlib.contextmanager
def held_signals() -> Iterator[Callable[[], None]]:
    """Call Python's handlers of SIGINT and SIGTERM only at the end of the block. Python loses an exception that a
    handler raises in the hooks of os.fork(). One between the start of a process and the note of its number leaves the
    process behind. Yields a function that gives a forked child the handlers back. A mask of the main thread does not
    suffice: another thread takes the signal, and Python calls the handler in the main thread all the same."""
    came: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():  # the only one in which Python calls handlers
        numbers = (signal.SIGINT, signal.SIGTERM)
        handlers = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}

    def catch_up() -> None:
        for number in came:
            signal.raise_signal(number)

    def release() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    with contextlib.ExitStack() as stack:
        stack.callback(catch_up)
        for number, handler in handlers.items():  # one callback for each: a handler that is back may raise at once
            stack.callback(signal.signal, number, handler)
            signal.signal(number, lambda number, _: came.append(number))
        yield release
