"""A framework for the conformance kit: tensors in the memory of the CUDA driver that A2A_CUDA_LIBRARY names, which in
the tests is a double of it. Torch and CuPy would use the real one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "python"))
import nvidia
from device_tensors import ALLOCATORS, Tensor, bytes_of

from a2a.frameworks import Bytes, Framework, dtype_names

ALLOCATORS[nvidia.CUDA] = lambda nbytes, device: nvidia.Array(np.empty(nbytes, np.uint8), device)
_device = 0


class DriverTensors(Framework):
    memories = ("cuda",)

    def dtypes(self) -> frozenset[str]:
        return frozenset(dtype_names)

    def devices(self) -> int:
        return int(os.environ.get("A2A_FAKE_DEVICES", "8"))

    def prepare(self, rank: int) -> None:
        global _device
        _device = rank
        nvidia.use(rank)

    def make(self, content: Bytes) -> nvidia.Array:
        return nvidia.Array(content, _device)

    def tensor(self, memory: nvidia.Array, offset: int, dtype: str, shape: tuple[int, ...]) -> Tensor:
        return Tensor(memory, shape, dtype_names[dtype], offset)

    def read(self, thing: Any) -> Bytes:
        return bytes_of(thing) if isinstance(thing, Tensor) else thing.read()


FRAMEWORK = DriverTensors
