"""Mends torch 2.14 where it forgets that a backend may be written in Python.

Its group hands out works of a class of its own, which pass on ``wait`` to the backend's work, and a future for C++
code, and nothing else: an operation that has ended is not completed, and a receive from any rank does not know its
source. Nor does it pass ``gather_single`` and completion hooks on to the backend, take windows that are written in
Python, or None for the part of a rank that has none in a split."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d as _c10d

from .._operations.futures import found_work
from .._untraced import untraced
from .backend import BackendA2A, Outsider
from .hooks import handing

__all__ = ["mend"]

_METHODS = (
    "is_completed", "is_success", "exception", "result", "source_rank", "_source_rank", "synchronize", "get_future",
    "get_future_result", "block_current_stream",
)  # fmt: skip


@functools.cache
def mend() -> None:
    """Mend torch's classes, once, for the backends of this module. Those of others work as before."""
    for name in _METHODS:
        setattr(_c10d.Work, name, _of_work(getattr(_c10d.Work, name)))
    group: Any = _c10d.ProcessGroup
    for name in ("gather_single", "gather_into_tensor"):
        setattr(group, name, _gathering(getattr(group, name)))
    group.new_window = _windowing(group.new_window)
    group.split_group = _splitting(group.split_group)
    group._register_on_completion_hook = _hooking(group._register_on_completion_hook)


def _of_work(theirs: Callable[..., Any]) -> Callable[..., Any]:
    name = theirs.__name__

    @untraced
    @functools.wraps(theirs)
    def call(self: Any) -> Any:
        work = found_work(self) if type(self) is _c10d.Work else None
        if work is None:
            return theirs(self)
        # The future for Python code: a work looks at how it is asked.
        return work.get_future() if name == "get_future" else getattr(work, name)()

    return call


def _gathering(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @untraced
    @functools.wraps(theirs)
    def gather(self: Any, output: Any, input: Any, *opts: Any, **named: Any) -> Any:
        backend = self._get_backend(input.device) if isinstance(input, torch.Tensor) else None
        if isinstance(backend, BackendA2A):
            return backend.gather_single(output, input, *opts, **named)
        return theirs(self, output, input, *opts, **named)

    return gather


def _windowing(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @untraced
    @functools.wraps(theirs)
    def new_window(self: Any, tensor: Any = None) -> Any:
        backends = {id(one): one for one in map(self._get_backend, self._device_types)}.values()
        ours = [one for one in backends if isinstance(one, BackendA2A)]
        return ours[0].new_window(tensor) if len(backends) == len(ours) == 1 else theirs(self, tensor)

    return new_window


def _splitting(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @untraced
    @functools.wraps(theirs)
    def split_group(self: Any, *arguments: Any, **options: Any) -> Any:
        group = theirs(self, *arguments, **options)
        backends = [] if group is None else map(group._get_backend, group._device_types)
        return None if any(isinstance(one, Outsider) for one in backends) else group

    return split_group


def _hooking(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def register(self: Any, hook: Any) -> None:
        with handing(hook):
            theirs(self, hook)

    return register
