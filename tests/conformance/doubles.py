"""The doubles of tests/fakes, for runs of the kit."""

from __future__ import annotations

import os
from pathlib import Path

DOUBLES = {
    name: str(Path(__file__).with_name(file)) for name, file in (("nccl", "cuda_double.py"), ("hccl", "npu_double.py"))
}
"""By transport: the framework whose tensors lie in their memory."""


def variables(build: Path) -> dict[str, str]:
    """The environment in which the doubles are found."""
    names = {"CUDA": "libcuda.so.1", "NCCL": "libnccl.so.2", "ASCENDCL": "libascendcl.so", "HCCL": "libhccl.so"}
    files = {f"A2A_{name}_LIBRARY": str(build / "fakes" / file) for name, file in names.items()}
    return {**os.environ, **files, "A2A_TEST_DOUBLES": "1"}
