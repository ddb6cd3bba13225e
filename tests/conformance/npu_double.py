"""A framework for the conformance kit: tensors in the memory of the AscendCL that A2A_ASCENDCL_LIBRARY names, which in
the tests is a double of it. Torch would use the real one, by torch_npu."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "python" / "support"))
import ascend
from device_tensors import DoubleFramework, Tensor, bytes_of

from a2a.frameworks import Bytes

_device = 0


class AscendTensors(DoubleFramework):
    memories = ("npu",)

    def prepare(self, rank: int) -> None:
        global _device
        _device = rank
        ascend.use(rank)

    def make(self, content: Bytes) -> ascend.Memory:
        memory = ascend.Memory(content.nbytes, _device)
        memory.write(content)
        return memory

    def read(self, thing: Any) -> Bytes:
        return bytes_of(thing) if isinstance(thing, Tensor) else np.frombuffer(thing.read(), np.uint8)


FRAMEWORK = AscendTensors
