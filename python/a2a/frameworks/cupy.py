"""CuPy arrays on NVIDIA GPUs."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from .._core import dtype_names
from ._framework import Bytes, Framework, bytes_of


class CuPy(Framework):
    """CuPy has no C exchange API of DLPack."""

    packages = ("cupy",)
    memories = ("cuda",)

    def empty_like(self, like: Any, shape: list[int]) -> Any:
        """Allocate from CuPy's pool, on the device of ``like``."""
        with like.device:
            return _cupy().empty(shape, like.dtype)

    def current_stream(self, memory: str, device: int) -> int | None:
        """Return CuPy's current stream on the current device."""
        return int(_cupy().cuda.get_current_stream().ptr)

    def dtypes(self) -> frozenset[str]:
        """Return NumPy's dtypes."""
        return frozenset(name for name in dtype_names if hasattr(np, name))

    def devices(self) -> int:
        """Return 0 without a driver, too."""
        runtime = _cupy().cuda.runtime
        try:
            return int(runtime.getDeviceCount())
        except runtime.CUDARuntimeError:
            return 0

    def prepare(self, rank: int) -> None:
        """Set the current device of this thread."""
        _cupy().cuda.Device(rank).use()

    def make(self, content: Bytes) -> Any:
        """CuPy's allocations are aligned to 512 bytes."""
        return _cupy().asarray(content)

    def tensor(self, memory: Any, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return a view."""
        kind = np.dtype(dtype)
        return memory[offset : offset + math.prod(shape) * kind.itemsize].view(kind).reshape(shape)

    def read(self, thing: Any) -> Bytes:
        """Return a copy, made after the work on the current stream."""
        return bytes_of(_cupy().asnumpy(thing))


def _cupy() -> Any:
    return importlib.import_module("cupy")


FRAMEWORK = CuPy
