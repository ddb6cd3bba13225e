"""NumPy arrays; dtypes that NumPy has no name for come from ml_dtypes, if it is installed."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cases import DTYPES as _ALL
from ..host import MEMORY, make, read

__all__ = ["DTYPES", "MEMORY", "OUTPUTS", "make", "prepare", "read", "tensor"]

_MORE = importlib.import_module("ml_dtypes") if importlib.util.find_spec("ml_dtypes") else None
DTYPES = frozenset(name for name in _ALL if hasattr(np, name) or hasattr(_MORE, name))
OUTPUTS = True


def prepare(rank: int) -> None:
    pass


def tensor(memory: npt.NDArray[np.uint8], offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
    kind = np.dtype(dtype) if hasattr(np, dtype) else np.dtype(getattr(_MORE, dtype))
    count = int(np.prod(shape, dtype=np.int64))
    return memory[offset : offset + count * kind.itemsize].view(kind).reshape(shape)
