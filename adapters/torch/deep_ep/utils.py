"""Events, as DeepEP has them: what a call with ``async_finish`` returns, to be waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import a2a

__all__ = ["EventHandle", "EventOverlap"]


class EventHandle:
    """Operations in flight. Made without arguments it captures the present, in which there is nothing to wait for.

    Args:
        works: the operations.
        then: what makes the results, after them.
    """

    def __init__(self, works: Sequence[a2a.Work] = (), then: Callable[[], None] | None = None) -> None:
        self._works, self._then = list(works), then

    def current_stream_wait(self) -> None:
        """Block until the results are there. Raises the operation's error."""
        for work in self._works:
            work.wait()
        then, self._works, self._then = self._then, [], None
        if then is not None:
            then()


class EventOverlap:
    """An event, or None, round which computing overlaps: ``with event: compute()`` waits at the end."""

    def __init__(self, event: EventHandle | None = None, extra_tensors: Any = None) -> None:
        self.event, self.extra_tensors = event, extra_tensors
        self.hook_after_wait: Callable[[], None] | None = None
        self._release_handle_by_call = False

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Block until the results are there. Raises InvalidArgumentError after a call that was not to finish later."""
        if self.event is None:
            raise a2a.InvalidArgumentError("there is no event to wait for; the call was made without async_finish")
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        if hook is not None:
            hook()
        if release_handle:
            self.event = None

    def register_hook_after_wait(self, hook_after_wait: Callable[[], None]) -> None:
        """Call it after the next wait."""
        if self.hook_after_wait is not None:
            raise a2a.InvalidArgumentError("this event has a hook already")
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> EventOverlap:
        self._release_handle_by_call = release_handle
        return self

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *_: object) -> None:
        if self.event is not None:
            self.current_stream_wait(release_handle=self._release_handle_by_call)
        self._release_handle_by_call = False


def wait_before(event: Any) -> None:
    """For the event that a call is to come after: an EventOverlap, an EventHandle or None."""
    handle = getattr(event, "event", event)
    if handle is not None:
        handle.current_stream_wait()


def finish(later: bool, works: Sequence[a2a.Work], then: Callable[[], None] | None = None) -> EventOverlap:
    """Wait now, or say what is to be waited for."""
    event = EventHandle(works, then)
    if later:
        return EventOverlap(event)
    event.current_stream_wait()
    return EventOverlap()
