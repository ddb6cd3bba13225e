"""PyTorch tensors over the kit's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..cases import DTYPES as _ALL

DTYPES = set(_ALL)
OUTPUTS = True


def prepare() -> None:
    torch.set_num_threads(1)


def tensor(memory: npt.NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> Any:
    return torch.from_numpy(memory).view(getattr(torch, dtype)).reshape(shape)
