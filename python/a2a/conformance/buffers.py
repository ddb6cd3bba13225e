"""Guarded memory around a tensor, which shows writes outside of the tensor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import testing
from ..frameworks import Framework
from .cases import DTYPES, Raw

GUARD_BYTES = 64
_GUARD = 0x5A


class Buffer:
    """A tensor of a framework with ``content``, or full of poison, between guard bytes on both sides. ``tensor`` is in
    that memory unless the framework does not allow that."""

    def __init__(self, framework: Framework, dtype: str, shape: tuple[int, ...], content: Raw | None = None) -> None:
        size = math.prod(shape) * DTYPES[dtype]
        # One element past a multiple of 64, which loops for aligned memory get wrong.
        start = GUARD_BYTES + DTYPES[dtype]
        whole = np.full(start + size + GUARD_BYTES, _GUARD, np.uint8)
        whole[start : start + size] = testing.POISON if content is None else content.reshape(-1).view(np.uint8)
        self._framework, self._start, self._stop = framework, start, start + size
        self._memory = framework.make(whole)
        self.tensor: Any = framework.tensor(self._memory, start, dtype, shape)

    def difference(self, expected: Raw) -> str | None:
        """Return how the tensor, or the guard bytes, differ from the expected ones."""
        if differs := testing.first_difference(self._framework.read(self.tensor), _bytes(expected)):
            return differs
        memory = self._framework.read(self._memory)
        before, after = memory[: self._start] != _GUARD, memory[self._stop :] != _GUARD
        if touched := int(before.sum() + after.sum()):
            return f"{touched} bytes around the tensor were written"
        return None


def first_difference(framework: Framework, result: Any, expected: Raw) -> str | None:
    """The same for a tensor that a call allocated."""
    return testing.first_difference(framework.read(result), _bytes(expected))


def _bytes(raw: Raw) -> Any:
    return raw.reshape(-1).view(np.uint8)
