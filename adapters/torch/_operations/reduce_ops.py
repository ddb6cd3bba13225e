"""Converts torch's ReduceOp to the core's names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from a2a import InvalidArgumentError
from a2a.adapting import refuse

from .staging import inner, read_now

__all__ = ["PREMUL_SUM", "fold_of", "summand"]

PREMUL_SUM = "premul_sum"
# By the number of the operation: hash() is the fastest way to get it.
_FOLDS = {0: "sum", 1: "avg", 2: "prod", 3: "min", 4: "max", 5: "band", 6: "bor", 7: "bxor", 8: PREMUL_SUM}


def fold_of(comm: Any, op: Any) -> str:
    """Return the core's name of a ReduceOp. With PREMUL_SUM each rank sends its summand()."""
    try:
        fold = _FOLDS[hash(op)]
        if fold is not PREMUL_SUM or getattr(op, "factor", None) is not None:
            return fold
    except (KeyError, TypeError):
        pass
    raise refuse(comm, InvalidArgumentError(f"op is {op!r}; pass one of torch.distributed.ReduceOp"))


def summand(comm: Any, tensor: Tensor, op: Any, fold: str) -> Tensor:
    """Return what a rank sends: its tensor, or with PREMUL_SUM a new one, the tensor times the rank's factor. The core
    refuses integers, of which this would be a cut-off multiple."""
    if fold is not PREMUL_SUM:
        return inner(tensor)
    read_now(comm, [tensor])
    with torch.no_grad():
        return inner(torch.mul(tensor, op.factor).to(tensor.dtype))
