"""Records operations for torch.profiler and autograd's profiler: "a2a:" and the operation's name, its tensors with
``record_shapes=True``, and the bytes that this rank sends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._C import _distributed_c10d as _c10d
from torch.autograd import profiler

import a2a
from a2a.adapting import collective

from .._errors import in_torchs_words
from .._untraced import untraced

__all__ = ["operation"]

_F = TypeVar("_F", bound=Callable[..., Any])
_chosen_name: Any = getattr(_c10d, "_get_comm_profiling_name", lambda: "")  # by torch.distributed.record_comm()


def operation(name: str, given: int | None = None, of_all: bool = True) -> Callable[[_F], _F]:
    """Decorate an operation on a communicator, its first argument: the profiler records it, and its errors have torch's
    words. ``given`` is the number of the argument that this rank sends: a tensor, a list or None. ``of_all``: whether
    all ranks take part. Then they hear of whatever is raised before the operation has its number."""
    title = f"a2a:{name}"

    def decorate(function: _F) -> _F:
        @untraced
        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            try:
                if profiler._is_profiler_enabled:
                    with _recorded(title, [] if given is None else _tensors(arguments[given])):
                        return function(*arguments)
                return function(*arguments)
            except a2a.Error as error:
                in_torchs_words(error)
                raise

        return collective(call) if of_all else call  # type: ignore[return-value]

    return decorate


def _recorded(title: str, tensors: list[Any]) -> Any:
    name = _chosen_name() or title
    return torch._C._profiler._RecordFunctionFast(name, tensors, {"bytes": sum(map(_bytes_of, tensors))})


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.nbytes if tensor.layout is torch.strided else 0


def _tensors(given: Any) -> list[Any]:
    """Return the tensors among the arguments, which may be invalid."""
    return [one for one in (given if isinstance(given, (list, tuple)) else [given]) if isinstance(one, torch.Tensor)]
