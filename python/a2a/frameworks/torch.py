"""PyTorch tensors on the host, on NVIDIA GPUs, and by torch_npu on Ascend devices."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from .._core import dtype_names
from ._framework import Bytes, Framework, Recorder, bytes_of


class Torch(Framework):
    """Its tensors have DLPack's C exchange API, with an allocator and, on GPUs, the current stream."""

    packages = ("torch", "torch_npu")
    memories = ("host", "cuda", "npu")

    def recorder(self, kind: type[Any]) -> Recorder | None:
        """Return Torch's own functions."""
        torch = _torch()
        base = torch.Tensor
        if not issubclass(kind, base):
            return None
        # A subclass answers each call itself, by __torch_function__.
        own = kind is base or kind.__torch_function__ is torch._C._disabled_torch_function_impl
        return Recorder(
            requires_grad=base.requires_grad.__get__,
            grad_enabled=torch.is_grad_enabled,
            wrote=torch._C._increment_version,
            several=True,
            calls="a2a.torch.nn",
            is_neg=base.is_neg,
            is_conj=base.is_conj,
            guard=None if own else torch._C.DisableTorchFunctionSubclass,
            dispatches=kind.__torch_dispatch__ is not base.__torch_dispatch__,
            values=getattr(kind, "trigger_wait", None),  # of an AsyncCollectiveTensor
        )

    def current_stream(self, memory: str, device: int) -> int | None:
        """Return Torch's current stream, which versions without the exchange API have, too."""
        torch = _torch()
        if memory == "cuda":
            return int(torch.cuda.current_stream(device).cuda_stream)
        return int(torch.npu.current_stream(device).npu_stream) if hasattr(torch, "npu") else None

    def dtypes(self) -> frozenset[str]:
        """Return the dtypes that this version has."""
        torch = _torch()
        return frozenset(name for name in dtype_names if hasattr(torch, name))

    def devices(self) -> int:
        """Return the number of GPUs, or of torch_npu's devices."""
        return int(self._device_module().device_count()) if self.memory != "host" else 0

    def prepare(self, rank: int) -> None:
        """Use one thread for each rank."""
        _torch().set_num_threads(1)
        if self.memory != "host":
            self._device_module().set_device(rank)

    def make(self, content: Bytes) -> Any:
        """Torch's own allocations are aligned to 512 bytes."""
        if self.memory == "host":
            return super().make(content)
        return _torch().from_numpy(content).to(self.memory)

    def tensor(self, memory: Any, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return a view."""
        torch = _torch()
        kind = getattr(torch, dtype)
        part = memory[offset : offset + math.prod(shape) * kind.itemsize]
        return (torch.from_numpy(part) if self.memory == "host" else part).view(kind).reshape(shape)

    def read(self, thing: Any) -> Bytes:
        """Return the bytes. The copy from a GPU is made after the work on the current stream."""
        torch = _torch()
        if not isinstance(thing, torch.Tensor):
            return bytes_of(thing)
        return np.asarray(thing.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy())

    def _device_module(self) -> Any:
        return importlib.import_module("torch_npu").npu if self.memory == "npu" else _torch().cuda


def _torch() -> Any:
    return importlib.import_module("torch")


FRAMEWORK = Torch
