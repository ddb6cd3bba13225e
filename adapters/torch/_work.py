"""An operation in flight as torch programs know it."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work as TorchWork

import a2a

__all__ = ["FinishedWork", "Work"]


class Work(TorchWork):  # type: ignore[misc, unused-ignore]
    """What a call with ``async_op=True`` returns. On the host bytes move while somebody waits, or asks is_completed();
    there is no thread in the background until get_future() asks for one. On a GPU wait() makes the current stream wait,
    and not this thread, as in torch."""

    def __init__(self, work: a2a.Work, outputs: list[Any]) -> None:
        super().__init__()
        self._work, self._outputs = work, outputs
        self._gpu = outputs[0].device if outputs and getattr(outputs[0], "is_cuda", False) else None
        self._error: BaseException | None = None
        self._future: Any = None
        self._guard = threading.Lock()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Blocks until done and returns True; may be repeated. Raises the operation's error, or a2a.TimeoutError after
        ``timeout`` unless that is zero; the operation then goes on. On a GPU without a timeout, what is enqueued on the
        current stream from now on comes after the operation, and the call returns at once."""
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

    def is_completed(self) -> bool:
        """Whether the operation has ended, well or not. Never blocks."""
        return self._work.done()

    def is_success(self) -> bool:
        """Whether the operation has ended well."""
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
        if not self._work.done():
            raise RuntimeError("the operation has not ended; call wait() first")
        return self._outputs

    def get_future(self) -> Any:
        """A torch.futures.Future of the output tensors. A thread waits for the operation and runs the callbacks."""
        with self._guard:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._work.done():
                    self._complete()
                else:
                    threading.Thread(target=self._complete, name="a2a future", daemon=True).start()
            return self._future

    def source_rank(self) -> int:
        """Of a receive from any rank, which this never is."""
        raise RuntimeError("source_rank() is about the work of a receive, and this is a collective")

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
            if self._work.done():
                self._error = error
            raise

    def _complete(self) -> None:
        try:
            self._finish(None)
        except BaseException as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(self._outputs)


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

    def get_future(self) -> Any:
        """A torch.futures.Future that is done."""
        future: Any = torch.futures.Future()
        future.set_result(self._outputs)
        return future
