"""DeepEP's second interface."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from a2a.adapting import collective, takes
from a2a.moe import Routing

from .._experts.host import HostWay
from .._process_group.communicators import place_in
from ._ranks import Ranks, Rows, by_columns, combined, comm_stream, dispatched, grown, plain, rounded_up, shape_of
from ._sessions import Sessions
from .utils import EventHandle, EventOverlap, finish, wait_before

__all__ = ["EPHandle", "ElasticBuffer"]


class EPHandle:
    """Of ElasticBuffer.dispatch(), for combine() and for another dispatch() the same way.

    Attributes:
        num_recv_tokens: how many tokens come, each counted once.
        num_expanded_tokens: how many rows they are with ``do_expand``, padding included.
        num_recv_tokens_per_expert_list: for each local expert, rounded up to ``expert_alignment``.
        num_unaligned_recv_tokens_per_expert: for each local expert, int32.
        psum_num_recv_tokens_per_scaleup_rank: how many come from this rank and those before it, int32 [ranks].
        psum_num_recv_tokens_per_expert: where each local expert's rows end, int32; without ``do_expand`` rounded up.
        recv_src_metadata: int32 [num_recv_tokens, k + 2]: source rank * num_max_tokens_per_rank + token; 0; with
            ``do_expand`` the row for each of the token's k choices, -1 for those of other ranks.
        do_expand, num_experts, expert_alignment, num_max_tokens_per_rank, num_sms, topk_idx: of the call.
    """

    def __init__(
        self,
        way: HostWay,
        topk_idx: Tensor,
        *,
        do_expand: bool,
        num_experts: int,
        expert_alignment: int,
        num_max_tokens_per_rank: int,
        num_sms: int,
    ) -> None:
        self.way, self.topk_idx = way, topk_idx
        routing = way.routing
        self.do_expand, self.num_experts, self.expert_alignment = do_expand, num_experts, expert_alignment
        self.num_max_tokens_per_rank, self.num_sms = num_max_tokens_per_rank, num_sms
        aligned = rounded_up(routing.counts, expert_alignment)
        device = way.topk_idx.device
        counts = torch.from_numpy(routing.counts).int()
        self.num_recv_tokens_per_expert_list = aligned
        self.num_unaligned_recv_tokens_per_expert = counts.to(device)
        ends = torch.tensor(aligned, dtype=torch.int32).cumsum(0, dtype=torch.int32)
        ends = ends - torch.tensor(aligned).int() + counts if do_expand else ends
        self.psum_num_recv_tokens_per_expert = ends.to(device)
        self.num_expanded_tokens = sum(aligned)
        self._describe_tokens()
        self.rows = routing.rows  # of results, which may have more

    @property
    def routing(self) -> Routing:
        """See a2a.moe."""
        return self.way.routing

    def _describe_tokens(self) -> None:
        """Sets the rank and the number of each token. Collective with do_expand: every row also gets its place in the
        top-k of its token."""
        routing, most = self.routing, self.num_max_tokens_per_rank
        ranks, tokens = (column.long() for column in routing.source.unbind(1))
        names, own = ranks * most + tokens, ranks >= 0
        which, place = torch.arange(routing.rows), None
        if self.do_expand:
            chosen = routing.dispatch(self.topk_idx.cpu()).x
            first = routing.comm.rank * len(routing.counts)
            place = (chosen == (routing.topk_idx + first).unsqueeze(1)).int().argmax(1)
            names, which = names[own].unique(return_inverse=True)
        self.num_recv_tokens = len(names)
        metadata = torch.zeros(len(names), self.topk_idx.shape[1] + 2, dtype=torch.int32)
        metadata[:, 0], metadata[:, 2:] = names, -1
        if place is not None:
            metadata[which, 2 + place[own]] = own.nonzero().squeeze(1).int()
        device = self.way.topk_idx.device
        self.recv_src_metadata, self.place = metadata.to(device), None if place is None else place.to(device)
        from_ranks = torch.bincount(names // most, minlength=routing.comm.size)
        self.psum_num_recv_tokens_per_scaleup_rank = from_ranks.cumsum(0).int().to(device)

    def worst_rows(self) -> int:
        """The largest number of rows that results can have, whatever tokens choose."""
        most = self.num_max_tokens_per_rank * self.routing.comm.size
        if not self.do_expand:
            return most
        experts = len(self.routing.counts)
        most = most * min(self.topk_idx.shape[1], experts) + (self.expert_alignment - 1) * experts
        return rounded_up([most], self.expert_alignment)[0]


class ElasticBuffer(Sessions):
    """Tokens to their experts and back, entries that other ranks hold, tensors to neighbours, and all-gathers in
    sessions. See DeepEP's ``ElasticBuffer``.

    Args:
        group: a torch process group, or an a2a communicator.
        num_max_tokens_per_rank: for calls that do not say it.
        all others: kept or ignored, without effect.

    Attributes:
        comm: an a2a communicator, the ranks.
    """

    def __init__(
        self,
        group: Any,
        num_bytes: int | None = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
    ) -> None:
        self._ranks = Ranks(group)
        self.comm = self._ranks.comm
        self.group = group
        self.rank_idx, self.num_ranks = place_in(group)
        self.num_bytes, self.num_max_tokens_per_rank = num_bytes or 0, num_max_tokens_per_rank
        self.deterministic, self.allow_hybrid_mode = deterministic, allow_hybrid_mode
        self.allow_multiple_reduction = allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.num_allocated_qps, self.explicitly_destroy = num_allocated_qps, explicitly_destroy
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.scaleout_rank_idx, self.scaleup_rank_idx = 0, self.rank_idx
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()
        self._begin()

    def destroy(self) -> None:
        """Has no effect; the group stays."""

    @staticmethod
    def get_buffer_size_hint(
        group: Any,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """0: there is no buffer of this kind."""
        return 0

    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Collective. Returns when every rank has called it."""
        self._ranks.comm.barrier()

    @staticmethod
    def capture() -> EventHandle:
        """An event without anything to wait for: what has been called is over."""
        return EventHandle()

    def get_comm_stream(self) -> Any:
        """The current one, on which calls run here."""
        return comm_stream()

    def get_physical_domain_size(self) -> tuple[int, int]:
        """(1, ranks): all in one domain."""
        return 1, self.num_ranks

    def get_logical_domain_size(self) -> tuple[int, int]:
        """(1, ranks): all in one domain."""
        return 1, self.num_ranks

    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 200,
        sm_write_gbs: float = 50,
    ) -> int:
        """0: there are none."""
        return 0

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """0: there are none."""
        return 0

    @collective
    def dispatch(
        self,
        x: Rows,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Any = None,
        previous_event_before_epilogue: Any = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> tuple[Rows, Tensor | None, Tensor | None, EPHandle, EventOverlap]:
        """Collective. Sends each token to the ranks of its experts.

        Args:
            x: [tokens, hidden] of any dtype; or a pair of float8 [tokens, hidden] and scales [tokens, any].
            topk_idx, topk_weights: [tokens, k], int64 (-1: none) and float32.
            cumulative_local_expert_recv_stats: int32 [local experts]; the counts are added.
            num_experts, num_max_tokens_per_rank: the same on all ranks.
            expert_alignment: counts, and with ``do_expand`` each expert's rows, are rounded up to a multiple of it.
            handle: of an earlier dispatch, which goes the same way again. Then ``topk_idx`` is None, and
                ``topk_weights`` may be given.
            do_cpu_sync: False without a handle: results have as many rows as could come at most.
            do_expand: one row for each token and local expert, grouped by expert. Otherwise each token once.
            do_zero_padding: rows that no token comes to are 0 in any case.
            use_tma_aligned_col_major_sf: scales of the result lie column after column.

        Returns: (the rows, by source rank and token, with ``do_expand`` by expert first; their local experts [rows, k],
        -1 for those of other ranks, or None with ``do_expand``; their weights in that shape, with ``do_expand`` [rows],
        or None without ``topk_weights``; the handle; the event). Raises InvalidArgumentError for arguments that do not
        fit together; the peers then get MismatchError."""
        takes(self._ranks.operations(x, 2 if isinstance(x, tuple) else 1, handle is None)
              + (do_expand if handle is None else topk_weights is not None))  # fmt: skip
        wait_before(previous_event)
        wait_before(previous_event_before_epilogue)
        tokens, scales = self._ranks.tokens(x)
        if handle is None:
            self._require_stats(cumulative_local_expert_recv_stats, num_experts)
            handle = self._plan(
                tokens, scales, topk_idx, topk_weights, num_experts, num_max_tokens_per_rank, expert_alignment,
                do_expand, do_handle_copy, num_sms,
            )  # fmt: skip
            weights = handle.way.topk_weights
            if do_cpu_sync is False:
                handle.rows = handle.worst_rows()
        else:
            self._require_handle(handle, topk_idx, num_experts, num_max_tokens_per_rank, expert_alignment, do_expand)
            self._require_stats(cumulative_local_expert_recv_stats, handle.num_experts)
            self._ranks.require(not do_cpu_sync, "do_cpu_sync is given with a handle, which has the counts")
            self._ranks.require_place("x", tokens, handle.way)
            weights = None if topk_weights is None else self._weights_again(handle, topk_weights)
        routing = handle.routing
        if cumulative_local_expert_recv_stats is not None:
            cumulative_local_expert_recv_stats += handle.num_unaligned_recv_tokens_per_expert
        as_they_come = handle.rows == routing.rows and (scales is None or not use_tma_aligned_col_major_sf)
        rows, works = dispatched(handle.way, tokens, scales, async_with_compute_stream and as_they_come)
        if not as_they_come:
            rows = self._shaped(rows, handle.rows, use_tma_aligned_col_major_sf)
        experts = None if handle.do_expand else grown(handle.way.topk_idx, handle.rows, -1)
        weights = None if weights is None else grown(weights, handle.rows)
        return rows, experts, weights, handle, finish(async_with_compute_stream, works)

    def _plan(
        self,
        x: Tensor,
        scales: Tensor | None,
        topk_idx: Tensor | None,
        topk_weights: Tensor | None,
        num_experts: int | None,
        num_max_tokens_per_rank: int | None,
        expert_alignment: int | None,
        do_expand: bool,
        do_handle_copy: bool,
        num_sms: int,
    ) -> EPHandle:
        most = self.num_max_tokens_per_rank if num_max_tokens_per_rank is None else num_max_tokens_per_rank
        align = 1 if expert_alignment is None else expert_alignment
        self._ranks.require(topk_idx is not None, "neither topk_idx nor handle is given")
        assert topk_idx is not None
        tokens = len(x)
        self._ranks.require_matrix("topk_idx", topk_idx, tokens)
        self._ranks.require_count("num_max_tokens_per_rank", most, 0)
        self._ranks.require_count("expert_alignment", align, 1)
        self._ranks.require(tokens <= most, f"x has {tokens} tokens, but num_max_tokens_per_rank is {most}")
        layout: Any = "expert" if do_expand else "rank"
        equal = {"num_max_tokens_per_rank": most, **shape_of(x, scales)}
        way = self._ranks.way(num_experts, x, topk_idx, topk_weights, layout, align if do_expand else 1, equal)
        return EPHandle(
            way, topk_idx.clone() if do_handle_copy else topk_idx, do_expand=do_expand,
            num_experts=num_experts or 0, expert_alignment=align, num_max_tokens_per_rank=most, num_sms=num_sms,
        )  # fmt: skip

    def _require_stats(self, stats: Any, num_experts: Any) -> None:
        experts = self._ranks.experts(num_experts).host.num_local_experts
        self._ranks.require_stats("cumulative_local_expert_recv_stats", stats, experts)

    def _require_handle(
        self, handle: Any, topk_idx: Any, num_experts: Any, most: Any, align: Any, do_expand: bool
    ) -> None:
        self._ranks.require_handle(handle, EPHandle)
        self._ranks.require(topk_idx is None, "both handle and topk_idx are given; a handle has its own")
        for name, given, own in (
            ("num_experts", num_experts, handle.num_experts),
            ("num_max_tokens_per_rank", most, handle.num_max_tokens_per_rank),
            ("expert_alignment", align, handle.expert_alignment),
            ("do_expand", do_expand, handle.do_expand),
        ):
            self._ranks.require(given is None or given == own, f"{name} is {given}, but that of the handle is {own}")

    def _weights_again(self, handle: EPHandle, topk_weights: Tensor) -> Tensor:
        """Other weights, the way of the handle."""
        self._ranks.require_matrix("topk_weights", topk_weights, *handle.topk_idx.shape)
        self._ranks.require_place("topk_weights", topk_weights, handle.way)
        weights = handle.way.spread(topk_weights)
        if handle.place is not None:
            weights = weights.gather(1, handle.place.unsqueeze(1)).squeeze(1)
        return weights.masked_fill(handle.way.topk_idx < 0, 0)

    @staticmethod
    def _shaped(rows: Rows, count: int, by_column: bool) -> Rows:
        if isinstance(rows, Tensor):
            return grown(rows, count)
        values, scales = (grown(one, count) for one in rows)
        return values, by_columns(scales, 16 // scales.element_size()) if by_column else scales

    @collective
    def combine(
        self,
        x: Tensor,
        handle: EPHandle,
        topk_weights: Tensor | None = None,
        bias: Tensor | tuple[Tensor, Tensor] | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Any = None,
        previous_event_before_epilogue: Any = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:
        """Collective. Brings the rows of dispatch() back and adds those of each token, with ``do_expand`` over k
        ascending, otherwise over ranks ascending, and then the bias, in float32, rounded once. No weights are
        multiplied by.

        Args:
            x: [rows, hidden] of a floating dtype.
            topk_weights: float32 [rows, k], added alike; with ``do_expand`` [rows], put back in their places.
            bias: [tokens, hidden] like the result, or a pair of them.

        Returns: (the sums [tokens, hidden]; the weights [tokens, k], or None; the event)."""
        takes(1 if topk_weights is None else 2)
        wait_before(previous_event)
        wait_before(previous_event_before_epilogue)
        self._ranks.require_handle(handle, EPHandle)
        routing = handle.routing
        self._ranks.require_matrix("x", x, handle.rows)
        self._ranks.require_place("x", x, handle.way)
        # Only the last operation may be asynchronous.
        sums = None if topk_weights is None else self._combine_weights(handle, topk_weights)
        y, works = combined(handle.way, x[: routing.rows], async_with_compute_stream, bias=bias)
        return y, sums, finish(async_with_compute_stream, works)

    def _combine_weights(self, handle: EPHandle, topk_weights: Tensor) -> Tensor:
        routing, shape = handle.routing, tuple(topk_weights.shape)
        wanted = (handle.rows,) if handle.do_expand else (handle.rows, handle.topk_idx.shape[1])
        self._ranks.require(shape == wanted, f"topk_weights has shape {shape}; pass {wanted}, as it was dispatched")
        own = plain(topk_weights)[: routing.rows]
        if handle.do_expand:
            return handle.way.return_each(own)
        return combined(handle.way, own, False)[0]
