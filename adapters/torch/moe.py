"""Mixture of experts, differentiable: tokens go to experts on other ranks, and gradients come back::

    ep = a2a.torch.moe.ExpertParallel(group, num_experts)
    routed = ep.dispatch(x, topk_idx, topk_weights)
    rows = torch.cat([expert(part) for expert, part in zip(experts, routed.split())])
    y = ep.combine(rows, routed)

``MoE`` is these lines as a layer. Values are those of ``a2a.moe``, bit for bit for any number of ranks.

The backward pass is collective, too: of a combine a dispatch of the gradient, of a dispatch a combine. So on every
rank, also on one without tokens or rows, the results require a gradient wherever gradients are recorded, and
backward() has to reach ``y``. Second derivatives are refused, and so are torch.func and forward_ad.

torch.compile(fullgraph=True) takes all of it, with one graph for any number of rows. Without fullgraph, torch breaks
the graph where sizes come of an operator, unless torch._dynamo.config.capture_dynamic_output_shape_ops is set:
dispatch() and combine() then run as they are. So they do with arguments that are to be refused, and with rows that no
graph dispatched. Inside a graph torch.utils.checkpoint may not stand round them, because torch keeps no order of
exchanges there; round a compiled function it may.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

import a2a
from a2a._core import ExpertPlacement
from a2a._placements import ExpertHomes, Homes, Replicas
from a2a.adapting import collective, refuse, takes
from a2a.moe import Layout, Routing

from ._errors import ArgumentTypeError
from ._experts import custom_ops
from ._experts.autograd import combine, dispatch
from ._experts.handles import way_of
from ._experts.host import HostWay, require_weights
from ._experts.placement import DTYPES, Placement, placement_for, placement_of, require
from ._process_group.communicators import communicator
from ._untraced import as_it_is

__all__ = ["ExpertParallel", "MoE", "Routed"]


class Routed:
    """The rows that came to this rank, and what they are.

    Attributes:
        x: the rows, through which gradients flow. In the layout "expert" padding rows are 0.
        topk_weights: layout "expert": the weight of each row, 0 for padding; layout "rank": [rows, k], 0 where
            ``topk_idx`` is -1. float32, with gradient. None without weights.
        layout: "expert" or "rank".
    """

    def __init__(
        self, x: Tensor, topk_weights: Tensor | None, ticket: Tensor, layout: str, topk_idx: Tensor, experts: int
    ) -> None:
        self.x, self.topk_weights, self.ticket, self.layout = x, topk_weights, ticket, layout
        self._choices, self._experts = topk_idx, experts
        self._way: HostWay | None = None  # of a graph only when somebody asks

    def _in_graph(self) -> bool:
        """Whether a graph is being made that has dispatched these rows, or takes them from one that has."""
        return self._way is None and is_dynamo_compiling()

    @property
    @as_it_is
    def way(self) -> HostWay:
        """The route of the rows."""
        if self._way is None:
            self._way = way_of(self.ticket)
        return self._way

    @property
    def routing(self) -> Routing:
        """The routing that dispatched the rows. See a2a.moe."""
        return self.way.routing

    @property
    def counts(self) -> Any:
        """The number of rows of each of this rank's experts, without padding; int64, on the host."""
        if self._in_graph():
            return self._about("counts", [self._experts]).numpy()
        return self.routing.counts

    @property
    def offsets(self) -> Any:
        """The first row of each expert, and the end of the last one's padding. None in the layout "rank"."""
        if self.layout == "rank":
            return None
        if self._in_graph():
            return self._about("offsets", [self._experts + 1]).numpy()
        return self.routing.offsets

    @property
    def dropped(self) -> Any:
        """[any, 2], NumPy: the token and the place in top-k of each choice of this rank that counted as -1, because no
        active rank has the expert; ascending. Not inside of a graph."""
        return self.routing.dropped

    @property
    def topk_idx(self) -> Tensor:
        """Layout "expert": the local expert of each row, -1 for padding. Layout "rank": [rows, k] local experts, -1 for
        those of other ranks."""
        if self._in_graph():
            rows, like = self.x.shape[0], self._choices
            shape = [rows, like.shape[1]] if self.layout == "rank" else [rows]
            return custom_ops.about(self.ticket, "topk_idx", shape, like.dtype, self.x.device)
        return self.way.topk_idx

    @property
    def source(self) -> Tensor:
        """[rows, 2]: the rank and the token that each row comes from, (-1, -1) for padding; on the host."""
        if self._in_graph():
            return self._about("source", [self.x.shape[0], 2], self._choices.dtype)
        source: Tensor = self.routing.source
        return source

    def _about(self, what: str, shape: list[int], dtype: torch.dtype = torch.int64) -> Tensor:
        made: Tensor = custom_ops.about(self.ticket, what, shape, dtype, torch.device("cpu"))
        return made

    def split(self) -> tuple[Tensor, ...]:
        """The rows of each of this rank's experts, padding included: views of ``x``. Layout "expert" only."""
        if self.layout == "rank":
            raise a2a.InvalidArgumentError('in the layout "rank" rows are not grouped by expert')
        if self._in_graph() and custom_ops.learns_sizes():
            sizes = [custom_ops.size_of(self.ticket, expert) for expert in range(self._experts)]
        else:
            sizes = self._sizes()
        parts: tuple[Tensor, ...] = self.x.split(sizes)
        return parts

    @as_it_is
    def _sizes(self) -> list[int]:
        offsets = self.routing.offsets
        assert offsets is not None
        sizes: list[int] = (offsets[1:] - offsets[:-1]).tolist()
        return sizes

    def __repr__(self) -> str:
        return f'<Routed {len(self.x)} rows for {self._experts} experts, layout "{self.layout}">'


