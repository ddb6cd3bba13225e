"""An operation in flight, with torch's interface."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work as TorchWork

import a2a

from .._errors import in_torchs_words
from .._untraced import untraced
from .completer import complete_later
from .futures import ForBoth, future_of
from .work_registry import passed_over, register, unregister

__all__ = ["AllOf", "FinishedWork", "Work"]


@untraced
class Work(TorchWork):  # type: ignore[misc, unused-ignore]
    """The result of a call with ``async_op=True``. On the host bytes move while a thread waits or calls is_completed();
    no thread of the library moves them unless get_future() or A2A_PROGRESS_THREAD starts one. On a GPU wait() makes the
    current stream wait, and not this thread, as in torch.

    ``then`` runs once, when the operation has succeeded and before any call reports that: it copies received data into
    the outputs."""

    def __init__(self, work: a2a.Work, outputs: list[Any], then: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._work, self._outputs, self._then = work, outputs, then
        self._gpu = outputs[0].device if outputs and getattr(outputs[0], "is_cuda", False) else None
        self._error: BaseException | None = None
        self._future: Any = None
        self._guard = threading.RLock()
        self._registered = register(self, outputs)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until done and return True; may be repeated. Raises the operation's error, or a2a.TimeoutError after
        ``timeout`` unless that is zero; the operation then goes on. On a GPU without a timeout, work enqueued on the
        current stream from now on runs after the operation, and the call returns at once."""
        if self._registered and passed_over(self):
            return True
        seconds = timeout.total_seconds()
        if seconds > 0:
            self._finish(seconds)
        else:
            self.synchronize()
        return True

    def synchronize(self) -> None:
        """The same as wait()."""
        if self._gpu is None:
            self._finish(None)
        else:
            self._work.order_before(torch.cuda.current_stream(self._gpu))
            self._settle()

    def is_completed(self) -> bool:
        """Whether the operation has ended, with or without an error. Never blocks."""
        if not self._work.done():
            return False
        if self._then is not None:
            self.exception()
        return True

    def is_success(self) -> bool:
        """Whether the operation has ended without an error."""
        return self._work.done() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The operation's error, once it has ended."""
        if self._error is None and self._work.done():
            try:
                self._finish(None)
            except a2a.Error:
                pass
        return self._error

    def result(self) -> list[Any]:
        """The output tensors. Raises unless the operation has ended."""
        if not self.is_completed():
            raise RuntimeError("the operation has not ended; call wait() first")
        return self._outputs

    @ForBoth
    def get_future(self) -> Any:
        """A torch.futures.Future of the output tensors. One thread waits for all operations whose futures somebody has,
        and runs the callbacks. Where the operation fails, the future's error is a RuntimeError with its text."""
        with self._guard:
            if self._future is None:
                self._future, ended = future_of(self._outputs, self._raise)
                self.when_ended(ended)
            return self._future

    def when_ended(self, call: Callable[[], None]) -> None:
        """Have a thread call this when the operation has ended; at once if it has."""

        def settle_and_call() -> None:
            with contextlib.suppress(BaseException):  # _raise() raises it again
                self._finish(None)
            call()

        if self._work.done():
            settle_and_call()
        else:
            complete_later(self._work, settle_and_call)

    def source_rank(self) -> int:
        """The rank in the group that sent the message of a receive, once it has ended."""
        source: int | None = getattr(self._work, "source", None)
        if source is None:
            raise RuntimeError("source_rank() is about a receive that has ended")
        return source

    _source_rank = source_rank  # torch.distributed.recv() uses this name

    def get_future_result(self) -> Any:
        """Not offered."""
        raise RuntimeError("get_future_result() is not offered; use get_future()")

    def block_current_stream(self) -> None:
        """The same as wait()."""
        self.synchronize()

    def _finish(self, seconds: float | None) -> None:
        try:
            self._work.wait(seconds)
        except a2a.Error as error:
            in_torchs_words(error)
            if self._work.done():
                self._error = error
            raise
        self._settle()
        if self._registered:
            self._registered = False
            unregister(self, self._outputs)

    def _settle(self) -> None:
        if self._then is not None:
            with self._guard:  # the second thread finds it copied
                if self._then is not None:
                    self._then()
                    self._then = None

    def _raise(self) -> None:
        """Raise the error of the operation, which has ended."""
        self._finish(None)


@untraced
class FinishedWork(TorchWork):  # type: ignore[misc, unused-ignore]
    """The work of a call that was done when it returned."""

    def __init__(self, outputs: list[Any]) -> None:
        super().__init__()
        self._outputs = outputs

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """True."""
        return True

    def synchronize(self) -> None:
        """Nothing to do."""

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True

    def exception(self) -> None:
        """None."""

    def result(self) -> list[Any]:
        """The output tensors."""
        return self._outputs

    def when_ended(self, call: Callable[[], None]) -> None:
        """Call this at once."""
        call()

    @ForBoth
    def get_future(self) -> Any:
        """A torch.futures.Future that is done."""
        future, ended = future_of(self._outputs, lambda: None)
        ended()
        return future


@untraced
class AllOf(FinishedWork):
    """Several operations as one work."""

    def __init__(self, works: list[Any], outputs: list[Any]) -> None:
        super().__init__(outputs)
        self._works = works

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for each."""
        return all([work.wait(timeout) for work in self._works])

    def synchronize(self) -> None:
        """The same as wait()."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether all have ended, with or without an error."""
        return all([work.is_completed() for work in self._works])

    def is_success(self) -> bool:
        """Whether all have ended without an error."""
        return all([work.is_success() for work in self._works])

    def exception(self) -> Any:
        """The first one's error."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    @ForBoth
    def get_future(self) -> Any:
        """A torch.futures.Future of the output tensors, which is done when all operations have ended."""
        future, ended = future_of(self._outputs, self.wait)
        left = itertools.count(1)

        def one_ended() -> None:
            if next(left) == len(self._works):
                ended()

        for work in self._works:
            work.when_ended(one_ended)
        if not self._works:
            ended()
        return future
