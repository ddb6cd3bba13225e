"""``paddle.distributed.utils.moe_utils``: rows to the experts they were routed to, and back. Names that are not here
are Paddle's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddle.distributed.utils import moe_utils as _paddle

import a2a

from .. import _autograd
from .._arguments import Refusing, expert_counts, require_tensor
from .._device import is_paddles
from .._groups import get_communicator

__all__ = ["global_gather", "global_scatter"]


def global_scatter(x: Any, local_count: Any, global_count: Any, group: Any = None, use_calc_stream: bool = True) -> Any:
    """Sends rows to experts: E on each of W ranks. Mirrors paddle.distributed.utils.global_scatter.

    Args:
        x: [N, features], contiguous, any dtype; its rows packed by (rank, expert).
        local_count: int64, 1-D, W * E: ``local_count[r * E + e]`` rows go to expert e of rank r. Sums to N.
        global_count: the same shape: ``global_count[r * E + e]`` rows come from rank r for this rank's expert e.
        group: a Paddle group, an a2a communicator, or None for all ranks.
        use_calc_stream: which stream Paddle's own groups use for device tensors; otherwise without effect.

    Returns a new tensor [sum(global_count), features], packed by (expert, source rank), once it is filled; None on a
    rank that is not in the group. Its gradient is global_gather's. Raises a2a.InvalidArgumentError before anything
    moves, and peers then raise a2a.MismatchError, as do two ranks whose counts disagree."""
    if is_paddles(x, group):
        return _paddle.global_scatter(x, local_count, global_count, group, use_calc_stream)
    return _exchange(False, x, local_count, global_count, group)


def global_gather(x: Any, local_count: Any, global_count: Any, group: Any = None, use_calc_stream: bool = True) -> Any:
    """The way back of global_scatter with the same counts: ``x`` [sum(global_count), features] packed by (expert,
    source rank) becomes [sum(local_count), features] packed by (rank, expert). Otherwise like global_scatter."""
    if is_paddles(x, group):
        return _paddle.global_gather(x, local_count, global_count, group, use_calc_stream)
    return _exchange(True, x, local_count, global_count, group)


def _exchange(gather: bool, x: Any, local_count: Any, global_count: Any, group: Any) -> Any:
    comm = get_communicator(group)
    if comm is None:
        return None
    with Refusing(comm):
        require_tensor(x, "x")
        if x.ndim != 2:
            raise a2a.InvalidArgumentError(f"x must be 2-D, [rows, features], but its shape is {list(x.shape)}")
        local, global_ = expert_counts(local_count, "local_count"), expert_counts(global_count, "global_count")
        _require_lengths(local, global_, comm.size)
        _require_rows(x, *(("global_count", global_) if gather else ("local_count", local)))
    ways = (comm.global_gather, comm.global_scatter) if gather else (comm.global_scatter, comm.global_gather)

    def there(tensors: Sequence[Any]) -> Sequence[Any]:
        return [ways[0](_autograd.plain(tensors[0]), local, global_)]

    def back(gradients: Sequence[Any]) -> Sequence[Any]:
        return [ways[1](_autograd.plain(gradients[0]), local, global_)]

    outputs = there([x])
    return (_autograd.results([x], outputs, back, there) if _autograd.wants_gradient([x]) else outputs)[0]


def _require_lengths(local: list[int], global_: list[int], size: int) -> None:
    if len(local) != len(global_):
        raise a2a.InvalidArgumentError(
            f"local_count has {len(local)} entries, but global_count has {len(global_)}; both have one for each rank "
            "and expert"
        )
    if not local or len(local) % size:
        raise a2a.InvalidArgumentError(
            f"local_count has {len(local)} entries, which is no multiple of the {size} ranks; it has n_expert * "
            "world_size"
        )


def _require_rows(x: Any, name: str, counts: list[int]) -> None:
    if sum(counts) != x.shape[0]:
        raise a2a.InvalidArgumentError(
            f"{name} {counts} sums to {sum(counts)}, but x of shape {list(x.shape)} has {x.shape[0]} rows"
        )


def __getattr__(name: str) -> Any:
    return getattr(_paddle, name)
