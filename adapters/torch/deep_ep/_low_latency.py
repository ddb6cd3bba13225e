"""The calls for inference, whose results have fixed shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import a2a
from a2a.adapting import collective, takes, wait_to_read

from .._experts.host import HostWay
from ._masks import without
from ._ranks import Ranks, Rows, by_columns, combined, dispatched, plain

__all__ = ["LowLatencyHandle", "combine", "dispatch"]

_CHANNELS = 128  # that share a scale


class LowLatencyHandle(tuple[Any, ...]):
    """(the token of each row at its source, int32 [local experts, rows]; where the rows of each rank begin << 32 | how
    many they are, int64 [local experts, ranks]; num_max_dispatch_tokens_per_rank; hidden; num_experts)"""

    way: HostWay
    topk_idx: Tensor
    size: int  # of ranks, those that are masked included
    _room: Tensor | None = None

    def room(self) -> Tensor:
        """The buffer into which a program may write the rows that are to be combined."""
        if self._room is None:
            _, _, most, hidden, _ = self
            routing, device = self.way.routing, self[0].device
            room = len(routing.counts), most * self.size, hidden
            self._room = torch.zeros(room, dtype=torch.bfloat16, device=device)
        return self._room


@collective
def dispatch(
    ranks: Ranks,
    x: Tensor,
    topk_idx: Tensor,
    most: int,
    num_experts: int,
    stats: Tensor | None,
    *,
    fp8: bool,
    round_scale: bool,
    ue8m0: bool,
    later: bool,
) -> tuple[Rows, Tensor, LowLatencyHandle, list[a2a.Work], Callable[[], None]]:
    """(what the rows will be, their counts, the handle, the works, and what fills the rows after them)."""
    takes(ranks.operations(x, 2 if fp8 else 1))
    local = ranks.experts(num_experts).host.num_local_experts
    ranks.require_stats("cumulative_local_expert_recv_stats", stats, local)
    ranks.require_matrix("x", x)
    tokens, hidden = x.shape
    ranks.require_count("num_max_dispatch_tokens_per_rank", most, 0)
    ranks.require(tokens <= most, f"x has {tokens} tokens, but num_max_dispatch_tokens_per_rank is {most}")
    ranks.require(round_scale or not ue8m0, "use_ue8m0 needs round_scale: exponents alone are powers of 2")
    block = _CHANNELS * (4 if ue8m0 else 1)
    ranks.require(not fp8 or hidden % block == 0, f"x has {hidden} channels; pass a multiple of {block} for fp8")
    ranks.require_matrix("topk_idx", topk_idx, tokens)
    equal = {
        "num_max_dispatch_tokens_per_rank": most, "hidden": hidden, "use_fp8": fp8, "use_ue8m0": ue8m0,
        "round_scale": round_scale,
    }  # fmt: skip
    way = ranks.way(num_experts, x, topk_idx, None, "expert", equal=equal)
    routing = way.routing
    if fp8:
        wait_to_read(ranks.comm, [plain(x)])
    values, scales = _cast_to_fp8(plain(x), round_scale) if fp8 else (plain(x), None)
    rows, works = dispatched(way, values, scales, later)
    room = len(routing.counts), most * ranks.size
    made = [torch.zeros(*room, *one.shape[1:], dtype=one.dtype, device=x.device) for one in _several(rows)]
    if fp8:
        made[1] = by_columns(_exponents(made[1]) if ue8m0 else made[1])

    def pack() -> None:
        arrived = list(_several(rows))
        if ue8m0:
            arrived[1] = _exponents(arrived[1])
        for whole, one in zip(made, arrived, strict=True):
            _pack(way, one, whole)

    counts = torch.from_numpy(routing.counts).int().to(x.device)
    if stats is not None:
        stats += counts
    handle = _handle(ranks, way, most, hidden, num_experts, room)
    handle.topk_idx = without(plain(topk_idx).cpu(), ranks, num_experts).clone()
    return (made[0], made[1]) if fp8 else made[0], counts, handle, works, pack


@collective
def combine(
    ranks: Ranks,
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor,
    handle: Any,
    *,
    zero_copy: bool,
    out: Tensor | None,
    later: bool,
) -> tuple[Tensor, list[a2a.Work], Callable[[], None] | None]:
    """(the result, the works, and what is to be done after them)."""
    takes(ranks.operations(x, 1))
    ranks.require_handle(handle, LowLatencyHandle, "low_latency_dispatch")
    _, ranges, most, hidden, num_experts = handle
    if zero_copy:
        x = handle.room()
    before = handle.way.routing
    shape = len(before.counts), most * ranks.size, hidden
    fits = isinstance(x, Tensor) and tuple(x.shape) == shape
    ranks.require(fits, f"x has shape {tuple(getattr(x, 'shape', ()))}; pass {shape}, as it was dispatched")
    ranks.require_matrix("topk_idx", topk_idx, before.core.tokens)
    ranks.require_place("x", x, handle.way)
    if out is not None:
        ranks.require_matrix("out", out, len(topk_idx), hidden)
    chosen = without(plain(topk_idx).cpu(), ranks, num_experts)
    same = torch.equal(chosen, without(handle.topk_idx, ranks, num_experts))
    ranks.require(same, "topk_idx is not the one that was dispatched")
    # The weights are known only now, and travel with the choices.
    lost = handle.way.comm is not ranks.comm  # a rank has been masked since
    way = ranks.way(num_experts, x, topk_idx, topk_weights, "expert", after=None if lost else handle.way)
    counts = way.routing.counts.tolist()
    if lost:
        rows = torch.cat([_rows_of(own, its, ranks.members) for own, its in zip(plain(x), ranges, strict=True)])
    else:
        rows = torch.cat([own[:count] for own, count in zip(plain(x), counts, strict=True)])
    result, works = combined(way, rows, later, weights="routed")
    return (result, works, None) if out is None else (out, works, lambda: _copy(out, result))


def _copy(out: Tensor, result: Tensor) -> None:
    out.copy_(result)


def _handle(
    ranks: Ranks, way: HostWay, most: int, hidden: int, num_experts: int, room: tuple[int, int]
) -> LowLatencyHandle:
    routing, device = way.routing, way.topk_idx.device
    tokens = torch.zeros(*room, 1, dtype=torch.int32)
    _pack(way, routing.source[:, 1:].int(), tokens)
    each = torch.zeros(room[0], ranks.size, dtype=torch.int64)
    index = routing.topk_idx.long() * ranks.size + torch.tensor(ranks.members)[routing.source[:, 0].long()]
    each.view(-1).index_add_(0, index, torch.ones_like(index))
    begins = (each.cumsum(1) - each) << 32 | each
    handle = LowLatencyHandle((tokens.squeeze(2).to(device), begins.to(device), most, hidden, num_experts))
    handle.way, handle.size = way, ranks.size
    return handle


def _rows_of(own: Tensor, ranges: Tensor, members: Sequence[int]) -> Tensor:
    """Return the rows of an expert that have come from these ranks."""
    parts = [(int(one) >> 32, int(one) & 0xFFFFFFFF) for one in ranges[list(members)]]
    return torch.cat([own[begin : begin + count] for begin, count in parts])


def _several(rows: Rows) -> Sequence[Tensor]:
    return (rows,) if isinstance(rows, Tensor) else rows


def _pack(way: HostWay, rows: Tensor, whole: Tensor) -> None:
    """Copy the rows of each expert to the front of its part of ``whole``."""
    for own, part in zip(whole, rows.split(way.routing.counts.tolist()), strict=True):
        own[: len(part)].copy_(part)


def _cast_to_fp8(x: Tensor, round_scale: bool) -> tuple[Tensor, Tensor]:
    """Values in float8_e4m3fn, and what they are to be multiplied by, for each token and 128 channels."""
    most = torch.finfo(torch.float8_e4m3fn).max
    blocks = x.float().unflatten(1, (-1, _CHANNELS))
    largest = blocks.abs().amax(2).clamp(min=1e-4)
    if round_scale:
        mantissa, exponent = torch.frexp(largest / most)
        scales = torch.ldexp(torch.ones_like(largest), exponent - (mantissa == 0.5).int())
        values = blocks / scales.unsqueeze(2)
    else:
        scales = largest * (1 / most)
        values = blocks * (most / largest).unsqueeze(2)
    return values.flatten(1).to(torch.float8_e4m3fn), scales


def _exponents(scales: Tensor) -> Tensor:
    """Powers of 2 as their exponents, four in an int32."""
    return (scales.contiguous().view(torch.int32) >> 23).to(torch.uint8).view(torch.int32)
