"""Memory around a tensor that shows what was written where it should not have been."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from .. import testing
from .cases import DTYPES, Raw

GUARD_BYTES = 64
_GUARD = 0x5A


class Buffer:
    """A tensor of a framework over memory of the kit's own, with guard bytes on both sides. ``tensor`` shares the
    memory unless the framework's tensors cannot be made of foreign memory."""

    def __init__(self, framework: ModuleType, dtype: str, shape: tuple[int, ...], content: Raw | None = None) -> None:
        size = math.prod(shape) * DTYPES[dtype]
        # 16 bytes past a line, as NumPy's own arrays are.
        whole = np.full(size + 2 * GUARD_BYTES + 80, _GUARD, np.uint8)
        start = -whole.ctypes.data % 64 + GUARD_BYTES + 16
        self._framework = framework
        self._whole = whole
        self._span = slice(start, start + size)
        self.bytes = whole[self._span]
        self.bytes[...] = testing.POISON if content is None else content.reshape(-1).view(np.uint8)
        if dtype == "bool" and content is None:
            self.bytes[...] = 1  # the only poison that a bool can hold; see difference()
        self.tensor: Any = framework.tensor(self.bytes, dtype, shape)

    def difference(self, expected: Raw, dtype: str, received: Any = None) -> str | None:
        """How the tensor (or the result of a call, in its place) differs from what it has to be."""
        wanted = expected.reshape(-1).view(np.uint8)
        if dtype == "bool":
            wanted = np.where(wanted == testing.POISON, 1, wanted).astype(np.uint8)
        if differs := testing.first_difference(self.tensor if received is None else received, wanted):
            return differs
        outside = np.delete(self._whole, np.r_[self._span])
        if (touched := np.flatnonzero(outside != _GUARD)).size:
            return f"{touched.size} bytes around the tensor were written"
        return None
