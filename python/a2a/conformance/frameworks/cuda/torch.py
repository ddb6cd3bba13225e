"""PyTorch tensors on NVIDIA GPUs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...cases import DTYPES as _BYTES
from ..torch import DTYPES, OUTPUTS

__all__ = ["DTYPES", "MEMORY", "OUTPUTS", "devices", "make", "prepare", "read", "tensor"]

MEMORY = "cuda"


def devices() -> int:
    return int(torch.cuda.device_count())


def prepare(rank: int) -> None:
    torch.set_num_threads(1)
    torch.cuda.set_device(rank)


def make(content: npt.NDArray[np.uint8]) -> Any:
    return torch.from_numpy(content).to(MEMORY)  # torch's allocations are aligned to 512 bytes


def tensor(memory: Any, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
    part = memory[offset : offset + math.prod(shape) * _BYTES[dtype]]
    return part.view(getattr(torch, dtype)).reshape(shape)


def read(thing: Any) -> npt.NDArray[np.uint8]:
    flat = thing.detach().contiguous().reshape(-1).view(torch.uint8)
    return np.asarray(flat.cpu().numpy())  # which comes after what is on the current stream
