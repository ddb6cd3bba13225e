"""Functions that the MoELayer of ``paddle.incubate`` and its gates lack on the CPU. enable() installs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
from paddle.base import core
from paddle.distributed.fleet.utils import recompute
from paddle.distributed.models.moe import utils as _operators
from paddle.distributed.utils import nccl_utils
from paddle.incubate.distributed.models.moe import moe_layer
from paddle.incubate.distributed.models.moe import utils as _counting

import a2a
from a2a.adapting import collective

from . import _functions
from ._device import or_paddles, original
from ._groups import for_members
from .utils import moe_utils


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yield (module, name, replacement). The modules have imported each other's functions by name."""
    for function in (_number_count, _assign_pos, _limit_by_capacity, _prune_gate_by_capacity, _random_routing):
        yield _operators, function.__name__, function
        if hasattr(_counting, function.__name__):
            yield _counting, function.__name__, function
    yield _counting, "_alltoall", _alltoall
    yield moe_layer, "_all_gather", _all_gather
    yield moe_layer, "_local_gather", _local_gather
    yield moe_layer, "MoEGather", _MoEGather
    yield moe_layer, "global_scatter", _global_scatter
    yield moe_layer, "global_gather", _global_gather
    yield moe_layer, "recompute_hybrid", _recompute_hybrid
    for module in (nccl_utils, moe_layer):
        yield module, "check_nccl_version_for_p2p", _check_nccl_version_for_p2p


def _check_nccl_version_for_p2p() -> None:
    """Replaces a check that works only in builds with NCCL."""
    if hasattr(core, "nccl_version"):
        original(nccl_utils, "check_nccl_version_for_p2p")()


def _recompute_hybrid(ctx: Any, function: Any, x: Any, *args: Any) -> Any:
    """Replaces Paddle's function, which saves the state of a device's random numbers."""
    if not x.place.is_cpu_place():
        return original(moe_layer, "recompute_hybrid")(ctx, function, x, *args)
    return recompute(function, x, *args, use_reentrant=False)


# ---- operators that have kernels on devices only ---------------------------------------------------------------------
# On devices the order of threads decides which token stays within a capacity. Here the order of the tokens and that of
# the ranks decide. -1 is no expert.


@or_paddles(_operators)
def _number_count(numbers: Any, upper_range: int) -> Any:
    """Return how many of the numbers are 0, 1, ... upper_range - 1."""
    found = numbers.numpy().ravel()
    return _like(numbers, np.bincount(found[found >= 0], minlength=upper_range)[:upper_range])


@or_paddles(_operators)
def _assign_pos(x: Any, cum_count: Any) -> Any:
    """Return the positions in ``x``, flat, of the numbers 0, then those of the numbers 1, and so on."""
    numbers = x.numpy().ravel()
    order = np.argsort(numbers, kind="stable")
    return _like(cum_count, order[np.count_nonzero(numbers < 0) :])


@or_paddles(_operators)
def _limit_by_capacity(expert_count: Any, capacity: Any, n_worker: int) -> Any:
    """Return the [workers * experts] counts that fit if each expert takes up to its capacity, from worker after
    worker."""
    wanted = expert_count.numpy().reshape(n_worker, -1)
    room = capacity.numpy() - (np.cumsum(wanted, axis=0) - wanted)
    return _like(expert_count, np.clip(room, 0, wanted).ravel())


@or_paddles(_operators)
def _prune_gate_by_capacity(gate_idx: Any, expert_count: Any, n_expert: int, n_worker: int) -> Any:
    """Return ``gate_idx`` with -1 for all but the first ``expert_count[e]`` of each expert e."""
    numbers = gate_idx.numpy().ravel()
    order = np.argsort(numbers, kind="stable")
    grouped = numbers[order]
    place = np.empty_like(numbers)  # the place of each among those of its expert
    place[order] = np.arange(len(numbers)) - np.searchsorted(grouped, grouped)
    kept = (numbers >= 0) & (place < expert_count.numpy()[numbers])
    return _like(gate_idx, np.where(kept, numbers, -1).reshape(gate_idx.shape))


@or_paddles(_operators)
def _random_routing(topk_idx: Any, topk_value: Any, prob: Any, topk: int = 2) -> Any:
    """Return ``topk_idx`` with -1 for every second expert whose doubled value is below ``prob``."""
    if topk != 2:
        raise RuntimeError("only topk=2 is supported now")
    numbers = np.array(topk_idx.numpy())
    numbers[(2 * topk_value[:, 1] < prob).numpy(), 1] = -1
    return _like(topk_idx, numbers)


def _like(tensor: Any, array: Any) -> Any:
    return paddle.to_tensor(array, dtype=tensor.dtype, place=tensor.place)


# ---- calls of process groups, which Gloo cannot do -------------------------------------------------------------------


def _global_scatter(x: Any, local_count: Any, global_count: Any, group: Any = None) -> Any:
    """The layer passes the second counts as a matrix."""
    return moe_utils.global_scatter(x, local_count, global_count.flatten(), group)


def _global_gather(x: Any, local_count: Any, global_count: Any, group: Any = None) -> Any:
    return moe_utils.global_gather(x, local_count, global_count.flatten(), group)


@or_paddles(_counting)
def _alltoall(in_tensor_list: Any, group: Any = None, use_calc_stream: bool = True) -> Any:
    return for_members(group, _exchanged, in_tensor_list)


@collective
def _exchanged(comm: a2a.Communicator, given: Any) -> Any:
    out = paddle.empty_like(given)
    _functions.alltoall_single(out, given, group=comm)
    return out


@or_paddles(moe_layer)
def _all_gather(tensor: Any, group: Any = None, use_calc_stream: bool = True) -> Any:
    parts: list[Any] = []
    _functions.all_gather(parts, tensor.detach(), group)
    return paddle.concat(parts)


# ---- gradients -------------------------------------------------------------------------------------------------------


@or_paddles(moe_layer)
def _local_gather(inp: Any, pos: Any, out_batch_size: int, maybe_overlap: bool = True) -> Any:
    """Put row i at place ``pos[i]``. If several rows have one place, as in the gradient of a token with several
    experts, it gets their sum: Paddle's function keeps one of them."""
    if not maybe_overlap or pos.shape == [0]:
        return original(moe_layer, "_local_gather")(inp, pos, out_batch_size, maybe_overlap)
    sums = paddle.zeros([out_batch_size, inp.shape[-1]], "float32")
    return paddle.scatter(sums, pos, inp.astype("float32"), overwrite=False).astype(inp.dtype)


class _MoEGather(moe_layer.MoEGather):  # type: ignore[misc, unused-ignore]
    """On a rank whose experts have no token, and where tokens need no gradient, nothing would start this rank's part of
    the backward pass, in which the others wait for it."""

    @classmethod
    def apply(cls, rows: Any, *args: Any, **kwargs: Any) -> Any:
        if rows.place.is_cpu_place() and rows.stop_gradient:
            rows = rows.detach()
            rows.stop_gradient = not paddle.is_grad_enabled()
        return super().apply(rows, *args, **kwargs)
