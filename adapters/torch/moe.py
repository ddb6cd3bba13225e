"""Mixture of experts, differentiable: tokens go to experts on other ranks, and gradients come back::

    ep = a2a.torch.moe.ExpertParallel(group, num_experts)
    routed = ep.dispatch(x, topk_idx, topk_weights)
    rows = torch.cat([expert(part) for expert, part in zip(experts, routed.split())])
    y = ep.combine(rows, routed)

``MoE`` is these lines as a layer. Values are those of ``a2a.moe``, bit for bit for any number of ranks.

The backward pass is collective, too: of a combine a dispatch of the gradient, of a dispatch a combine. So on every
rank, also on one without tokens or rows, the results require a gradient wherever gradients are recorded, and
backward() has to reach ``y``. Second derivatives are refused. Under torch.compile both calls break the graph and run
as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import a2a
from a2a.adapting import refuse
from a2a.moe import ExpertParallel as HostExperts
from a2a.moe import Layout, Routing

from ._device_experts import DeviceWay
from ._errors import ArgumentTypeError, TensorError
from ._experts import HostWay, as_it_is, combine, dispatch
from ._groups import communicator

__all__ = ["ExpertParallel", "MoE", "Routed"]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Routed:
    """The rows that came to this rank, and what they are.

    Attributes:
        x: the rows, through which gradients flow. In the layout "expert" padding rows are 0.
        topk_weights: layout "expert": the weight of each row, 0 for padding; layout "rank": [rows, k], 0 where
            ``topk_idx`` is -1. float32, with gradient. None without weights.
        routing: what they were dispatched by; has all other attributes.
    """

    def __init__(self, way: HostWay, x: Tensor, topk_weights: Tensor | None, ticket: Tensor) -> None:
        self.way, self.x, self.topk_weights, self.ticket = way, x, topk_weights, ticket

    @property
    def routing(self) -> Routing:
        """See a2a.moe."""
        return self.way.routing

    @property
    def counts(self) -> Any:
        """How many rows each of this rank's experts has, without padding; int64, on the host."""
        return self.routing.counts

    @property
    def offsets(self) -> Any:
        """Where each expert's rows begin, and where the last one's padding ends. None in the layout "rank"."""
        return self.routing.offsets

    @property
    def topk_idx(self) -> Tensor:
        """Layout "expert": the local expert of each row, -1 for padding. Layout "rank": [rows, k] local experts, -1 for
        those of other ranks."""
        return self.way.topk_idx

    @property
    def source(self) -> Tensor:
        """[rows, 2]: the rank and the token that each row comes from, (-1, -1) for padding; on the host."""
        source: Tensor = self.routing.source
        return source

    def split(self) -> tuple[Tensor, ...]:
        """The rows of each of this rank's experts, padding included: views of ``x``. Layout "expert" only."""
        if self.offsets is None:
            raise a2a.InvalidArgumentError('in the layout "rank" rows are not grouped by expert')
        parts: tuple[Tensor, ...] = self.x.split((self.offsets[1:] - self.offsets[:-1]).tolist())
        return parts

    def __repr__(self) -> str:
        rows, experts = self.routing.rows, len(self.counts)
        return f'<Routed {rows} rows for {experts} experts, layout "{self.routing.layout}">'


