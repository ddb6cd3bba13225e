"""``paddle.distributed.utils.moe_utils``: sends rows to their experts, and back. Names that are not here are
Paddle's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle
from paddle.distributed.utils import moe_utils as _paddle

import a2a
from a2a.adapting import collective

from .. import _autograd
from .._collectives import dialect, require_call
from .._device import is_paddles, original
from .._groups import get_communicator

__all__ = ["global_gather", "global_scatter"]

_EXPERTS = dialect("x", "out", "local_count", "global_count")


def global_scatter(x: Any, local_count: Any, global_count: Any, group: Any = None, use_calc_stream: bool = True) -> Any:
    """Send rows to experts: E on each of W ranks. Mirrors paddle.distributed.utils.global_scatter.

    Args:
        x: [N, features], any dtype; its rows packed by (rank, expert).
        local_count: int64, 1-D, W * E: ``local_count[r * E + e]`` rows go to expert e of rank r. Sums to N.
        global_count: the same shape: ``global_count[r * E + e]`` rows come from rank r for this rank's expert e.
        group: a Paddle group, an a2a communicator, or None for all ranks.
        use_calc_stream: the stream that Paddle's own groups use for device tensors; otherwise without effect.

    Returns a new tensor [sum(global_count), features], packed by (expert, source rank), when all data has arrived; None
    on a rank that is not in the group. Its gradient is global_gather's. Raises a2a.InvalidArgumentError before anything
    moves, and peers then raise a2a.MismatchError, as do two ranks whose counts disagree."""
    if is_paddles((x, group)):
        return original(_paddle, "global_scatter")(x, local_count, global_count, group, use_calc_stream)
    comm = get_communicator(group)
    return None if comm is None else _exchange(comm, False, x, local_count, global_count)


def global_gather(x: Any, local_count: Any, global_count: Any, group: Any = None, use_calc_stream: bool = True) -> Any:
    """The inverse of global_scatter with the same counts: ``x`` [sum(global_count), features] packed by (expert, source
    rank) becomes [sum(local_count), features] packed by (rank, expert). Otherwise like global_scatter."""
    if is_paddles((x, group)):
        return original(_paddle, "global_gather")(x, local_count, global_count, group, use_calc_stream)
    comm = get_communicator(group)
    return None if comm is None else _exchange(comm, True, x, local_count, global_count)


@collective
def _exchange(comm: a2a.Communicator, gather: bool, x: Any, local_count: Any, global_count: Any) -> Any:
    require_call(True, False)
    if isinstance(x, paddle.Tensor) and x.ndim != 2:
        raise a2a.InvalidArgumentError(f"x must be 2-D, [rows, features], but its shape is {list(x.shape)}")
    counts = _counts(local_count, "local_count"), _counts(global_count, "global_count")
    ways = _EXPERTS.global_scatter, _EXPERTS.global_gather
    forth, home = ways[::-1] if gather else ways

    def there(tensors: Sequence[Any]) -> Sequence[Any]:
        return [forth(comm, tensors[0].detach(), *counts)]

    def back(gradients: Sequence[Any]) -> Sequence[Any]:
        return [home(comm, gradients[0].detach(), *counts)]

    if not _autograd.wants_gradient([x]):
        return forth(comm, x, *counts)
    return _autograd.results(comm, [x], there([x]), back, there)[0]


def _counts(counts: Any, name: str) -> Any:
    """Return the counts as a list, of a tensor on any device, so that the program cannot change them before the
    backward pass."""
    if not hasattr(counts, "dtype"):
        return list(counts) if isinstance(counts, (list, tuple)) else counts
    dtype, shape = str(counts.dtype).rpartition(".")[2], list(counts.shape)
    if dtype != "int64" or len(shape) != 1:
        raise a2a.InvalidArgumentError(f"{name} must be a 1-D int64 tensor, but is {dtype} of shape {shape}")
    return counts.tolist()


def __getattr__(name: str) -> Any:
    return getattr(_paddle, name)
