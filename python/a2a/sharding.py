"""Where the parts of a tensor are among ranks, for ``comm.reshard`` and its plans: any sharding to any other.

A Sharding is a mesh of ranks with a placement for each of its axes, as Torch's DTensor and NCCL's M2N have them. Boxes
by rank serve as well: a dict or a list of tuples of slices, such as JAX's ``devices_indices_map``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._core import (
    InvalidArgumentError,
    Partial,
    Replicate,
    Shard,
    Sharding,
    reshard_matrices,
)

__all__ = ["Partial", "Replicate", "Shard", "Sharding", "exchanges", "matrix"]


def exchanges(
    tensors: Sequence[tuple[Sequence[int], Any, Any, Any]], size: int, hosts: Sequence[int] | None = None
) -> npt.NDArray[np.uint64]:
    """Return the bytes that each of ``size`` ranks sends each when these tensors are resharded: an array of
    [stages, size, size], of stages that follow one another. What a rank copies itself is on the diagonal. A tensor is
    (shape, src, dst, dtype), as for ``comm.plan_reshard_all``. ``hosts[r]`` is any number that rank r shares with the
    ranks of its host alone; None: all are on one host. Raises InvalidArgumentError as ``plan_reshard_all``."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InvalidArgumentError(f"size is {size!r}; pass the number of ranks")
    return reshard_matrices(tensors, size, hosts)


def matrix(
    tensors: Sequence[tuple[Sequence[int], Any, Any, Any]], size: int, hosts: Sequence[int] | None = None
) -> npt.NDArray[np.uint64]:
    """Return the sum of ``exchanges`` over the stages: an array of [size, size]."""
    total: npt.NDArray[np.uint64] = exchanges(tensors, size, hosts).sum(0)
    return total
