"""``broadcast``, ``scatter`` and ``gather``: one rank sends to all, or receives from all. One call of the core each."""

from __future__ import annotations

import warnings
from typing import Any

import paddle

import a2a
from a2a.adapting import collective

from ._arguments import joined, plain, plain_list, require_parts, require_place
from ._collectives import dialect, require_call
from ._errors import CallError
from ._groups import rank_in_group
from ._task import Task

_GATHER_LIST = dialect("tensor", "gather_list")


@collective
def broadcast(comm: a2a.Communicator, group: Any, tensor: Any, src: Any, sync_op: bool, use_calc_stream: bool) -> Task:
    require_call(sync_op, use_calc_stream)
    root = rank_in_group(src, "src", group, comm)
    return Task(comm, comm.broadcast(plain(tensor, "tensor"), root, async_op=not sync_op))


@collective
def scatter(
    comm: a2a.Communicator, group: Any, tensor: Any, given: Any, src: Any, sync_op: bool, use_calc_stream: bool
) -> Task:
    """``given`` on rank ``src``: a tensor that is divided equally, or a list with one tensor for each rank."""
    require_call(sync_op, use_calc_stream)
    root = rank_in_group(src, "src", group, comm)
    output, source = plain(tensor, "tensor"), None
    if comm.rank != root:
        if given is not None:
            warnings.warn("Specific `tensor_or_tensor_list` is meaningless for rank which is not src.", stacklevel=5)
    elif isinstance(given, paddle.Tensor):
        source = plain(given, "tensor_or_tensor_list")
        require_parts(source, "tensor_or_tensor_list", output, "tensor", comm.size)
        require_place(source, "tensor_or_tensor_list", output, "tensor", comm.rank)
    elif not given:
        raise CallError("The tensor_list should not be empty on src rank.")
    else:
        source = joined(comm, plain_list(given, "tensor_list", output, "tensor", comm.size))
    return Task(comm, comm.scatter(source, output, root, async_op=not sync_op))


@collective
def gather(
    comm: a2a.Communicator, group: Any, tensor: Any, outputs: Any, dst: Any, sync_op: bool, use_calc_stream: bool
) -> Task:
    """Gather into the list ``outputs`` of rank ``dst``, which is filled with new tensors if it is empty."""
    require_call(sync_op, use_calc_stream)
    root = rank_in_group(dst, "dst", group, comm)
    given = plain(tensor, "tensor")
    if comm.rank != root:
        if outputs is not None:
            warnings.warn("Specific `gather_list` is meaningless for rank which is not dst.", stacklevel=5)
        return Task(comm, _GATHER_LIST.gather_list(comm, None, given, root, not sync_op))
    if outputs is None:
        raise CallError("gather_list must not be none for dst rank")
    fills = isinstance(outputs, list) and not outputs
    made = [paddle.empty_like(given) for _ in range(comm.size)] if fills else outputs
    targets = plain_list(made, "gather_list", given, "tensor", comm.size)
    work = _GATHER_LIST.gather_list(comm, targets, given, root, not sync_op)
    if fills:
        outputs.extend(made)
    return Task(comm, work)
