"""Mends torch 2.14 where it forgets that a backend may be written in Python.

Its group hands out works of a class of its own, which pass on ``wait`` to the backend's work, and a future for C++
code, and nothing else: an operation that has ended is not completed, and a receive from any rank does not know its
source. Nor does it pass ``gather_single`` and completion hooks on to the backend, take windows that are written in
Python, or None for the part of a rank that has none in a split. What it refuses itself, on one rank, the others would
wait for."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._C import _distributed_c10d as _c10d

import a2a
from a2a.adapting import refuse

from .._operations.futures import found_work
from .._untraced import untraced
from .backend import BackendA2A, Outsider
from .hooks import handing

__all__ = ["mend"]

_METHODS = (
    "is_completed", "is_success", "exception", "result", "source_rank", "_source_rank", "synchronize", "get_future",
    "get_future_result", "block_current_stream",
)  # fmt: skip

_COLLECTIVES = (
    "all_to_all_single", "alltoall", "all_gather_single", "allgather", "allreduce", "reduce", "reduce_scatter",
    "reduce_scatter_single", "broadcast", "gather", "scatter",
)  # fmt: skip
_HERE = str(Path(__file__).parents[1])  # of all code of a2a.torch


@functools.cache
def mend() -> None:
    """Mend torch's classes, once, for the backends of this module. Those of others work as before."""
    for name in _METHODS:
        setattr(_c10d.Work, name, _of_work(getattr(_c10d.Work, name)))
    group: Any = _c10d.ProcessGroup
    for name in _COLLECTIVES:
        setattr(group, name, _telling(getattr(group, name)))
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


def _telling(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @untraced
    @functools.wraps(theirs)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return theirs(self, *arguments, **options)
        except BaseException as error:
            if not isinstance(error, a2a.Error) and not _is_from_a2a(error):
                _tell(self, error, [*arguments, *options.values()])
            raise

    return call


def _is_from_a2a(error: BaseException) -> bool:
    """Whether the call has reached a backend of this module, which has told the peers."""
    frames = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(name.startswith(_HERE) for name in list(frames)[1:])


def _tell(group: Any, error: BaseException, arguments: Any) -> None:
    """Have the peers hear of an error that torch has raised in place of an operation of host tensors."""
    devices = {one.device for one in _tensors(arguments)}
    if len(devices) > 1 or (backend := _backend_of(group, *devices)) is None or backend.comm.closed:
        return
    refuse(backend.comm, error)


def _backend_of(group: Any, device: torch.device | None = None) -> BackendA2A | None:
    """Return the backend of this device, or without one the only backend of the group, if it is one of a2a."""
    devices = group._device_types if device is None else [device]
    try:
        backends = {id(one): one for one in map(group._get_backend, devices)}.values()
    except RuntimeError:
        return None  # there is none for the device
    return next((one for one in backends if len(backends) == 1 and isinstance(one, BackendA2A)), None)


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    for one in given:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from _tensors(one)


def _gathering(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @untraced
    @functools.wraps(theirs)
    def gather(self: Any, output: Any, input: Any, *opts: Any, **named: Any) -> Any:
        backend = _backend_of(self, input.device) if isinstance(input, torch.Tensor) else None
        call = functools.partial(theirs, self) if backend is None else backend.gather_single
        return call(output, input, *opts, **named)

    return gather


def _windowing(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @untraced
    @functools.wraps(theirs)
    def new_window(self: Any, tensor: Any = None) -> Any:
        backend = _backend_of(self)
        return theirs(self, tensor) if backend is None else backend.new_window(tensor)

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
