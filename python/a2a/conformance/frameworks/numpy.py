"""NumPy arrays; bfloat16 and the float8 kinds need ml_dtypes."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cases import DTYPES as _ALL

_MORE = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
DTYPES = set(_ALL) if importlib.util.find_spec("ml_dtypes") else set(_ALL) - _MORE
OUTPUTS = True


def prepare() -> None:
    pass


def tensor(memory: npt.NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> Any:
    kind = np.dtype(getattr(importlib.import_module("ml_dtypes"), dtype) if dtype in _MORE else dtype)
    return memory.view(kind).reshape(shape)
