"""The thread that waits for the works of which a program has taken futures. One thread serves all: each of its waits
advances every operation of this rank, so a work that ends out of turn is only noticed a little later.

The thread also runs the callbacks of the futures. One that waits for a further future would wait for the thread itself,
so another thread takes its place then."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import a2a

from .._untraced import untraced

__all__ = ["complete_later"]

_SLICE = 0.005  # seconds of one wait for the first work; the others are looked at in between
_PATIENCE = 0.02  # seconds of a callback after which another thread waits for works
_IDLE = 5.0  # seconds without a work after which the threads end


@untraced
class _Completer:
    def __init__(self) -> None:
        self.process = os.getpid()
        self._news = threading.Condition()  # guards what follows
        self._waiting: collections.deque[tuple[Any, Callable[[], None]]] = collections.deque()
        self._server: threading.Thread | None = None  # waits for works, and runs callbacks
        self._watch: threading.Thread | None = None
        self._calling = float("inf")  # since when the server has been in a callback

    def add(self, work: Any, ended: Callable[[], None]) -> None:
        with self._news:
            self._waiting.append((work, ended))
            if self._server is None or self._server is threading.current_thread():  # this call is in a callback
                self._replace_server()
            elif len(self._waiting) == 1:
                self._news.notify_all()
            if self._watch is None:
                self._watch = self._start(self._look_after_server)

    def _start(self, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run, name="a2a futures", daemon=True)
        thread.start()
        return thread

    def _replace_server(self) -> None:
        self._calling = float("inf")
        self._server = self._start(self._serve)

    def _serve(self) -> None:
        me = threading.current_thread()
        while True:
            with self._news:
                if self._server is me and not self._waiting:
                    self._news.wait(_IDLE)
                if self._server is not me:
                    return
                if not self._waiting:
                    self._server = None
                    return
                first = self._waiting[0][0]
            with contextlib.suppress(a2a.Error):  # whoever looks at the work raises it
                first.wait(_SLICE)
            self._call_back(me)

    def _call_back(self, me: threading.Thread) -> None:
        """Run the callbacks of all works that have ended."""
        while True:
            with self._news:
                found = next((one for one in self._waiting if one[0].done()), None)
                if found is None or self._server is not me:
                    return
                self._waiting.remove(found)
                self._calling = time.monotonic()
            found[1]()
            with self._news:
                if self._server is me:
                    self._calling = float("inf")

    def _look_after_server(self) -> None:
        while True:
            with self._news:
                if not self._waiting:
                    self._news.wait(_IDLE)
                if not self._waiting:
                    self._watch = None
                    return
                self._news.wait(_PATIENCE)
                if self._waiting and time.monotonic() - self._calling > _PATIENCE:
                    self._replace_server()


_completer = _Completer()


@untraced
def complete_later(work: Any, ended: Callable[[], None]) -> None:
    """Call ``ended`` in another thread when the core's ``work`` has ended. It must not raise."""
    global _completer
    if _completer.process != os.getpid():  # a forked child has no threads
        _completer = _Completer()
    _completer.add(work, ended)
