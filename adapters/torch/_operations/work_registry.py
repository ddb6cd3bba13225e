"""Torch's registry of works, in which torch.ops._c10d_functional.wait_tensor() looks for those of a tensor. C++ code
registers the works of its own backends while allow_inflight_collective_as_graph_input_ctx() lasts."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as _c10d

from .._untraced import untraced

__all__ = ["passed_over", "register", "unregister"]

_is_wanted = _c10d._allow_inflight_collective_as_graph_input
_removed = threading.local()  # .entries: those that unregister() has taken out in this thread


@untraced
class _Entry(_c10d.Work):  # type: ignore[misc, unused-ignore]
    """What the registry has of a work."""

    def __init__(self, work: Any) -> None:
        super().__init__()
        self.work = work

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        entries = getattr(_removed, "entries", None)
        if entries is None:
            return bool(self.work.wait(timeout))
        entries.append(self)
        return True


def register(work: Any, tensors: Iterable[Any]) -> bool:
    """Have wait_tensor() of these tensors wait for the work, if the program asks for that. Returns whether it does."""
    if not _is_wanted():
        return False
    for tensor in tensors:
        _c10d._register_work(tensor, _Entry(work))
    return True


def passed_over(work: Any) -> bool:
    """Whether unregister() waits for this work only because it waits for all of a tensor: torch itself has registered
    the work, too, where a backend has made it."""
    entries = getattr(_removed, "entries", None)
    if entries is None:
        return False
    entries.append(_Entry(work))
    return True


def unregister(work: Any, tensors: Iterable[Any]) -> None:
    """Take a work out whose end the program has seen. The registry's only way to do that is to wait for all works of a
    tensor, so the others are put back."""
    for tensor in tensors:
        _removed.entries = []
        try:
            torch.ops._c10d_functional.wait_tensor(tensor)
        finally:
            entries, _removed.entries = _removed.entries, None
        for entry in entries:
            if entry.work is not work:
                _c10d._register_work(tensor, entry)
