"""Paddle tensors over the kit's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import paddle

import a2a

from ..cases import DTYPES as _ALL

DTYPES = set(_ALL) - {"uint16", "uint32", "uint64"}
OUTPUTS = True


def prepare() -> None:
    paddle.device.set_device("cpu")


def tensor(memory: npt.NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> Any:
    return paddle.from_dlpack(a2a.from_pointer(memory.ctypes.data, shape, dtype, owner=memory))
