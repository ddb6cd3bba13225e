"""Differentiable collectives; see ``a2a.torch.nn.functional``."""

from __future__ import annotations

from typing import Any

from . import functional
from .functional import (
    all_gather_into_tensor,
    all_gather_single,
    all_to_all,
    all_to_all_axis,
    all_to_all_single,
    global_gather,
    global_scatter,
    shard_dim_alltoall,
)

__all__ = [
    "all_gather_into_tensor",
    "all_gather_single",
    "all_to_all",
    "all_to_all_axis",
    "all_to_all_single",
    "functional",
    "global_gather",
    "global_scatter",
    "shard_dim_alltoall",
]


def __getattr__(name: str) -> Any:
    import torch.distributed.nn as theirs

    return getattr(theirs, name)
