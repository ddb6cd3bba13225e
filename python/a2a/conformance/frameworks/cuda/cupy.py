"""CuPy arrays."""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np
import numpy.typing as npt

from ...cases import DTYPES as _BYTES

__all__ = ["DTYPES", "MEMORY", "OUTPUTS", "devices", "make", "prepare", "read", "tensor"]

DTYPES = frozenset(name for name in _BYTES if hasattr(np, name))
MEMORY = "cuda"
OUTPUTS = True


def devices() -> int:
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:  # no driver
        return 0


def prepare(rank: int) -> None:
    cupy.cuda.Device(rank).use()


def make(content: npt.NDArray[np.uint8]) -> Any:
    return cupy.asarray(content)  # CuPy's allocations are aligned to 512 bytes


def tensor(memory: Any, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
    return memory[offset : offset + math.prod(shape) * _BYTES[dtype]].view(dtype).reshape(shape)


def read(thing: Any) -> npt.NDArray[np.uint8]:
    array = cupy.asnumpy(thing)  # which comes after what is on the current stream
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
