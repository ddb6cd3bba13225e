"""The functions of ``paddle.distributed``: those of ``stream`` without a choice of stream, and those that only this
module has. The orders of arguments are those of Paddle 3.3.1."""

from __future__ import annotations

from typing import Any

import paddle.distributed as _paddle
from paddle.distributed import ReduceOp

import a2a

from . import _axes, _collectives, _messages, _objects, _reductions, _rooted
from ._device import or_paddles, original
from ._groups import for_members, get_communicator, require_member
from ._profiler import recorded
from ._task import Task, finish_all


@or_paddles(_paddle)
def alltoall_single(
    out_tensor: Any,
    in_tensor: Any,
    in_split_sizes: list[int] | None = None,
    out_split_sizes: list[int] | None = None,
    group: Any = None,
    sync_op: bool = True,
) -> Task | None:
    """``stream.alltoall_single`` without a choice of stream, and with the two lists of sizes in the opposite order, as
    in Paddle 3.3.1. In Paddle 2 the tensors were in the opposite order, too."""
    call, words = _collectives.alltoall_single, _collectives.SINGLE
    return for_members(group, call, words, out_tensor, in_tensor, out_split_sizes, in_split_sizes, sync_op, False)


@or_paddles(_paddle)
def alltoall(out_tensor_list: Any, in_tensor_list: Any, group: Any = None, sync_op: bool = True) -> Task | None:
    """``stream.alltoall`` without a choice of stream. Output first, as in Paddle 3; in Paddle 2 it came second."""
    return for_members(group, _collectives.alltoall, out_tensor_list, in_tensor_list, sync_op, False)


def alltoall_axis(
    in_tensor: Any,
    split_axis: int,
    concat_axis: int,
    group: Any = None,
    split_sizes: list[int] | None = None,
    concat_sizes: list[int] | None = None,
) -> Any:
    """The next ``split_sizes[p]`` entries of ``split_axis`` go to rank p, as a slice of ``in_tensor``, a host tensor
    with any strides; ``concat_sizes[p]`` entries of ``concat_axis`` come from rank p. Returns a new tensor: the slices
    for this rank, concatenated along ``concat_axis`` in rank order; None on a rank that is not in the group.

    Without ``split_sizes`` the parts are equal. Without ``concat_sizes`` as many entries come from every rank as from
    this one itself. Gradients flow through it, to any order."""
    return for_members(group, _axes.alltoall_axis, in_tensor, split_axis, concat_axis, split_sizes, concat_sizes)


@or_paddles(_paddle)
def all_gather(tensor_list: Any, tensor: Any, group: Any = None, sync_op: bool = True) -> Task:
    """``stream.all_gather`` without a choice of stream."""
    return recorded(_collectives.all_gather, require_member(group), tensor_list, tensor, sync_op, False)


@or_paddles(_paddle)
def all_reduce(tensor: Any, op: int = ReduceOp.SUM, group: Any = None, sync_op: bool = True) -> Task | None:
    """``stream.all_reduce`` without a choice of stream."""
    return for_members(group, _reductions.allreduce, tensor, op, sync_op, False)


@or_paddles(_paddle)
def reduce(tensor: Any, dst: int, op: int = ReduceOp.SUM, group: Any = None, sync_op: bool = True) -> Task | None:
    """``stream.reduce`` without a choice of stream."""
    return for_members(group, _reductions.reduce, group, tensor, dst, op, sync_op, False)


@or_paddles(_paddle)
def reduce_scatter(
    tensor: Any, tensor_list: Any, op: int = ReduceOp.SUM, group: Any = None, sync_op: bool = True
) -> Task | None:
    """``stream.reduce_scatter`` without a choice of stream."""
    return for_members(group, _reductions.reduce_scatter, tensor, tensor_list, op, sync_op, False)


@or_paddles(_paddle)
def broadcast(tensor: Any, src: int, group: Any = None, sync_op: bool = True) -> Task | None:
    """``stream.broadcast`` without a choice of stream."""
    return for_members(group, _rooted.broadcast, group, tensor, src, sync_op, False)


@or_paddles(_paddle)
def scatter(tensor: Any, tensor_list: Any = None, src: int = 0, group: Any = None, sync_op: bool = True) -> Task | None:
    """``stream.scatter`` without a choice of stream."""
    return for_members(group, _rooted.scatter, group, tensor, tensor_list, src, sync_op, False)


@or_paddles(_paddle)
def gather(tensor: Any, gather_list: Any = None, dst: int = 0, group: Any = None, sync_op: bool = True) -> Task | None:
    """``stream.gather`` without a choice of stream."""
    return for_members(group, _rooted.gather, group, tensor, gather_list, dst, sync_op, False)


@or_paddles(_paddle)
def send(tensor: Any, dst: int = 0, group: Any = None, sync_op: bool = True) -> Task | None:
    """``stream.send`` without a choice of stream."""
    return for_members(group, _messages.send, group, tensor, dst, sync_op, False)


@or_paddles(_paddle)
def recv(tensor: Any, src: int = 0, group: Any = None, sync_op: bool = True) -> Task | None:
    """``stream.recv`` without a choice of stream."""
    return for_members(group, _messages.recv, group, tensor, src, sync_op, False)


@or_paddles(_paddle)
def isend(tensor: Any, dst: int, group: Any = None) -> Task | None:
    """``send`` that does not wait."""
    return for_members(group, _messages.send, group, tensor, dst, False, False)


@or_paddles(_paddle)
def irecv(tensor: Any, src: int | None = None, group: Any = None) -> Task | None:
    """``recv`` that does not wait. ``src`` has to be given, as in Paddle, in spite of its default."""
    return for_members(group, _messages.recv, group, tensor, src, False, False)


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Append every rank's object, which has to be picklable, to ``object_list``. Raises RuntimeError on a rank that is
    not in the group."""
    _objects.all_gather(require_member(group), object_list, obj)


def broadcast_object_list(object_list: list[Any], src: int, group: Any = None) -> None:
    """The objects of rank ``src`` replace those in ``object_list``, which has as many entries on all ranks."""
    for_members(group, _objects.broadcast, group, object_list, src)


def scatter_object_list(
    out_object_list: list[Any], in_object_list: list[Any] | None = None, src: int = 0, group: Any = None
) -> None:
    """``out_object_list`` becomes a list of one object, this rank's of those in ``in_object_list`` of rank ``src``."""
    for_members(group, _objects.scatter, group, out_object_list, in_object_list, src)


@or_paddles(_paddle)
def wait(tensor: Any, group: Any = None, use_calc_stream: bool = True) -> None:
    """Wait for every operation of the group that this rank has started, with that of ``tensor``, as for each task. A
    device tensor's stream is then synchronised as by Paddle."""
    comm = get_communicator(group)
    if comm is not None:
        finish_all(comm)
    if not tensor.place.is_cpu_place():
        original(_paddle, "wait")(tensor, None if isinstance(group, a2a.Communicator) else group, use_calc_stream)
