"""Calls that Paddle itself serves. Tensors in device memory go through Paddle's process groups, with NCCL and on the
caller's streams; on an a2a communicator a2a's own NCCL moves them, on Paddle's current stream."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, TypeVar, cast

import paddle

import a2a

_F = TypeVar("_F", bound=Callable[..., Any])

# (module, name) -> Paddle's own function, if enable() has replaced it.
originals: dict[tuple[str, str], Any] = {}


def or_paddles(module: ModuleType) -> Callable[[_F], _F]:
    """Decorate a function that Paddle has under the same name in ``module``: Paddle's function is called for tensors on
    devices and for static graphs, unless the group is an a2a communicator."""

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_paddles((*args, *kwargs.values())):
                return original(module, function.__name__)(*args, **kwargs)
            return function(*args, **kwargs)

        return cast(_F, call)

    return decorate


def original(module: ModuleType, name: str) -> Any:
    """Return Paddle's own function of that name."""
    return originals.get((module.__name__, name)) or getattr(module, name)


def is_paddles(arguments: Iterable[Any]) -> bool:
    """Whether Paddle itself serves a call with these arguments."""
    found = not paddle.in_dynamic_mode()
    for argument in arguments:
        if isinstance(argument, a2a.Communicator):
            return False
        if isinstance(argument, (list, tuple)):
            found = found or any(_on_device(item) for item in argument)
        else:
            found = found or _on_device(argument)
    return found


def _on_device(tensor: Any) -> bool:
    if not isinstance(tensor, paddle.Tensor):
        return False
    place = tensor.place
    return not (place.is_cpu_place() or place.is_cuda_pinned_place())
