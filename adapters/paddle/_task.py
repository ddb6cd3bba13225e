"""Tasks: the results of the calls."""

from __future__ import annotations

import datetime

import a2a

# Operations not known to be finished, oldest first, so that wait(tensor) can finish those whose task the program has
# dropped.
_unfinished: list[Task] = []


class Task:
    """One operation, with the methods of Paddle's tasks. May be dropped; ``wait(tensor)`` of the package ends it."""

    def __init__(self, comm: a2a.Communicator, work: a2a.Work | None) -> None:
        """``work`` is None when the operation is done."""
        self._comm, self._work, self._sync = comm, work, work is None
        if work is None:
            return
        _unfinished[:] = [task for task in _unfinished if not task.is_completed()]
        _unfinished.append(self)

    def wait(self, timeout: datetime.timedelta | float | None = None) -> bool:
        """Block until done and return True. Raises the operation's error, or a2a.TimeoutError after ``timeout``, a
        timedelta or seconds, where zero means no limit; the operation then goes on."""
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
        if self._work is not None:
            self._work.wait(seconds or None)
            self._work = None
        return True

    def is_completed(self) -> bool:
        """Whether the operation is done, with or without an error. Never blocks."""
        if self._work is None:
            return True
        if not self._work.done():
            return False
        try:
            self.wait()
        except a2a.Error:
            pass  # wait() raises it
        return True

    def synchronize(self) -> None:
        """Block this thread until done: the same as wait()."""
        self.wait()

    def is_sync(self) -> bool:
        """Whether the call that returned this task has waited."""
        return self._sync


def finish_all(comm: a2a.Communicator) -> None:
    """Wait for every operation of the communicator that this rank has started."""
    for task in list(_unfinished):
        if task._comm is comm:
            task.wait()
    _unfinished[:] = [task for task in _unfinished if not task.is_completed()]
