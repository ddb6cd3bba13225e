"""``paddle.distributed.stream``: the same exchanges with a choice of stream. ``use_calc_stream`` needs ``sync_op``, and
means something where Paddle itself carries device tensors. Names that are not here are Paddle's."""

from __future__ import annotations

from typing import Any

from paddle.distributed import stream as _paddle

from . import _collectives
from ._task import Task

__all__ = ["all_gather", "alltoall", "alltoall_single"]


def alltoall_single(
    out_tensor: Any,
    in_tensor: Any,
    out_split_sizes: list[int] | None = None,
    in_split_sizes: list[int] | None = None,
    group: Any = None,
    sync_op: bool = True,
    use_calc_stream: bool = False,
) -> Task | None:
    """Sends ``in_split_sizes[r]`` rows of dim 0 of ``in_tensor`` to each rank r and receives ``out_split_sizes[r]``
    rows from it into ``out_tensor``. Mirrors paddle.distributed.stream.alltoall_single of Paddle 3.3.1.

    Args:
        out_tensor, in_tensor: contiguous tensors of one dtype, in memory of their own. Their rows may have different
            shapes if the numbers of elements fit.
        out_split_sizes, in_split_sizes: rows for each rank; None or [] for equal parts. In this order, which
            ``alltoall_single`` outside of ``stream`` has the other way round.
        group: a Paddle group, an a2a communicator, or None for all ranks.
        sync_op: whether to wait; on devices, whether what follows on Paddle's current stream does. Otherwise
            ``out_tensor`` is valid, and ``in_tensor`` may change, after ``wait()``.
        use_calc_stream: only with ``sync_op``.

    Returns a Task; None, with a warning, on a rank that is not in the group. If ``in_tensor`` has a gradient,
    ``out_tensor`` becomes its result. Raises a2a.InvalidArgumentError, which is Paddle's class, too, before anything
    moves; its peers then raise a2a.MismatchError, as do ranks whose sizes disagree."""
    return _collectives.alltoall_single(
        _collectives.STREAM_SINGLE,
        out_tensor,
        in_tensor,
        out_split_sizes,
        in_split_sizes,
        group,
        sync_op,
        use_calc_stream,
    )


def alltoall(
    out_tensor_or_tensor_list: Any,
    in_tensor_or_tensor_list: Any,
    group: Any = None,
    sync_op: bool = True,
    use_calc_stream: bool = False,
) -> Task | None:
    """Two tensors, whose dim 0 is divided equally among the ranks; or two lists with one tensor for each rank, of any
    shapes. Mirrors paddle.distributed.stream.alltoall of Paddle 3.3.1; arguments as in ``alltoall_single``.

    An empty output list, on every rank, is filled with tensors of the shapes that the other ranks sent, which costs
    another round. Otherwise its tensors have the number of elements of what they receive."""
    return _collectives.alltoall(out_tensor_or_tensor_list, in_tensor_or_tensor_list, group, sync_op, use_calc_stream)


def all_gather(
    tensor_or_tensor_list: Any,
    tensor: Any,
    group: Any = None,
    sync_op: bool = True,
    use_calc_stream: bool = False,
) -> Task:
    """Every rank's ``tensor``, all of one shape, in rank order: in one tensor of ``size`` times the elements,
    concatenated or stacked, or in a list, which may be empty. Mirrors paddle.distributed.stream.all_gather of Paddle
    3.3.1; arguments as in ``alltoall_single``. Has no gradient. RuntimeError on a rank that is not in the group."""
    return _collectives.all_gather(tensor_or_tensor_list, tensor, group, sync_op, use_calc_stream)


def __getattr__(name: str) -> Any:
    return getattr(_paddle, name)
