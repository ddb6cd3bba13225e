"""A framework that the kit does not come with: arrays of ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from a2a.conformance.host import MEMORY, make

__all__ = ["DTYPES", "MEMORY", "OUTPUTS", "make", "prepare", "read", "tensor"]

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
DTYPES = frozenset(_KINDS)
OUTPUTS = True


def prepare(rank: int) -> None:
    pass


def tensor(memory: npt.NDArray[np.uint8], offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
    kind = _KINDS[dtype]
    for entries in reversed(shape):
        kind *= entries
    return kind.from_buffer(memory, offset)


def read(thing: Any) -> npt.NDArray[np.uint8]:
    # Calls return NumPy arrays, since a2a allocates no ctypes. An array without entries has no bytes to cast.
    array = np.asarray(thing)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