class ExpertParallel:
    """Experts of a layer, spread over the ranks of a group.

    Args:
        group: an a2a communicator, a torch process group, or None, as in ``a2a.torch``. Collective at the first use of
            a process group.
        num_experts: how many experts there are in all.
        expert_to_rank: for each expert its rank, or a list of ranks (replicas), the same on all ranks. By default every
            rank has the same number of experts, in blocks.

    Raises InvalidArgumentError for a placement that is none, and UnsupportedError for a group that this process is not
    a member of, or whose ranks a2a does not connect.
    """

    def __init__(
        self, group: Any, num_experts: int, expert_to_rank: Sequence[int | Sequence[int]] | None = None
    ) -> None:
        comm = communicator(group)
        if comm is None:
            raise a2a.UnsupportedError(f"group {group!r}: this process is no member, or a2a does not connect its ranks")
        self.group, self.comm = group, comm
        self._host = HostExperts(comm, num_experts, expert_to_rank)
        self.num_experts, self.num_local_experts = self._host.num_experts, self._host.num_local_experts
        self._homes = expert_to_rank

    @as_it_is
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
        self._require("x", x, _DTYPES)
        if routing is not None:
            if topk_idx is not None or topk_weights is not None:
                text = "both routing and topk_idx or topk_weights are given; a routing has its own"
                raise refuse(self.comm, a2a.InvalidArgumentError(text))
            return Routed(routing.way, *dispatch(routing.way, x, None))
        self._require("topk_idx", topk_idx, (torch.int32, torch.int64))
        if topk_weights is not None:
            self._require("topk_weights", topk_weights, _DTYPES)
            topk_weights = topk_weights.float()
        way = self._plan(x, topk_idx, topk_weights, layout, align, timeout)
        return Routed(way, *dispatch(way, x, topk_weights))

    @as_it_is
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
        if not isinstance(routed, Routed):
            raise refuse(
                self.comm, ArgumentTypeError(f"routed is {type(routed).__name__}; pass what dispatch() returned")
            )
        self._require("rows", rows, _DTYPES)
        own = isinstance(weights, str)
        if own and weights != "routed":
            text = f'weights is {weights!r}; pass "routed", None, or a tensor with one for each row'
            raise refuse(self.comm, a2a.InvalidArgumentError(text))
        if own:
            weights = routed.topk_weights if routed.routing.layout == "expert" else None
        elif weights is not None:
            weights = self._require_weights(weights, routed)
        biases = [] if bias is None else list(bias) if isinstance(bias, (list, tuple)) else [bias]
        for one in biases:
            self._require("bias", one, _DTYPES)
        return combine(routed.way, rows, weights, own, routed.ticket, biases)

    def _require_weights(self, weights: Any, routed: Routed) -> Tensor:
        self._require("weights", weights, _DTYPES)
        if routed.offsets is None:
            text = (
                'weights are given, but in the layout "rank" a row stands for several experts; multiply by them first'
            )
            raise refuse(self.comm, a2a.InvalidArgumentError(text))
        if weights.shape != (routed.routing.rows,):
            text = f"weights has shape {tuple(weights.shape)}, but there are {routed.routing.rows} routed rows"
            raise refuse(self.comm, a2a.InvalidArgumentError(text))
        made: Tensor = weights.float()
        return made

    def _plan(
        self, x: Tensor, topk_idx: Any, topk_weights: Tensor | None, layout: Layout, align: int, timeout: float | None
    ) -> HostWay:
        choices = topk_idx.detach().cpu()
        given = None if topk_weights is None else topk_weights.detach().cpu()
        routing = self._host.plan(choices, given, layout=layout, align=align, timeout=timeout)
        if self._on_host(x):
            return HostWay(routing, timeout)
        return DeviceWay(routing, timeout, x.device, choices, given, self._experts_of_ranks())

    @staticmethod
    def _on_host(x: Tensor) -> bool:
        return bool(x.is_cpu)

    def _experts_of_ranks(self) -> list[list[int]]:
        """The experts of each rank, in the order of their numbers there."""
        if self._homes is None:
            each = self.num_experts // self.comm.size
            return [list(range(rank * each, (rank + 1) * each)) for rank in range(self.comm.size)]
        homes = [home if isinstance(home, (list, tuple)) else [home] for home in self._homes]
        return [[e for e, ranks in enumerate(homes) if rank in ranks] for rank in range(self.comm.size)]

    def _require(self, name: str, tensor: Any, dtypes: tuple[torch.dtype, ...]) -> None:
        """A tensor of one of these dtypes, in plain memory. Otherwise the peers are told."""
        if not isinstance(tensor, Tensor):
            raise refuse(self.comm, ArgumentTypeError(f"{name} is {type(tensor).__name__}, not torch.Tensor"))
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_meta:
            raise refuse(self.comm, TensorError(f"{name} has no values in plain memory"))
        if tensor.dtype not in dtypes:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise refuse(self.comm, ArgumentTypeError(f"{name} is {tensor.dtype}; pass one of {known}"))

    def __deepcopy__(self, memo: Any) -> ExpertParallel:
        return self  # a copy of a layer talks to the same ranks

    def __repr__(self) -> str:
        return f"ExpertParallel({self.num_experts} experts, {self.num_local_experts} of them on rank {self.comm.rank})"


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
