"""A *handle* stands for the way of a dispatch in graphs of torch.compile, which know only tensors. It is a tensor that
holds the way's number, and its memory keeps the way alive. Both are freed with the last tensor on that memory.
``Routed.ticket`` is a handle."""

from __future__ import annotations

import itertools
import struct
import weakref
from typing import Any

import torch
from torch import Tensor

import a2a

__all__ = ["handle_for", "take", "way_of"]


class _Stub(bytearray):
    """The memory of a handle."""

    number: int
    way: Any
    rows: Tensor | None


_stubs: weakref.WeakValueDictionary[int, _Stub] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def handle_for(way: Any, rows: Tensor | None = None) -> Tensor:
    """A new handle, with rows that wait to be taken. float64, because a tensor of integers can require no gradient."""
    number = next(_numbers)
    stub = _Stub(struct.pack("=d", number))
    stub.number, stub.way, stub.rows = number, way, rows
    _stubs[number] = stub
    handle: Tensor = torch.frombuffer(stub, dtype=torch.float64)
    return handle


def way_of(handle: Tensor) -> Any:
    """Raises InvalidArgumentError for a copy of a handle that is gone, such as one that was loaded from a file."""
    return _stub_of(handle).way


def take(handle: Tensor) -> tuple[Any, Tensor]:
    """Return the way, and the rows. They can be taken once."""
    stub = _stub_of(handle)
    rows, stub.rows = stub.rows, None
    if rows is None:
        raise a2a.InvalidArgumentError("these rows have been taken already")
    return stub.way, rows


def _stub_of(handle: Tensor) -> _Stub:
    stub = _stubs.get(int(handle))
    if stub is None:
        raise a2a.InvalidArgumentError("these rows have lost their routing; keep what dispatch() returned")
    return stub