class ExpertParallel(ExpertHomes):
    """Experts of a layer, spread over the ranks of a group.

    Args:
        group: an a2a communicator, a torch process group, or None, as in ``a2a.torch``. Collective at the first use of
            a process group.
        num_experts: how many experts there are in all.
        expert_to_rank: for each expert its rank, or a list of ranks (replicas), the same on all ranks. By default every
            rank has the same number of experts, in blocks.
        replicas: how many ranks have each expert, instead of ``expert_to_rank``. See a2a.moe.

    Raises InvalidArgumentError for a placement that is none; the peers then get MismatchError from their next call.
    Raises UnsupportedError for a group that this process is not a member of.
    """

    def __init__(
        self,
        group: Any,
        num_experts: int,
        expert_to_rank: Homes | None = None,
        *,
        replicas: Replicas | None = None,
    ) -> None:
        comm = self._communicator(group)
        self._take(group, comm, placement_for(comm, num_experts, expert_to_rank, replicas), range(comm.size))

    def _take(self, group: Any, comm: a2a.Communicator, home: Placement, active: Sequence[int]) -> None:
        self.group, self.comm, self.home, self._active = group, comm, home, tuple(active)
        self.num_experts, self.num_local_experts = home.host.num_experts, home.host.num_local_experts
        self._name = home.name
        # An input of graphs that makes every rank's result require a gradient. Its own is empty.
        self._anchor = torch.empty(0, device="cpu", requires_grad=True)

    def _placement(self) -> ExpertPlacement:
        return self.home.host.placement

    def _settle(self, group: Any, homes: Homes, active: Sequence[int]) -> None:
        comm = self._communicator(group)
        self._take(group, comm, placement_of(comm, homes, active), active)

    @staticmethod
    def _communicator(group: Any) -> a2a.Communicator:
        comm = communicator(group)
        if comm is None:
            raise a2a.UnsupportedError(f"group {group!r}: this process is no member")
        return comm

    def _group(self) -> Any:
        return self.group

    def dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        *,
        layout: Layout = "expert",
        align: int = 1,
        routing: Routed | None = None,
        timeout: float | None = None,
    ) -> Routed:
        """Collective. Sends each token to its experts. Differentiable in ``x`` and ``topk_weights``.

        Args:
            x: [tokens, ...], float16, bfloat16, float32 or float64. The number of tokens may differ between ranks.
            topk_idx: [tokens, k], int32 or int64: the experts of each token, -1 for none. Of a tensor on a device the
                host gets a copy, which waits for it.
            topk_weights: [tokens, k], of a floating dtype: travel along as float32, and are what combine() multiplies
                by.
            layout, align: see a2a.moe.
            routing: of an earlier dispatch, instead of topk_idx, topk_weights, layout and align. Its weights then are
                numbers, without a gradient.
            timeout: seconds for each exchange, those of the backward pass and of combine(), too.

        Raises InvalidArgumentError as a2a.moe does; the peers then get MismatchError.
        """
        if is_dynamo_compiling() and custom_ops.learns_sizes() and _plain(x, DTYPES) and x.ndim > 0:
            if isinstance(routing, Routed) and routing._in_graph() and topk_idx is None and topk_weights is None:
                return self._trace_again(x, routing)
            fits = _plain(topk_idx, _INDICES) and topk_idx.ndim == 2
            if fits and routing is None and (topk_weights is None or _plain(topk_weights, DTYPES)):
                return self._trace_dispatch(x, topk_idx, topk_weights, layout, align, timeout)
        return self._dispatch(x, topk_idx, topk_weights, layout, align, routing, timeout)

    @as_it_is
    @collective
    def _dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor | None,
        topk_weights: Tensor | None,
        layout: Layout,
        align: int,
        routing: Routed | None,
        timeout: float | None,
    ) -> Routed:
        takes(1 if routing is not None else self.home.operations(x) + 1)
        require(self.comm, "x", x, DTYPES)
        if routing is not None:
            if not isinstance(routing, Routed):
                text = f"routing is {type(routing).__name__}; pass what dispatch() returned"
                raise refuse(self.comm, ArgumentTypeError(text))
            if topk_idx is not None or topk_weights is not None:
                text = "both routing and topk_idx or topk_weights are given; a routing has its own"
                raise refuse(self.comm, a2a.InvalidArgumentError(text))
            way = routing.way
            self._require_own(way, "routing")
            topk_idx, layout = routing._choices, way.routing.layout
        else:
            if topk_weights is not None:
                require(self.comm, "topk_weights", topk_weights, DTYPES)
                topk_weights = topk_weights.float()
            way = self.home.way_for(x, topk_idx, topk_weights, layout, align, timeout)
        assert topk_idx is not None
        made = Routed(*dispatch(way, x, topk_weights), layout, topk_idx, self.num_local_experts)
        made._way = way
        return made

    def _trace_dispatch(
        self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor | None, layout: str, align: int, timeout: float | None
    ) -> Routed:
        given = None if topk_weights is None else topk_weights.float()
        rows, weights, handle = custom_ops.dispatch(
            x, topk_idx, given, self._name, layout, align, timeout, self._anchor
        )
        return Routed(rows, weights, handle, layout, topk_idx, self.num_local_experts)

    def _trace_again(self, x: Tensor, routed: Routed) -> Routed:
        rows, handle = custom_ops.again(x, routed.ticket, routed.x.shape[0], self._anchor)
        weights = None if routed.topk_weights is None else routed.topk_weights.detach().clone()
        return Routed(rows, weights, handle, routed.layout, routed._choices, self.num_local_experts)

    def combine(
        self,
        rows: Tensor,
        routed: Routed,
        *,
        weights: Tensor | str | None = "routed",
        bias: Tensor | Sequence[Tensor] | None = None,
    ) -> Tensor:
        """Collective. Brings the experts' rows back and sums them for each token. Differentiable in ``rows``, the
        weights and ``bias``.

        Args:
            rows: one row for each row of ``routed``. What padding rows hold is of no account.
            weights: "routed": those given to dispatch(), if any; None: none; or one for each row of ``routed``. In the
                layout "rank" a row stands for several experts and is multiplied by none: the rank that made it has
                done so.
            bias: a tensor like the result, or two, added at the end.

        Returns: [tokens, ...]: weight times row, summed over k ascending (layout "rank": over ranks ascending) and then
        the bias, in float32 (float64 for float64), rounded once; 0 without experts."""
        if isinstance(routed, Routed) and routed._in_graph() and _plain(rows, DTYPES) and rows.ndim > 0:
            own = weights is None or isinstance(weights, str)
            biases = _several(bias)
            fits = weights == "routed" or weights is None if own else _plain(weights, DTYPES)
            if fits and all([_plain(one, DTYPES) for one in biases]):
                return self._trace_combine(rows, routed, weights, biases)
        return self._combine(rows, routed, weights, bias)

    @as_it_is
    @collective
    def _combine(self, rows: Tensor, routed: Routed, weights: Any, bias: Any) -> Tensor:
        if not isinstance(routed, Routed):
            raise refuse(
                self.comm, ArgumentTypeError(f"routed is {type(routed).__name__}; pass what dispatch() returned")
            )
        self._require_own(routed.way, "routed")
        require(self.comm, "rows", rows, DTYPES)
        own = isinstance(weights, str)
        if own and weights != "routed":
            text = f'weights is {weights!r}; pass "routed", None, or a tensor with one for each row'
            raise refuse(self.comm, a2a.InvalidArgumentError(text))
        if own:
            weights = routed.topk_weights if routed.layout == "expert" else None
        elif weights is not None:
            require(self.comm, "weights", weights, DTYPES)
            require_weights(routed.way, weights)
            weights = weights.float()
        biases = _several(bias)
        for one in biases:
            require(self.comm, "bias", one, DTYPES)
        return combine(routed.way, rows, weights, own, routed.ticket, biases)

    def _require_own(self, way: HostWay, name: str) -> None:
        if way.comm is not self.comm:
            text = f"{name} belongs to another communicator, where its exchanges would run"
            raise refuse(self.comm, a2a.InvalidArgumentError(text))

    def _trace_combine(self, rows: Tensor, routed: Routed, weights: Any, biases: list[Tensor]) -> Tensor:
        own = isinstance(weights, str)
        if own:
            weights = routed.topk_weights if routed.layout == "expert" else None
        given = None if weights is None else weights.float()
        tokens = routed._choices.shape[0]
        made: Tensor = custom_ops.combine(rows, given, own, routed.ticket, biases, tokens, self._anchor)
        return made

    def __deepcopy__(self, memo: Any) -> ExpertParallel:
        return self  # a copy of a layer talks to the same ranks

    def __repr__(self) -> str:
        return f"ExpertParallel({self.num_experts} experts, {self.num_local_experts} of them on rank {self.comm.rank})"


