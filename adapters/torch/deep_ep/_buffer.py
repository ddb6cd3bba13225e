"""DeepEP's first interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import a2a
from a2a.adapting import collective, takes

from .._process_group.communicators import place_in
from . import _low_latency
from ._handle import Config, Handle
from ._low_latency import LowLatencyHandle
from ._masks import Masks
from ._ranks import Ranks, Rows, combined, comm_stream, dispatched, grown, rounded_up, shape_of
from .utils import EventHandle, EventOverlap, finish, wait_before

__all__ = ["Buffer", "Config"]


class Buffer:
    """Tokens to the ranks of their experts and back. See DeepEP's ``Buffer``.

    Args:
        group: a torch process group, or an a2a communicator; or None, and ``comm`` is an a2a communicator.
        enable_shrink: the low-latency calls, and clean_low_latency_buffer(), go on without ranks that die, or do not
            come within ``low_latency_timeout``, and mask them. They have arrived when a call returns: its event and its
            hook have nothing to wait for. The same on all ranks; collective.
        num_nvl_bytes and all others: kept, without effect.

    Attributes:
        comm: an a2a communicator, the ranks.
        low_latency_timeout: seconds; of the class, for Buffers that are made afterwards. DeepEP has it compiled in.
    """

    num_sms: int = 20
    low_latency_timeout: float = 100.0

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
    ) -> None:
        self.group = comm if group is None else group
        if self.group is None:
            raise ValueError("Either 'group' or 'comm' must be provided.")
        self._ranks = Ranks(self.group)
        self.comm = self._ranks.comm
        self.rank, self.group_size = place_in(self.group)
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.explicitly_destroy, self.enable_shrink = explicitly_destroy, enable_shrink
        self._masks = Masks(self.comm, self.low_latency_timeout) if enable_shrink else None

    def destroy(self) -> None:
        """Has no effect; the group stays."""

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether float8 tokens are supported: yes."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Kept, without effect. Raises InvalidArgumentError for an odd number, as DeepEP does."""
        if new_num_sms % 2:
            raise a2a.InvalidArgumentError(f"new_num_sms is {new_num_sms}; the SM count must be even")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """An event without anything to wait for: what has been called is over."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """For any number of ranks."""
        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """For any number of ranks."""
        return Config(Buffer.num_sms)

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """0: there is no buffer of this kind."""
        return 0

    def get_comm_stream(self) -> Any:
        """The current one, on which calls run here."""
        return comm_stream()

    def get_dispatch_layout(
        self,
        topk_idx: Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor, EventOverlap]:
        """Counts what dispatch() will do; no other rank takes part. Returns (num_tokens_per_rank int32 [ranks], None,
        num_tokens_per_expert int32 [num_experts], is_token_in_rank bool [tokens, ranks], the event)."""
        if not isinstance(topk_idx, Tensor) or topk_idx.ndim != 2 or topk_idx.is_floating_point():
            raise a2a.InvalidArgumentError("topk_idx is no matrix [tokens, k] of integers")
        if num_experts <= 0 or num_experts % self.group_size:
            text = f"num_experts is {num_experts}; pass a multiple of the {self.group_size} ranks"
            raise a2a.InvalidArgumentError(text)
        if topk_idx.numel() and int(topk_idx.max()) >= num_experts:
            raise a2a.InvalidArgumentError(f"topk_idx has {int(topk_idx.max())}, but there are {num_experts} experts")
        wait_before(previous_event)
        is_for_expert = torch.zeros(len(topk_idx), num_experts + 1, dtype=torch.bool, device=topk_idx.device)
        is_for_expert.scatter_(1, topk_idx.long().clamp(min=-1) % (num_experts + 1), True)  # -1 is the last
        is_for_expert = is_for_expert[:, :-1]
        is_token_in_rank = is_for_expert.unflatten(1, (self.group_size, -1)).any(2)
        per_rank, per_expert = is_token_in_rank.sum(0, dtype=torch.int32), is_for_expert.sum(0, dtype=torch.int32)
        return per_rank, None, per_expert, is_token_in_rank, finish(async_finish, ())

    @collective
    def dispatch(
        self,
        x: Rows,
        handle: Handle | None = None,
        num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None,
        is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Rows, Tensor | None, Tensor | None, list[int] | None, Handle | None, EventOverlap]:
        """Collective. Each token once to every rank that has an expert of it.

        Args:
            x: [tokens, hidden] of any dtype; or a pair of float8 [tokens, hidden] and scales [tokens, any].
            handle: of an earlier dispatch, which goes the same way again. Then ``topk_idx`` and ``topk_weights`` are
                None, and the results but for the first and the last are None.
            num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert: those of get_dispatch_layout().
            topk_idx, topk_weights: [tokens, k], int64 (-1: none) and float32. None: no expert is told of, only ranks.
            expert_alignment: the counts for each expert are rounded up to a multiple of it.
            num_worst_tokens: results have as many rows, of which the last are 0, with -1 for experts, and no counts.

        Returns: (the rows by source rank, then by token; their local experts, -1 for those of other ranks; their
        weights, 0 there; a list with the count of rows for each local expert; the handle; the event). Raises
        InvalidArgumentError for arguments that do not fit together; the peers then get MismatchError."""
        takes(self._ranks.operations(x, 2 if isinstance(x, tuple) else 1, handle is None)
              + (handle is None and topk_idx is None))  # fmt: skip
        wait_before(previous_event)
        tokens, scales = self._ranks.tokens(x)
        self._ranks.require_count("expert_alignment", expert_alignment, 1)
        self._ranks.require_count("num_worst_tokens", num_worst_tokens, 0)
        cached = handle is not None
        counts: list[int] = []
        if handle is not None:
            self._ranks.require(topk_idx is None and topk_weights is None, "both handle and topk_idx or topk_weights "
                                "are given; a handle has its own")  # fmt: skip
            self._ranks.require_handle(handle, Handle)
        else:
            self._require_layout(len(tokens), num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert)
            handle, counts = self._plan(
                tokens, scales, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights, expert_alignment,
                num_worst_tokens,
            )  # fmt: skip
        way, worst = handle.way, handle.num_worst_tokens
        self._ranks.require_place("x", tokens, way)
        rows, works = dispatched(way, tokens, scales, async_finish and not worst)
        about = [None, None] if cached or topk_idx is None else [way.topk_idx, way.topk_weights]
        if worst:
            rows = grown(rows, worst) if isinstance(rows, Tensor) else (grown(rows[0], worst), grown(rows[1], worst))
            about = [None if one is None else grown(one, worst, fill) for one, fill in zip(about, (-1, 0), strict=True)]
            counts = []
        event = finish(async_finish, works)
        return rows, about[0], about[1], None if cached else counts, None if cached else handle, event

    def _require_layout(self, tokens: int, per_rank: Any, in_rank: Any, per_expert: Any) -> None:
        for name, given in (
            ("num_tokens_per_rank", per_rank),
            ("is_token_in_rank", in_rank),
            ("num_tokens_per_expert", per_expert),
        ):
            self._ranks.require(isinstance(given, Tensor), f"{name} is {given!r}; pass that of get_dispatch_layout()")
        self._ranks.require_matrix("is_token_in_rank", in_rank, tokens, self.group_size)
        self._ranks.require(in_rank.dtype == torch.bool, f"is_token_in_rank is {in_rank.dtype}; pass torch.bool")
        fits = per_rank.shape == (self.group_size,)
        self._ranks.require(fits, f"num_tokens_per_rank has shape {tuple(per_rank.shape)} for {self.group_size} ranks")

    def _plan(
        self,
        x: Tensor,
        scales: Tensor | None,
        is_token_in_rank: Any,
        num_tokens_per_expert: Any,
        topk_idx: Tensor | None,
        topk_weights: Tensor | None,
        expert_alignment: int,
        num_worst_tokens: int,
    ) -> tuple[Handle, list[int]]:
        """The handle, and how many rows each local expert gets."""
        experts = self._ranks.experts(num_tokens_per_expert.numel())
        equal = {"topk_idx": topk_idx is not None, **shape_of(x, scales)}
        if topk_idx is None:  # ranks take the place of experts
            here = torch.arange(self.group_size, device=is_token_in_rank.device)
            ranks = torch.where(is_token_in_rank, here, -1)
            way = self._ranks.way(self.group_size, x, ranks, None, "rank", equal=equal)
            counts = torch.empty(self.group_size, experts.host.num_local_experts, dtype=torch.int64)
            self._ranks.comm.alltoall(num_tokens_per_expert.cpu().long().view(counts.shape), counts)
            each = counts.sum(0).tolist()
        else:
            way = self._ranks.way(num_tokens_per_expert.numel(), x, topk_idx, topk_weights, "rank", equal=equal)
            each = way.routing.counts.tolist()
        worst = f"num_worst_tokens is {num_worst_tokens}, but {way.routing.rows} tokens come"
        self._ranks.require(num_worst_tokens == 0 or num_worst_tokens >= way.routing.rows, worst)
        return Handle(way, num_worst_tokens), rounded_up(each, expert_alignment)

    @collective
    def combine(
        self,
        x: Tensor,
        handle: Handle,
        topk_weights: Tensor | None = None,
        bias: Tensor | tuple[Tensor, Tensor] | None = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:
        """Collective. Brings the rows of dispatch() back and adds those of each token, over ranks ascending, and then
        the bias, in float32, rounded once. No weights are multiplied by.

        Args:
            x: [rows, hidden] of a floating dtype.
            topk_weights: [rows, k], float32, added alike.
            bias: [tokens, hidden] like the result, or a pair of them.

        Returns: (the sums [tokens, hidden]; those of the weights [tokens, k], or None; the event)."""
        takes(1 if topk_weights is None else 2)
        wait_before(previous_event)
        self._ranks.require_handle(handle, Handle)
        routing = handle.routing
        rows = handle.num_worst_tokens or routing.rows
        self._ranks.require_matrix("x", x, rows)
        if topk_weights is not None:
            self._ranks.require_matrix("topk_weights", topk_weights, rows)
        self._ranks.require_place("x", x, handle.way)
        sums = None
        if topk_weights is not None:  # only the last operation may be asynchronous
            sums, _ = combined(handle.way, topk_weights[: routing.rows], False)
        y, works = combined(handle.way, x[: routing.rows], async_finish, bias=bias)
        return y, sums, finish(async_finish, works)

    def internode_dispatch(
        self,
        x: Rows,
        handle: Handle | None = None,
        num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None,
        is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        expert_alignment: int = 1,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Rows, Tensor | None, Tensor | None, list[int] | None, Handle | None, EventOverlap]:
        """Collective. As dispatch(), which goes between hosts, too."""
        return self.dispatch(
            x, handle, num_tokens_per_rank, num_tokens_per_rdma_rank, is_token_in_rank, num_tokens_per_expert, topk_idx,
            topk_weights, expert_alignment, 0, config, previous_event, async_finish, allocate_on_comm_stream,
        )  # fmt: skip

    def internode_combine(
        self,
        x: Tensor,
        handle: Handle,
        topk_weights: Tensor | None = None,
        bias: Tensor | tuple[Tensor, Tensor] | None = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:
        """Collective. As combine(), which goes between hosts, too."""
        return self.combine(
            x, handle, topk_weights, bias, config, previous_event, async_finish, allocate_on_comm_stream
        )

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """There is nothing to clean. With ``enable_shrink`` it waits for all ranks, as there, and masks those who do
        not come."""
        self._run(lambda ranks: None)

    @collective
    def low_latency_dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        dispatch_wait_recv_cost_stats: Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[Rows, Tensor, LowLatencyHandle, EventOverlap, Callable[[], None] | None]:
        """Collective. One row for each token and expert, packed to the front of a fixed room for each local expert.

        Args:
            x: [tokens, hidden], bfloat16.
            num_max_dispatch_tokens_per_rank: no rank has more tokens. The same on all ranks.
            topk_idx: [tokens, k], int64, -1 for none.
            cumulative_local_expert_recv_stats: int32 [local experts]; the counts are added.
            dispatch_wait_recv_cost_stats: stays as it is.
            use_fp8: rows travel as float8_e4m3fn with a float32 scale for each 128 channels.
            round_scale: scales are powers of 2. ``use_ue8m0``: and are four exponents in an int32.
            return_recv_hook: rows are posted, and are there after the hook has been called. (That tokens were counted
                is waited for in any case.)

        Returns: (rows [local experts, ranks * num_max_dispatch_tokens_per_rank, hidden], or a pair of them and of their
        scales [..., hidden / 128], 0 behind the last; counts, int32 [local experts]; the handle; the event; the
        hook)."""
        takes(0 if self._masks else self._ranks.operations(x, 2 if use_fp8 else 1))
        stats = cumulative_local_expert_recv_stats
        later = (async_finish or return_recv_hook) and self._masks is None

        def call(ranks: Ranks) -> Any:
            return _low_latency.dispatch(
                ranks, x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, stats, fp8=use_fp8,
                round_scale=round_scale, ue8m0=use_ue8m0, later=later,
            )  # fmt: skip

        rows, counts, handle, works, pack = self._run(call)
        event, hook = _posted(works, pack, async_finish, return_recv_hook)
        return rows, counts, handle, event, hook

    @collective
    def low_latency_combine(
        self,
        x: Tensor,
        topk_idx: Tensor,
        topk_weights: Tensor,
        handle: LowLatencyHandle,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Tensor | None = None,
        combine_wait_recv_cost_stats: Tensor | None = None,
    ) -> tuple[Tensor, EventOverlap, Callable[[], None] | None]:
        """Collective. Brings the rows of low_latency_dispatch() back: for each token the sum over k ascending of weight
        times row, in float32, rounded once.

        Args:
            x: [local experts, ranks * num_max_dispatch_tokens_per_rank, hidden], bfloat16.
            topk_idx: that of the dispatch. topk_weights: [tokens, k], float32.
            use_logfmt: rows are never rounded on the way.
            zero_copy: take what get_next_low_latency_combine_buffer() returned instead of ``x``.
            return_recv_hook: rows are posted, and the result is there after the hook has been called.
            out: where the result goes, [tokens, hidden].
            combine_wait_recv_cost_stats: stays as it is.

        Returns: (the sums [tokens, hidden], which is ``out`` if given; the event; the hook)."""
        takes(0 if self._masks else self._ranks.operations(x, 1))  # those of masked ranks have another communicator
        later = (async_finish or return_recv_hook) and self._masks is None

        def call(ranks: Ranks) -> Any:
            return _low_latency.combine(
                ranks, x, topk_idx, topk_weights, handle, zero_copy=zero_copy, out=out, later=later
            )

        result, works, then = self._run(call)
        event, hook = _posted(works, then, async_finish, return_recv_hook)
        return result, event, hook

    def _run(self, call: Callable[[Ranks], Any]) -> Any:
        return call(self._ranks) if self._masks is None else self._masks.run(call)

    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> Tensor:
        """bfloat16 [local experts, ranks * num_max_dispatch_tokens_per_rank, hidden], to be filled for a
        low_latency_combine() with ``zero_copy``."""
        return handle.room()

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Mask a rank from the next low-latency call on, or take its mask off. All ranks that are to go on do the same.
        A rank whose mask is taken off does not have to come: if it does not within the timeout, it is masked again.
        Raises InvalidArgumentError without ``enable_shrink``, for this rank, and for one that is none."""
        if self._masks is None:
            raise a2a.InvalidArgumentError("this Buffer has no mask: make it with enable_shrink=True, on all ranks")
        self._masks.mark(rank_to_mask, mask)

    def low_latency_query_mask_buffer(self, mask_status: Tensor) -> None:
        """Fill in for each rank 1 if it is masked, otherwise 0. ``mask_status``: int32 [ranks]."""
        masked = [False] * self.group_size if self._masks is None else self._masks.masked
        if mask_status.shape != (self.group_size,):
            text = f"mask_status has shape {tuple(mask_status.shape)}; pass one for {self.group_size} ranks"
            raise a2a.InvalidArgumentError(text)
        mask_status.copy_(torch.tensor(masked, dtype=torch.int32))

    def low_latency_clean_mask_buffer(self) -> None:
        """Take the masks off, as low_latency_update_mask_buffer() does for each rank."""
        for rank in range(self.group_size) if self._masks is not None else ():
            self.low_latency_update_mask_buffer(rank, False)


def _posted(
    works: list[a2a.Work], then: Callable[[], None] | None, async_finish: bool, return_recv_hook: bool
) -> tuple[EventOverlap, Callable[[], None] | None]:
    """The event and the hook of a call whose rows are on their way."""
    if return_recv_hook:
        return EventOverlap(), EventHandle(works, then).current_stream_wait
    return finish(async_finish, works, then), None
