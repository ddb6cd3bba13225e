"""``paddle.distributed.stream``: the collectives with a choice of stream. ``use_calc_stream`` needs ``sync_op``, and
has an effect where Paddle itself serves device tensors. Names that are not here are Paddle's.

The common arguments:

    group: a Paddle group, an a2a communicator, or None for all ranks. src, dst: a rank's number in the job, as in
    Paddle; with a communicator its number there. op: one of ReduceOp.SUM, MAX, MIN, PROD and AVG. sync_op: whether to
    wait; on devices, whether later work on Paddle's current stream waits. Otherwise outputs are valid, and inputs may
    change, after ``wait()`` of the task. use_calc_stream: only with ``sync_op``.

Tensors are of one dtype, and on the host may have any strides. The calls return a Task; None, with a warning, on a rank
that is not in the group. They raise a2a.InvalidArgumentError, which is Paddle's class, too, before anything moves; the
peers then raise a2a.MismatchError, as do ranks whose arguments contradict each other.
"""

from __future__ import annotations

from typing import Any

from paddle.distributed import ReduceOp
from paddle.distributed import stream as _paddle

from . import _collectives, _messages, _reductions, _rooted
from ._device import or_paddles
from ._groups import for_members, require_member
from ._profiler import recorded
from ._task import Task

__all__ = [
    "all_gather",
    "all_reduce",
    "alltoall",
    "alltoall_single",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
]


@or_paddles(_paddle)
def alltoall_single(
    out_tensor: Any,
    in_tensor: Any,
    out_split_sizes: list[int] | None = None,
    in_split_sizes: list[int] | None = None,
    group: Any = None,
    sync_op: bool = True,
    use_calc_stream: bool = False,
) -> Task | None:
    """Send ``in_split_sizes[r]`` rows of dim 0 of ``in_tensor`` to each rank r and receive ``out_split_sizes[r]`` rows
    from it into ``out_tensor``. Mirrors paddle.distributed.stream.alltoall_single of Paddle 3.3.1.

    Args:
        out_tensor, in_tensor: in memory of their own. Their rows may have different shapes if the numbers of elements
            fit.
        out_split_sizes, in_split_sizes: rows for each rank; None or [] for equal parts. ``alltoall_single`` outside of
            ``stream`` has the opposite order.

    If ``in_tensor`` has a gradient, ``out_tensor`` becomes its result."""
    call, words = _collectives.alltoall_single, _collectives.STREAM_SINGLE
    sizes = out_split_sizes, in_split_sizes
    return for_members(group, call, words, out_tensor, in_tensor, *sizes, sync_op, use_calc_stream)


@or_paddles(_paddle)
def alltoall(
    out_tensor_or_tensor_list: Any,
    in_tensor_or_tensor_list: Any,
    group: Any = None,
    sync_op: bool = True,
    use_calc_stream: bool = False,
) -> Task | None:
    """Exchange two tensors, whose dim 0 is divided equally among the ranks; or two lists with one tensor for each rank,
    of any shapes. Mirrors paddle.distributed.stream.alltoall of Paddle 3.3.1. Gradients as in ``alltoall_single``.

    An empty output list, which has to be empty on every rank, is filled with tensors of the shapes that the other ranks
    sent, which takes another round. Otherwise its tensors have the numbers of elements that they receive."""
    tensors = out_tensor_or_tensor_list, in_tensor_or_tensor_list
    return for_members(group, _collectives.alltoall, *tensors, sync_op, use_calc_stream)


@or_paddles(_paddle)
def all_gather(
    tensor_or_tensor_list: Any,
    tensor: Any,
    group: Any = None,
    sync_op: bool = True,
    use_calc_stream: bool = False,
) -> Task:
    """Gather every rank's ``tensor``, all of one shape, in rank order: in one tensor of ``size`` times the elements,
    concatenated or stacked, or in a list, which may be empty. Mirrors paddle.distributed.stream.all_gather of Paddle
    3.3.1. Has no gradient. Raises RuntimeError on a rank that is not in the group."""
    gathered = require_member(group), tensor_or_tensor_list, tensor, sync_op, use_calc_stream
    return recorded(_collectives.all_gather, *gathered)


