"""PyTorch tensors on Ascend devices, by torch_npu."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch_npu

from ..cuda.torch import read, tensor
from ..torch import DTYPES, OUTPUTS

__all__ = ["DTYPES", "MEMORY", "OUTPUTS", "devices", "make", "prepare", "read", "tensor"]

MEMORY = "npu"


def devices() -> int:
    return int(torch_npu.npu.device_count())


def prepare(rank: int) -> None:
    torch.set_num_threads(1)
    torch_npu.npu.set_device(rank)


def make(content: npt.NDArray[np.uint8]) -> Any:
    return torch.from_numpy(content).to(MEMORY)
