"""The arithmetic of a2a.quantized on Torch tensors of any device. The results have the same bits as in C++ on the
host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from a2a._core import InvalidArgumentError  # not from a2a, which has this module for its own calls

__all__ = ["DeviceArithmetic"]

# The limits of a scale: the smallest normal float32, and the largest for which 127 times the scale is finite.
_LEAST = float(np.finfo(np.float32).tiny)
_MOST = float(np.finfo(np.float32).max / np.float32(127) * (np.float32(1) - np.float32(2**-23)))


class DeviceArithmetic:
    """The arithmetic on flat tensors of one device. quantize.h defines the functions."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def flat(self, x: Any, name: str, *dtypes: str) -> tuple[Any, str]:
        dtype = str(x.dtype).removeprefix("torch.")
        if dtype not in dtypes:
            raise InvalidArgumentError(f"{name} has dtype {dtype}; pass {' or '.join(dtypes)}")
        if not x.is_contiguous():
            raise InvalidArgumentError(f"{name} is not contiguous; pass {name}.contiguous()")
        return x.detach().reshape(-1), dtype

    def message(self, *parts: Any) -> Any:
        tensors = [torch.from_numpy(part).to(self._device) if isinstance(part, np.ndarray) else part for part in parts]
        return torch.cat([tensor.contiguous().view(torch.uint8) for tensor in tensors])

    def joined(self, messages: list[Any], dtype: str) -> Any:
        return torch.cat(messages).view(getattr(torch, dtype))  # a new tensor, so the elements are aligned

    def empty(self, elems: int, dtype: Any = torch.uint8) -> Any:
        return torch.empty(elems, dtype=dtype, device=self._device)

    def on_host(self, message: Any) -> npt.NDArray[np.uint8]:
        host: npt.NDArray[np.uint8] = message.cpu().numpy()
        return host

    def to_float32(self, flat: Any, dtype: str) -> Any:
        return flat.to(torch.float32)

    def from_float32(self, flat: Any, dtype: str, out: Any) -> None:
        out.copy_(flat)

    def new_like(self, like: Any, dtype: str) -> tuple[Any, Callable[[], Any]]:
        made = torch.empty(like.shape, dtype=getattr(torch, dtype), device=self._device)
        return made.reshape(-1), lambda: made

    def dequantize_sum(
        self, q: Any, ranks: int, scale: npt.NDArray[np.float32], offset: npt.NDArray[np.float32], first: int
    ) -> Any:
        sums = q.view(ranks, -1).sum(0, dtype=torch.int32).to(torch.float32)
        shift = offset * np.float32(ranks)
        return (sums + self._spread(shift, first, len(sums))) * self._spread(scale, first, len(sums))

    def _spread(self, values: npt.NDArray[np.float32], first: int, elems: int) -> Any:
        """Return one value for each element, from one for all or one for each channel."""
        tensor = torch.from_numpy(np.roll(values, -(first % max(len(values), 1)))).to(self._device)
        return tensor if len(values) == 1 else tensor.repeat(-(-elems // max(len(values), 1)))[:elems]

    def quantize_blocks(self, flat: Any, block: int) -> tuple[Any, Any]:
        elems, blocks = len(flat), -(-len(flat) // block)
        if elems == 0:
            return self.empty(0, torch.int8), self.empty(0, torch.float32)
        rows = torch.nn.functional.pad(flat, (0, blocks * block - elems)).view(blocks, block)
        most = rows.abs().amax(1)
        scales = (most / 127).clamp(_LEAST, _MOST)
        scales = torch.where(most == 0, torch.ones_like(scales), scales)
        scales = torch.where(most.isfinite(), scales, torch.full_like(scales, torch.nan))
        q = (rows / scales[:, None]).round().clamp(-127, 127).nan_to_num(0.0).to(torch.int8)
        return q.view(-1)[:elems], scales

    def dequantize_blocks_sum(self, q: Any, scales: Any, ranks: int, block: int) -> Any:
        elems = len(q) // ranks
        spread = scales.view(ranks, -1).repeat_interleave(block, dim=1)[:, :elems] if elems else scales.view(ranks, 0)
        parts = q.view(ranks, elems).to(torch.float32) * spread
        total = parts[0].clone()
        for part in parts[1:]:  # in this order on every rank, and in C++
            total += part
        return total
