"""What the methods of a process group that run an operation have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ._dispatch import through_dispatcher, watched
from ._forms import Forms
from ._untraced import untraced
from ._work import FinishedWork

__all__ = ["alike", "method"]

_DONE = FinishedWork([])
_Run = Callable[..., Any]


def method(options: Any, *forms: str) -> Callable[[_Run], _Run]:
    """Decorate the code of an operation, which gets its arguments in the first form and returns a work, or None when
    done. The method may be called in each of the forms (``Forms``), is counted, and is seen by torch's dispatcher."""
    known = Forms(options, *forms)
    lists, last = known.lists, int if options is None else options

    def decorate(run: _Run) -> _Run:
        name = run.__name__

        @untraced
        @functools.wraps(run)
        def call(self: Any, *given: Any, **named: Any) -> Any:
            if named or not given or type(given[-1]) is not last or (type(given[0]) is list) is not lists:
                given = known.arranged(name, given, named)
            self._sequence += 1
            if watched():
                return through_dispatcher(self.stand_in(), name, functools.partial(run, self), given)
            return run(self, *given) or _DONE

        call.run, call.again = run, decorate  # type: ignore[attr-defined]
        return call

    return decorate


def alike(ours: Any, run: _Run) -> Any:
    """Return a method like ``ours`` with other code."""
    return ours.again(functools.wraps(ours.run)(run))
