"""A framework for the conformance kit: tensors in the memory of the CUDA driver that A2A_CUDA_LIBRARY names, which in
the tests is a double of it. Torch and CuPy would use the real one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "python" / "support"))
import cudart
from device_tensors import ALLOCATORS, DoubleFramework, Tensor, bytes_of

from a2a.frameworks import Bytes

ALLOCATORS[cudart.CUDA] = lambda nbytes, device: cudart.Array(np.empty(nbytes, np.uint8), device)
_device = 0


class DriverTensors(DoubleFramework):
    memories = ("cuda",)

    def prepare(self, rank: int) -> None:
        global _device
        _device = rank
        cudart.use(rank)

    def make(self, content: Bytes) -> cudart.Array:
        return cudart.Array(content, _device)

    def read(self, thing: Any) -> Bytes:
        return bytes_of(thing) if isinstance(thing, Tensor) else thing.read()


FRAMEWORK = DriverTensors
