"""Ranges for paddle.profiler: "a2a:" and the operation's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from paddle.profiler import RecordEvent
from paddle.profiler import utils as _utils

__all__ = ["recorded"]

_T = TypeVar("_T")


def recorded(call: Callable[..., _T], *arguments: object) -> _T:
    """Return ``call(*arguments)``, as a range of the profiler if one runs."""
    if not _utils.in_profiler_mode():
        return call(*arguments)
    with RecordEvent(f"a2a:{call.__name__.lstrip('_')}"):
        return call(*arguments)
