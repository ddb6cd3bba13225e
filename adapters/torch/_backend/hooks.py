"""What programs have called at the end of operations, and before a backend aborts."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

from torch._C import _distributed_c10d as _c10d

from .._operations.work import FinishedWork, Work
from .._untraced import untraced

__all__ = ["AbortHooks", "CompletionHook", "handed", "handing"]

_KINDS = {
    "all_to_all_single": "ALLTOALL_BASE",
    "alltoall": "ALLTOALL",
    "all_gather_single": "_ALLGATHER_BASE",
    "reduce_scatter_single": "_REDUCE_SCATTER_BASE",
    "gather_single": "GATHER",
    "recv_anysource": "RECVANYSOURCE",
}


_given = threading.local()  # .hook: what a program has just given to a group, which hands on a function of C++


@contextlib.contextmanager
def handing(hook: Callable[[Any], None]) -> Iterator[None]:
    """Have handed() return this hook, while torch's group registers it with its backend."""
    _given.hook = hook
    try:
        yield
    finally:
        _given.hook = None


def handed(hook: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return the function of Python for which torch's group hands on ``hook``. That one takes nothing but a WorkInfo,
    which Python cannot make."""
    return getattr(_given, "hook", None) or hook


@untraced
class CompletionHook:
    """Calls a function at the end of each operation, in the thread that sees it."""

    def __init__(self, hook: Callable[[Any], None]) -> None:
        self._hook = hook
        self._number = 0
        self._pending: set[Any] = set()
        self._none_pending = threading.Condition()

    def see(self, name: str, work: Any) -> None:
        if isinstance(work, BaseException):
            return
        self._number += 1
        number, started = self._number, time.time()
        if isinstance(work, FinishedWork) and work.is_completed():
            self._call(name, number, started)
            return
        with self._none_pending:
            self._pending.add(number)

        def ended(_: Any) -> None:
            try:
                self._call(name, number, started)
            finally:
                with self._none_pending:
                    self._pending.discard(number)
                    self._none_pending.notify_all()

        work.get_future().add_done_callback(ended)

    def wait(self) -> None:
        with self._none_pending:
            self._none_pending.wait_for(lambda: not self._pending)

    def _call(self, name: str, number: int, started: float) -> None:
        ended = time.time()
        kinds: Any = _c10d
        kind = getattr(kinds.OpType, _KINDS.get(name, name.upper()))
        self._hook(
            SimpleNamespace(
                op_type=kind, seq=number, time_started=datetime.fromtimestamp(started),
                time_finished=datetime.fromtimestamp(ended), active_duration=timedelta(seconds=ended - started),
            )
        )  # fmt: skip


@untraced
class AbortHooks:
    """Functions that are called before a backend aborts: by ``abort()``, or after an error that breaks its
    communicator."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._hooks: dict[int, Callable[[], None]] = {}

    def add(self, number: int, hook: Callable[[], None]) -> None:
        if not self._hooks:
            self._backend._let_see(self._see)
        self._hooks[number] = hook

    def remove(self, number: int) -> None:
        if self._hooks.pop(number, None) is not None and not self._hooks:
            self._backend._let_see_no_more(self._see)

    def fire(self) -> None:
        """Call each, once. What one of them raises goes to the caller."""
        for number, hook in list(self._hooks.items()):
            self.remove(number)
            hook()

    def _see(self, name: str, work: Any) -> None:
        if isinstance(work, Work):
            work.get_future().add_done_callback(lambda _: self._look())
        elif isinstance(work, BaseException):
            self._look()

    def _look(self) -> None:
        if self._backend.comm.broken:
            self.fire()
