"""All-reduce of sparse tensors, such as gradients of embeddings: every rank gets all indices and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from a2a import InvalidArgumentError, MismatchError
from a2a.adapting import collective, everywhere, refuse, takes

from .reduce_ops import fold_of
from .staging import inner, read_now, require_writable
from .work import FinishedWork

__all__ = ["all_reduce"]


@collective
def all_reduce(comm: Any, tensor: Tensor, op: Any, async_op: bool, seconds: float | None) -> FinishedWork | None:
    """Write the sum in rank order, coalesced, into ``tensor``. Done when it returns, also with ``async_op``."""
    takes(3)
    if fold_of(comm, op) != "sum":
        raise refuse(comm, InvalidArgumentError(f"op is {op!r}; sparse tensors are added up, with ReduceOp.SUM"))
    require_writable(comm, "tensor", tensor)
    read_now(comm, [tensor._indices(), tensor._values()])
    own = tensor.detach().coalesce()
    counts = _counts(comm, own, seconds)
    # Entries are sent as rows; they are columns of the indices.
    indices = _gathered(comm, lambda: own.indices().t(), counts, seconds).t()
    values = _gathered(comm, own.values, counts, seconds)
    parts = [
        torch.sparse_coo_tensor(*pair, tuple(own.shape), is_coalesced=True, check_invariants=False)
        for pair in zip(indices.split(counts, 1), values.split(counts), strict=True)
    ]
    with torch.no_grad():
        tensor.copy_(sum(parts[1:], parts[0]).coalesce())
    return FinishedWork([tensor]) if async_op else None


def _counts(comm: Any, own: Tensor, seconds: float | None) -> list[int]:
    """Return the number of entries of each rank."""
    facts = torch.tensor([own.values().shape[0], own.sparse_dim(), *own.shape])
    everyone = facts.new_empty((comm.size, len(facts)))
    comm.allgather(facts, everyone, timeout=seconds)
    for rank, (_, dims, *shape) in enumerate(everyone.tolist()):
        if (dims, shape) != (own.sparse_dim(), list(own.shape)):
            text = (
                f"allreduce: rank {comm.rank} has a sparse tensor of shape {list(own.shape)} with {own.sparse_dim()} "
                f"sparse dimensions, rank {rank} one of shape {shape} with {dims}"
            )
            raise everywhere(MismatchError(text))
    return list(everyone[:, 0].tolist())


@collective
def _gathered(comm: Any, entries: Callable[[], Tensor], counts: list[int], seconds: float | None) -> Tensor:
    mine = inner(entries())
    everyone = mine.new_empty((sum(counts), *mine.shape[1:]))
    comm.allgatherv(mine, everyone, counts, timeout=seconds)
    return everyone
