"""A framework that the kit does not come with: arrays of ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from a2a.frameworks import Bytes, Framework

_KINDS: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "int8": ctypes.c_int8,
    "uint8": ctypes.c_uint8,
    "int16": ctypes.c_int16,
    "uint16": ctypes.c_uint16,
    "int32": ctypes.c_int32,
    "uint32": ctypes.c_uint32,
    "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


class Arrays(Framework):
    """Calls take them by the buffer protocol, and return NumPy arrays, since a2a allocates no ctypes."""

    def dtypes(self) -> frozenset[str]:
        return frozenset(_KINDS)

    def tensor(self, memory: Bytes, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
        kind = _KINDS[dtype]
        for entries in reversed(shape):
            kind *= entries
        return kind.from_buffer(memory, offset)

    def read(self, thing: Any) -> Bytes:
        # An array without entries has no bytes to cast, so not by the buffer protocol.
        return np.ascontiguousarray(np.asarray(thing)).reshape(-1).view(np.uint8)


FRAMEWORK = Arrays
