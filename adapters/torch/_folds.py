"""Converts torch's ReduceOp to the core's names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from a2a import InvalidArgumentError
from a2a.adapting import refuse

from ._staging import inner

__all__ = ["fold_of", "scaled"]

# By the number of the operation: hash() is the fastest way to get it.
_FOLDS = {0: "sum", 1: "avg", 2: "prod", 3: "min", 4: "max", 5: "band", 6: "bor", 7: "bxor"}
_PREMUL_SUM = 8


def fold_of(comm: Any, op: Any) -> str | None:
    """Return the core's name of a ReduceOp; None for PREMUL_SUM, a sum of tensors that are scaled() first."""
    try:
        number = hash(op)
        return _FOLDS[number]
    except KeyError:
        if number == _PREMUL_SUM and getattr(op, "factor", None) is not None:
            return None
    except TypeError:
        pass
    raise refuse(comm, InvalidArgumentError(f"op is {op!r}; pass one of torch.distributed.ReduceOp"))


def scaled(tensor: Tensor, op: Any) -> Tensor:
    """Return the summand of PREMUL_SUM: a new tensor, this rank's times its factor."""
    with torch.no_grad():
        return inner(torch.mul(tensor, op.factor).to(tensor.dtype))
