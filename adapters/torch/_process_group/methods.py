"""The methods of a process group that run an operation: the overloads in which torch.distributed.ProcessGroup's methods
may be called, and what all of these methods do besides the operation.

An overload has lists of tensors and options, as torch.distributed's own functions call them, or a tensor, the
operation, the root and the timeout."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch._C import _distributed_c10d as _c10d

from .._operations.work import FinishedWork
from .._untraced import untraced
from .dispatcher import through_dispatcher, watched

__all__ = ["alike", "method"]

_OPERATIONS = (_c10d.ReduceOp, _c10d.ReduceOp.RedOpType)
_IN_OPTIONS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}
_DEFAULTS: dict[str, Any] = {"op": None, "timeout": None, "opts": None}


class _Overloads:
    """The overloads of one method. In the first one the method's own code gets its arguments, always with options. Each
    overload is the names of its parameters, with a "*" before a list of tensors and "**" before a list of lists."""

    def __init__(self, options: Any, *overloads: str) -> None:
        self.options = options
        self.lists = overloads[0].startswith("*")
        self._overloads = [_parameters(overload) for overload in overloads]
        self._first = self._overloads[0]

    def arranged(self, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return the arguments as the first overload has them. Raises TypeError if no overload has them."""
        for overload in self._overloads:
            found = self._bound(overload, given, named)
            if found is not None:
                return self._in_first_overload(overload, found)
        shown = "\n".join(f"    {name}({', '.join(overload)})" for overload in self._overloads)
        kinds = [type(one).__name__ for one in given] + [f"{key}={type(one).__name__}" for key, one in named.items()]
        raise TypeError(f"{name}(): incompatible function arguments: {', '.join(kinds)}. It may be called as\n{shown}")

    def _bound(self, overload: dict[str, int], given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any] | None:
        if len(given) > len(overload):
            return None
        found = dict(zip(overload, given, strict=False))
        if found.keys() & named.keys() or not named.keys() <= overload.keys():
            return None
        found |= named
        for name, depth in overload.items():
            if name not in found:
                if name not in _DEFAULTS:
                    return None
                found[name] = _DEFAULTS[name]
            elif not self._fits(name, depth, found[name]):
                return None
        return found

    def _fits(self, name: str, depth: int, one: Any) -> bool:
        if name == "opts":
            return isinstance(one, self.options)
        if name == "op":
            return isinstance(one, _OPERATIONS)
        if name == "timeout":
            return one is None or isinstance(one, timedelta)
        if name in _NUMBERS:
            return hasattr(one, "__index__") and not isinstance(one, Tensor)
        if name.endswith("sizes"):
            return isinstance(one, (list, tuple))
        return _is_nested(one, depth)

    def _in_first_overload(self, overload: dict[str, int], found: dict[str, Any]) -> tuple[Any, ...]:
        if overload is self._first and (found.get("opts") is not None or self.options is None):
            return tuple(_listed(one) for one in found.values())
        opts = self.options()
        for name, attribute in _IN_OPTIONS.items():
            if found.get(name) is not None:
                setattr(opts, attribute, found[name])
        rest = [_listed(one) for name, one in found.items() if name not in _IN_OPTIONS and name != "opts"]
        wanted = [depth for name, depth in self._first.items() if name != "opts"]
        depths = [depth for name, depth in overload.items() if name not in _IN_OPTIONS and name != "opts"]
        return *([one] if more > depth else one for one, more, depth in zip(rest, wanted, depths, strict=True)), opts


_NUMBERS = ("root", "dstRank", "srcRank", "tag")


def _parameters(overload: str) -> dict[str, int]:
    """Return the names of the parameters, and how deep the lists of tensors are."""
    return {word.lstrip("*"): word.count("*") for word in overload.split()}


def _is_nested(one: Any, depth: int) -> bool:
    if depth == 0:
        return isinstance(one, Tensor)
    return isinstance(one, (list, tuple)) and all(_is_nested(each, depth - 1) for each in one)


def _listed(one: Any) -> Any:
    """Return a sequence as a list, as C++ hands it on."""
    return [_listed(each) for each in one] if isinstance(one, (list, tuple)) else one


_DONE = FinishedWork([])
_Run = Callable[..., Any]


def method(options: Any, *overloads: str) -> Callable[[_Run], _Run]:
    """Decorate the code of an operation, which gets its arguments as the first overload has them and returns a work, or
    None when done. The method may be called in each of the overloads, is counted, and is seen by torch's
    dispatcher."""
    known = _Overloads(options, *overloads)
    lists, last = known.lists, int if options is None else options

    def decorate(run: _Run) -> _Run:
        name = run.__name__

        @untraced
        @functools.wraps(run)
        def call(self: Any, *given: Any, **named: Any) -> Any:
            if named or not given or type(given[-1]) is not last or (type(given[0]) is list) is not lists:
                given = known.arranged(name, given, named)
            self._sequence += 1
            if watched() and (stand_in := self.stand_in()) is not None:
                return through_dispatcher(stand_in, name, functools.partial(run, self), given)
            return run(self, *given) or _DONE

        call.run, call.again = run, decorate  # type: ignore[attr-defined]
        return call

    return decorate


def alike(ours: Any, run: _Run) -> Any:
    """Return a method like ``ours`` with other code."""
    return ours.again(functools.wraps(ours.run)(run))
