"""``all_reduce``, ``reduce`` and ``reduce_scatter``: one call of the core each. The ranks' tensors are folded in rank
order, so every rank gets the same bits."""

from __future__ import annotations

from typing import Any

import paddle

import a2a
from a2a.adapting import collective

from ._arguments import fold_of, joined, plain, plain_list, require_parts, require_place
from ._collectives import require_call
from ._groups import rank_in_group
from ._task import Task


@collective
def allreduce(comm: a2a.Communicator, tensor: Any, op: Any, sync_op: bool, use_calc_stream: bool) -> Task:
    require_call(sync_op, use_calc_stream)
    return Task(comm, comm.allreduce(plain(tensor, "tensor"), op=fold_of(op), async_op=not sync_op))


@collective
def reduce(
    comm: a2a.Communicator, group: Any, tensor: Any, dst: Any, op: Any, sync_op: bool, use_calc_stream: bool
) -> Task:
    require_call(sync_op, use_calc_stream)
    root = rank_in_group(dst, "dst", group, comm)
    return Task(comm, comm.reduce(plain(tensor, "tensor"), root=root, op=fold_of(op), async_op=not sync_op))


@collective
def reduce_scatter(
    comm: a2a.Communicator, tensor: Any, given: Any, op: Any, sync_op: bool, use_calc_stream: bool
) -> Task:
    """``given``: a tensor that is divided equally, or a list with one tensor for each rank."""
    require_call(sync_op, use_calc_stream)
    output, fold = plain(tensor, "tensor"), fold_of(op)
    if isinstance(given, paddle.Tensor):
        source = plain(given, "tensor_or_tensor_list")
        require_parts(source, "tensor_or_tensor_list", output, "tensor", comm.size)
        require_place(source, "tensor_or_tensor_list", output, "tensor", comm.rank)
    else:
        source = joined(comm, plain_list(given, "tensor_list", output, "tensor", comm.size))
    return Task(comm, comm.reduce_scatter(source, output, fold, async_op=not sync_op))