@or_paddles(_paddle)
def all_reduce(
    tensor: Any, op: int = ReduceOp.SUM, group: Any = None, sync_op: bool = True, use_calc_stream: bool = False
) -> Task | None:
    """Replace ``tensor`` on every rank by the ranks' tensors, folded element by element in rank order, so that all get
    the same bits. Mirrors paddle.distributed.stream.all_reduce of Paddle 3.3.1.

    float16, bfloat16 and float8 are folded in float32 and rounded once; integers wrap; of bool, SUM and MAX mean "or",
    PROD and MIN "and"; AVG is for floating and complex dtypes, MAX and MIN are not for complex ones. Has no gradient,
    like all calls below: a tensor that requires one is written, and the graph does not record that."""
    return for_members(group, _reductions.allreduce, tensor, op, sync_op, use_calc_stream)


@or_paddles(_paddle)
def reduce(
    tensor: Any,
    dst: int = 0,
    op: int = ReduceOp.SUM,
    group: Any = None,
    sync_op: bool = True,
    use_calc_stream: bool = False,
) -> Task | None:
    """As all_reduce, but only ``tensor`` of rank ``dst`` is replaced. Mirrors paddle.distributed.stream.reduce of
    Paddle 3.3.1."""
    return for_members(group, _reductions.reduce, group, tensor, dst, op, sync_op, use_calc_stream)


@or_paddles(_paddle)
def reduce_scatter(
    tensor: Any,
    tensor_or_tensor_list: Any,
    op: int = ReduceOp.SUM,
    group: Any = None,
    sync_op: bool = True,
    use_calc_stream: bool = False,
) -> Task | None:
    """``tensor`` becomes this rank's part of the ranks' inputs, folded as by all_reduce: a tensor of ``size`` times the
    elements, which is divided equally, or a list with one tensor for each rank. Lists are copied into one tensor first.
    ``tensor`` may be in the list, or this rank's part of the whole. Mirrors paddle.distributed.stream.reduce_scatter of
    Paddle 3.3.1."""
    return for_members(group, _reductions.reduce_scatter, tensor, tensor_or_tensor_list, op, sync_op, use_calc_stream)


@or_paddles(_paddle)
def broadcast(
    tensor: Any, src: int, group: Any = None, sync_op: bool = True, use_calc_stream: bool = False
) -> Task | None:
    """Copy ``tensor`` of rank ``src`` into ``tensor`` of all others, which has as many elements. Mirrors
    paddle.distributed.stream.broadcast of Paddle 3.3.1."""
    return for_members(group, _rooted.broadcast, group, tensor, src, sync_op, use_calc_stream)


@or_paddles(_paddle)
def scatter(
    tensor: Any,
    tensor_or_tensor_list: Any = None,
    src: int = 0,
    group: Any = None,
    sync_op: bool = True,
    use_calc_stream: bool = False,
) -> Task | None:
    """``tensor`` becomes this rank's part of the input of rank ``src``: a tensor of ``size`` times the elements, or a
    list with one tensor for each rank, which is copied into one first. Inputs of other ranks are ignored with a
    warning. Mirrors paddle.distributed.stream.scatter of Paddle 3.3.1."""
    return for_members(group, _rooted.scatter, group, tensor, tensor_or_tensor_list, src, sync_op, use_calc_stream)


@or_paddles(_paddle)
def gather(
    tensor: Any,
    gather_list: Any = None,
    dst: int = 0,
    group: Any = None,
    sync_op: bool = True,
    use_calc_stream: bool = False,
) -> Task | None:
    """Gather every rank's ``tensor`` in rank order in ``gather_list`` of rank ``dst``: in its tensors, or, if it is
    empty, in new ones. They are filled when the task has been waited for. Other ranks need no list. Mirrors
    paddle.distributed.stream.gather of Paddle 3.3.1."""
    return for_members(group, _rooted.gather, group, tensor, gather_list, dst, sync_op, use_calc_stream)


@or_paddles(_paddle)
def send(
    tensor: Any, dst: int = 0, group: Any = None, sync_op: bool = True, use_calc_stream: bool = False
) -> Task | None:
    """Send ``tensor`` to rank ``dst``, which receives as many elements of the same dtype. Only these two ranks take
    part; messages arrive in the order in which they were sent. A small tensor is copied, so that the call need not wait
    for the receiver. Mirrors paddle.distributed.stream.send of Paddle 3.3.1."""
    return for_members(group, _messages.send, group, tensor, dst, sync_op, use_calc_stream)


@or_paddles(_paddle)
def recv(
    tensor: Any, src: int = 0, group: Any = None, sync_op: bool = True, use_calc_stream: bool = False
) -> Task | None:
    """Receive into ``tensor`` the message of rank ``src``; see ``send``. Mirrors paddle.distributed.stream.recv of
    Paddle 3.3."""
    return for_members(group, _messages.recv, group, tensor, src, sync_op, use_calc_stream)


def __getattr__(name: str) -> Any:
    return getattr(_paddle, name)
