"""Tensors in device memory: Paddle's own process groups carry them, with NCCL and on the streams that the caller chose.
On an a2a communicator a2a's own NCCL does, on Paddle's current stream."""

from __future__ import annotations

from typing import Any

import paddle

import a2a


def is_paddles(tensors: Any, group: Any) -> bool:
    """Whether a call is Paddle's own business: it is about a tensor, or a list of them, in device memory, on a group
    that Paddle has."""
    if isinstance(group, a2a.Communicator):
        return False
    if isinstance(tensors, (list, tuple)):
        return any(_on_device(tensor) for tensor in tensors)
    return _on_device(tensors)


def _on_device(tensor: Any) -> bool:
    if not isinstance(tensor, paddle.Tensor):
        return False
    place = tensor.place
    return not (place.is_cpu_place() or place.is_cuda_pinned_place())