_INDICES = (torch.int32, torch.int64)


def _plain(tensor: Any, dtypes: tuple[torch.dtype, ...]) -> TypeGuard[Tensor]:
    """Whether a graph may have it. Other arguments are refused outside."""
    return isinstance(tensor, Tensor) and tensor.layout == torch.strided and tensor.dtype in dtypes


def _several(bias: Any) -> list[Any]:
    return [] if bias is None else list(bias) if isinstance(bias, (list, tuple)) else [bias]


class MoE(torch.nn.Module):  # type: ignore[misc]
    """A mixture of experts, spread over the ranks of a group.

    Args:
        gate: (tokens [n, hidden]) -> (topk_idx [n, k], topk_weights [n, k]).
        experts: this rank's experts, as many on each rank: (rows [m, hidden]) -> [m, any], for any m, 0 included.
        group: see ExpertParallel.

    The same on all ranks: the gate, k, and the dtype and shape of a token. The experts are this rank's own: what
    averages gradients over the group has to leave them out.
    """

    def __init__(self, gate: torch.nn.Module, experts: torch.nn.ModuleList, group: Any = None) -> None:
        super().__init__()
        self.gate, self.experts = gate, experts
        comm = communicator(group)
        self.parallel = ExpertParallel(group, len(experts) * (comm.size if comm else 1))

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., any]: for each token the sum of its experts' results, weighted."""
        tokens = x.flatten(0, -2)
        topk_idx, topk_weights = self.gate(tokens)
        routed = self.parallel.dispatch(tokens, topk_idx, topk_weights)
        rows = torch.cat([expert(part) for expert, part in zip(self.experts, routed.split(), strict=True)])
        y = self.parallel.combine(rows, routed)
        return y.unflatten(0, x.shape[:-1])
