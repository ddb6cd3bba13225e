"""``a2a.adapting.collective`` for functions that have a ``group`` and no communicator. The peers are told of what
such a function raises before its operation has a number."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from torch.compiler import is_dynamo_compiling

from a2a.adapting import collective

from .communicators import by_name, communicator

__all__ = ["of_group", "of_named_group"]

_F = TypeVar("_F", bound=Callable[..., Any])


def of_group(function: _F) -> _F:
    """Decorate a function of which every rank of its argument ``group`` makes the same calls. A traced call is left
    alone: it runs later."""
    at = list(inspect.signature(function).parameters).index("group")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return function(*args, **kwargs)
        return _run(args[at] if len(args) > at else kwargs.get("group"), function, args, kwargs)

    return call  # type: ignore[return-value]


def of_named_group(body: _F) -> _F:
    """Decorate an operator in the same way. Its last argument is the name of the group."""

    @functools.wraps(body)
    def call(*args: Any) -> Any:
        return _run(by_name(args[-1]), body, args, {})

    return call  # type: ignore[return-value]


def _run(group: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    comm = communicator(group)
    return function(*args, **kwargs) if comm is None else _run_on(comm, function, args, kwargs)


@collective
def _run_on(comm: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)
