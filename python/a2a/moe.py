"""Expert parallelism: tokens to experts and back, in one call each, on tensors of any framework::

    ep = a2a.moe.ExpertParallel(comm, num_experts)
    routed = ep.dispatch(x, topk_idx, topk_weights)
    rows = experts(routed.x, routed.counts)
    y = ep.combine(rows, routed)

On host memory each row is copied from its token directly to its place among the experts' rows, and on the way back rows
are summed while they are read: there is no packed copy before or after. The result has the same bits for any number of
ranks. Gradients: ``a2a.torch.moe`` and ``a2a.paddle.moe``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from . import _core, _expert_loads
from ._balance import balanced_placement
from ._core import Communicator, ExpertPlacement, ExpertRouting, InvalidArgumentError, Work, collective, takes
from ._placements import ExpertHomes, Homes, Move, Replicas, place_on
from ._routed import Routed

__all__ = ["ExpertParallel", "Move", "Routed", "Routing", "balanced_placement"]

if TYPE_CHECKING:
    from ._core import Tensor

    Weights: TypeAlias = Literal["routed"] | Tensor | None
    Bias: TypeAlias = Tensor | Sequence[Tensor] | None
Layout = Literal["expert", "rank"]
_T = TypeVar("_T", bound="Tensor")


class Routing:
    """The routes of the tokens of one step to their experts, as this rank sees them. ExpertParallel.plan() makes it; it
    runs any number of times, each time on all ranks. The attributes are those of Routed, and ``comm``, the ranks."""

    def __init__(self, core: ExpertRouting) -> None:
        self.core = core
        self.comm: Communicator = core.comm

    @property
    def number(self) -> int:
        """The number on which the ranks have agreed. They compare it in every dispatch and combine by this routing, and
        raise MismatchError where it differs."""
        return self.core.number

    @property
    def layout(self) -> Layout:
        """The order of the rows."""
        return "expert" if self.core.by_expert else "rank"

    @property
    def rows(self) -> int:
        """The number of rows that this rank receives, padding included."""
        return self.core.rows

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """See Routed."""
        return self.core.counts

    @property
    def offsets(self) -> npt.NDArray[np.int64] | None:
        """See Routed."""
        return self.core.offsets

    @property
    def topk_idx(self) -> Any:
        """See Routed."""
        return self.core.topk_idx

    @property
    def topk_weights(self) -> Any:
        """See Routed."""
        return self.core.topk_weights

    @property
    def source(self) -> Any:
        """See Routed."""
        return self.core.source

    @property
    def dropped(self) -> npt.NDArray[np.int64]:
        """See Routed."""
        return self.core.dropped

    @overload
    def dispatch(
        self, x: Tensor, scales: Tensor | None = None, *, async_op: Literal[False] = False, timeout: float | None = None
    ) -> Routed: ...
    @overload
    def dispatch(
        self, x: Tensor, scales: Tensor | None = None, *, async_op: Literal[True], timeout: float | None = None
    ) -> Work: ...
    @overload
    def dispatch(
        self, x: Tensor, scales: Tensor | None = None, *, async_op: bool = False, timeout: float | None = None
    ) -> Any: ...
    @collective
    def dispatch(self, x: Any, scales: Any = None, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """Collective. As ExpertParallel.dispatch(), without another exchange of routes."""
        given = [x] if scales is None else [x, scales]
        made, work = self.core.dispatch(x, scales, async_op=async_op, timeout=timeout)
        if not async_op:
            return Routed(self, given, made, None)
        return _core.set_result(work, Routed(self, given, made, work))

    @overload
    def combine(
        self,
        rows: _T,
        *,
        weights: Weights = "routed",
        bias: Bias = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> _T: ...
    @overload
    def combine(
        self,
        rows: _T,
        *,
        weights: Weights = "routed",
        bias: Bias = None,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def combine(
        self,
        rows: _T,
        *,
        weights: Weights = "routed",
        bias: Bias = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any: ...
    @collective
    def combine(
        self,
        rows: Any,
        *,
        weights: Any = "routed",
        bias: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Collective. As ExpertParallel.combine()."""
        given = None
        if not isinstance(weights, str):
            given = weights
        elif weights != "routed":
            raise InvalidArgumentError(f'weights is {weights!r}; pass "routed", None, or float32 for each row')
        output, work = self.core.combine(
            rows, weighted=isinstance(weights, str), weights=given, bias=bias, async_op=async_op, timeout=timeout
        )
        return _core.set_result(work, output, rows) if async_op else output


