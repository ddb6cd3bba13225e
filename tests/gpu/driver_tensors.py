"""A framework for the tests on GPUs: tensors in memory of the CUDA driver alone, for machines without Torch and CuPy,
and for the doubles of tests/fakes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("conformance", "python/support")]
import cudart  # noqa: E402
from cuda_double import DriverTensors  # noqa: E402


class Tensors(DriverTensors):
    def devices(self) -> int:
        return cudart.devices()


FRAMEWORK = Tensors
