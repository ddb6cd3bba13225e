"""PyTorch tensors on the host."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..cases import DTYPES as _ALL
from ..host import MEMORY, make, read

__all__ = ["DTYPES", "MEMORY", "OUTPUTS", "make", "prepare", "read", "tensor"]

DTYPES = frozenset(name for name in _ALL if hasattr(torch, name))
OUTPUTS = True


def prepare(rank: int) -> None:
    torch.set_num_threads(1)


def tensor(memory: npt.NDArray[np.uint8], offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
    part = memory[offset : offset + math.prod(shape) * _ALL[dtype]]
    return torch.from_numpy(part).view(getattr(torch, dtype)).reshape(shape)