class ExpertParallel(ExpertHomes):
    """Experts of a layer, spread over the ranks of a communicator.

    Args:
        comm: the ranks.
        num_experts: the number of experts of all ranks.
        expert_to_rank: for each expert its rank, or a list of ranks (replicas). By default every rank has the same
            number of experts, in blocks. The same on all ranks. A rank numbers its experts from 0, in their order.
        replicas: how many ranks have each expert, a number or one for each expert, instead of ``expert_to_rank``. The
            ranks are chosen by a rule: those of one expert are on different hosts as far as possible.

    A rank sends its tokens for an expert to the replicas on its own host, in turn, or to all in turn if there are none
    there. It begins with replica number (its place among the ranks of its host, or its rank) % replicas. Which replica
    it was does not change a bit of the sum (layout "expert").

    Raises InvalidArgumentError for an invalid placement; the peers then get MismatchError from their next call.
    """

    @collective
    def __init__(
        self,
        comm: Communicator,
        num_experts: int,
        expert_to_rank: Homes | None = None,
        *,
        replicas: Replicas | None = None,
    ) -> None:
        self.comm = comm
        self._take(comm, place_on(comm, num_experts, expert_to_rank, replicas), range(comm.size))

    def _placement(self) -> ExpertPlacement:
        return self.placement

    def _settle(self, group: Any, homes: Homes, active: Sequence[int]) -> None:
        comm = self._communicator(group)
        self._take(comm, place_on(comm, len(homes), homes, None, active, True), active)

    def _take(self, comm: Communicator, placement: ExpertPlacement, active: Sequence[int]) -> None:
        self.comm, self.placement, self._active = comm, placement, tuple(active)
        self.num_experts, self.num_local_experts = placement.experts, placement.experts_on(comm.rank)
        self._loads = _expert_loads.recorded(comm.rank, comm.size, placement.homes)

    @collective
    def plan(
        self,
        topk_idx: Tensor,
        topk_weights: Tensor | None = None,
        *,
        layout: Layout = "expert",
        align: int = 1,
        timeout: float | None = None,
    ) -> Routing:
        """Collective. Make the routing that dispatch() makes before tokens move: for several dispatches with one
        routing."""
        return self._route(topk_idx, topk_weights, layout, align, None, None, timeout)

    @overload
    def dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        *,
        scales: Tensor | None = None,
        layout: Layout = "expert",
        align: int = 1,
        routing: Routing | None = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> Routed: ...
    @overload
    def dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        *,
        scales: Tensor | None = None,
        layout: Layout = "expert",
        align: int = 1,
        routing: Routing | None = None,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        *,
        scales: Tensor | None = None,
        layout: Layout = "expert",
        align: int = 1,
        routing: Routing | None = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any: ...
    @collective
    def dispatch(
        self,
        x: Any,
        topk_idx: Any = None,
        topk_weights: Any = None,
        *,
        scales: Any = None,
        layout: Layout = "expert",
        align: int = 1,
        routing: Routing | None = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Collective. Sends each token to its experts.

        Args:
            x: [tokens, ...] of any dtype and strides, on the host. The number of tokens may differ between ranks.
            topk_idx: [tokens, k], int32 or int64: the experts of each token, -1 for none. No token has an expert twice.
            topk_weights: [tokens, k], float32: sent with the tokens; combine() multiplies by them.
            scales: [tokens, ...] of any dtype: sent with the rows of x (quantised tokens).
            layout: "expert": one row for each token and local expert, grouped by expert, within it by source rank, then
                by token. "rank": each token once for all experts of this rank, by source rank, then by token.
            align: in the layout "expert" each group is padded with rows of 0 to a multiple of it.
            routing: of plan() or an earlier dispatch, instead of topk_idx, topk_weights, layout and align.
            async_op: return a Work while rows are still arriving. Its ``result`` is the Routed. The call always waits
                for the exchange of routes.

        Returns: Routed. Raises InvalidArgumentError for an expert that does not exist, or that a token has twice; the
        peers then get MismatchError, as all do when the ranks differ in k, dtypes, row sizes, layout or placement.
        """
        takes(3 if routing is None else 1)
        if routing is None:
            routing = self._route(topk_idx, topk_weights, layout, align, x, scales, timeout)
        elif topk_idx is not None or topk_weights is not None:
            raise InvalidArgumentError("both routing and topk_idx or topk_weights are given; a routing has its own")
        else:
            self._require_own(routing, "routing")
        return routing.dispatch(x, scales, async_op=async_op, timeout=timeout)

    @overload
    def combine(
        self,
        rows: _T,
        routed: Routed | Routing,
        *,
        weights: Weights = "routed",
        bias: Bias = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> _T: ...
    @overload
    def combine(
        self,
        rows: _T,
        routed: Routed | Routing,
        *,
        weights: Weights = "routed",
        bias: Bias = None,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work: ...
    @overload
    def combine(
        self,
        rows: _T,
        routed: Routed | Routing,
        *,
        weights: Weights = "routed",
        bias: Bias = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any: ...
    @collective
    def combine(
        self,
        rows: Any,
        routed: Routed | Routing,
        *,
        weights: Any = "routed",
        bias: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Collective. Sends the experts' rows back and sums them for each token.

        Args:
            rows: one row for each row of ``routed``, of a floating dtype. Padding rows are not read.
            routed: the result of dispatch() or plan().
            weights: "routed": those given to dispatch(), if any; None: none; or float32, one for each row of
                ``routed``. In the layout "rank" a row stands for several experts and is not multiplied: the rank that
                made it has applied the weights.
            bias: a tensor like the result, or two, added at the end.
            async_op: return a Work, whose ``result`` is the sum.

        Returns: [tokens, ...] in the framework of ``rows``. For each token: weight times row, summed over k ascending
        (layout "rank": over ranks ascending) and then the bias, in float32 (float64 for float64), rounded once; 0
        without experts. So it has the same bits as a loop over the experts in one process."""
        routing = routed.routing if isinstance(routed, Routed) else routed
        self._require_own(routing, "routed")
        return routing.combine(rows, weights=weights, bias=bias, async_op=async_op, timeout=timeout)

    def _require_own(self, routing: Any, name: str) -> None:
        if not isinstance(routing, Routing):
            raise InvalidArgumentError(f"{name} is {type(routing).__name__}; pass what dispatch() or plan() returned")
        if routing.comm is not self.comm:
            raise InvalidArgumentError(f"{name} belongs to another communicator, where its exchanges would run")

    def _route(
        self,
        topk_idx: Any,
        topk_weights: Any,
        layout: str,
        align: int,
        x: Any,
        scales: Any,
        timeout: float | None,
        equal: Sequence[tuple[str, int]] = (),
        after: ExpertRouting | None = None,
    ) -> Routing:
        if layout not in ("expert", "rank"):
            raise InvalidArgumentError(f'layout is {layout!r}; pass "expert" or "rank"')
        core = _core.route(
            self.comm,
            self.placement,
            topk_idx,
            topk_weights,
            by_expert=layout == "expert",
            align=align,
            x=x,
            scales=scales,
            equal=equal,
            after=after,
            count=self._loads is not None,
            timeout=timeout,
        )
        if self._loads is not None:
            self._loads.tokens += core.chosen
        return Routing(core)
