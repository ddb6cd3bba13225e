"""A framework for the tests on GPUs: tensors in memory of the CUDA driver alone, for machines without Torch and CuPy,
and for the doubles of tests/fakes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("conformance", "python")]
import cuda_double  # noqa: E402
import nvidia  # noqa: E402
from cuda_double import DTYPES, MEMORY, OUTPUTS, make, prepare, read  # noqa: E402

__all__ = ["DTYPES", "MEMORY", "OUTPUTS", "devices", "make", "prepare", "read", "tensor"]


def devices() -> int:
    return nvidia.devices()


def tensor(memory: nvidia.Array, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
    return cuda_double.tensor(memory, offset, dtype, shape)
