"""NumPy arrays. Dtypes without a NumPy name come from ml_dtypes, if it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import math
from typing import Any

import numpy as np

from .._core import dtype_names
from ._framework import Framework


class NumPy(Framework):
    """The bindings themselves handle NumPy's arrays."""

    packages = ("numpy",)
    bfloat16 = importlib.util.find_spec("ml_dtypes") is not None

    def dtypes(self) -> frozenset[str]:
        """Return the dtypes of NumPy and of ml_dtypes."""
        more = importlib.import_module("ml_dtypes") if self.bfloat16 else None
        return frozenset(name for name in dtype_names if hasattr(np, name) or hasattr(more, name))

    def tensor(self, memory: Any, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return a view."""
        kind = np.dtype(dtype if hasattr(np, dtype) else getattr(importlib.import_module("ml_dtypes"), dtype))
        return memory[offset : offset + math.prod(shape) * kind.itemsize].view(kind).reshape(shape)


FRAMEWORK = NumPy
