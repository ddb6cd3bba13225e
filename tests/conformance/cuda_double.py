"""A framework for the conformance kit: tensors in the memory of the CUDA driver that A2A_CUDA_LIBRARY names, which in
the tests is a double of it. Torch and CuPy would use the real one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.append(str(Path(__file__).parents[1] / "python"))
import nvidia
from device_tensors import ALLOCATORS, Tensor, bytes_of

from a2a import _core
from a2a.conformance.cases import DTYPES as _NAMED

__all__ = ["DTYPES", "MEMORY", "OUTPUTS", "devices", "make", "prepare", "read", "tensor"]

DTYPES = frozenset(_NAMED) & frozenset(_core.dtype_names)
MEMORY = "cuda"
OUTPUTS = True
ALLOCATORS[nvidia.CUDA] = lambda nbytes, device: nvidia.Array(np.empty(nbytes, np.uint8), device)
_device = 0


def devices() -> int:
    return int(os.environ.get("A2A_FAKE_DEVICES", "8"))


def prepare(rank: int) -> None:
    global _device
    _device = rank
    nvidia.use(rank)


def make(content: npt.NDArray[np.uint8]) -> nvidia.Array:
    return nvidia.Array(content, _device)


def tensor(memory: nvidia.Array, offset: int, dtype: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor(memory, shape, _core.dtype_names[dtype], offset)


def read(thing: Any) -> npt.NDArray[np.uint8]:
    return bytes_of(thing) if isinstance(thing, Tensor) else thing.read()
