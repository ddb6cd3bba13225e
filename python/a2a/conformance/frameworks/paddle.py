"""Paddle tensors on the host."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

import a2a

from ..cases import DTYPES as _ALL
from ..host import MEMORY, make, read

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="No ccache found")
    import paddle

__all__ = ["DTYPES", "MEMORY", "OUTPUTS", "make", "prepare", "read", "tensor"]

# Those three have names, and can be imported, but Paddle has no kernels for them, not even to make an empty tensor.
DTYPES = frozenset(name for name in _ALL if hasattr(paddle, name)) - {"uint16", "uint32", "uint64"}
OUTPUTS = True


def prepare(rank: int) -> None:
    paddle.device.set_device("cpu")
    # The first call of an operator registers all of them, which threads must not do at once.
    paddle.zeros([1]).reshape([-1])


def tensor(memory: npt.NDArray[np.uint8], offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
    return paddle.from_dlpack(a2a.from_pointer(memory.ctypes.data + offset, shape, dtype, owner=memory))
