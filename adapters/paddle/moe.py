"""Tokens to experts and back with gradients: a2a.moe on Paddle's tensors::

    layer = a2a.paddle.moe.MoELayer(gate, experts)  # the experts of this rank
    y = layer(x)

For layers of another kind, ExpertParallel has dispatch() and combine(), which are each other's gradient. The backward
pass exchanges as well, so every rank has to run it, also one without tokens or without rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, overload

import paddle
from paddle.autograd import PyLayer

import a2a.moe
from a2a import _core
from a2a._placements import Homes, Replicas
from a2a.adapting import collective, takes

from . import _autograd
from ._groups import require_member

__all__ = ["ExpertParallel", "MoELayer", "Routed", "Routing"]


class MoELayer(paddle.nn.Layer):  # type: ignore[misc, unused-ignore]
    """A mixture of experts, spread over the ranks of a group. The result is that of one process that has all experts.

    Args:
        gate: a layer that returns, for tokens [tokens, features], their weights and their experts, both [tokens, k], as
            the gates of paddle.incubate do. -1 is no expert.
        experts: this rank's layers. Every rank has the same number; they are numbered in the order of the ranks.
        group: a Paddle group, an a2a communicator, or None for all ranks.

    Its parameters are those of the gate, which have to be equal on all ranks, and those of this rank's experts."""

    def __init__(self, gate: Any, experts: Sequence[Any], group: Any = None) -> None:
        super().__init__()
        self.gate, self.experts = gate, paddle.nn.LayerList(experts)
        self.parallel = ExpertParallel(group, len(experts) * require_member(group).size)

    def forward(self, x: Any) -> Any:
        """x: [..., features]. Returns a tensor of the same shape: for each token the weighted sum of its experts'
        results."""
        tokens = x.reshape([math.prod(x.shape[:-1]), x.shape[-1]])
        # Without a gradient Paddle's layers have no backward pass for no rows, and a rank without rows would drop out
        # of the exchange.
        tokens.stop_gradient = not paddle.is_grad_enabled()
        weights, experts = self.gate(tokens)
        routed = self.parallel.dispatch(tokens, experts, weights.astype("float32"))
        parts = paddle.split(routed.x, routed.counts.tolist())
        rows = paddle.concat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        y = self.parallel.combine(rows, routed)
        return y.reshape([*x.shape[:-1], y.shape[-1]])


class Routed(a2a.moe.Routed):
    """As a2a.moe.Routed. In the graph ``x`` and ``topk_weights`` are results of the dispatched tensors."""

    def __init__(self, plain: a2a.moe.Routed, x: Any, weights: Any) -> None:
        super().__init__(plain.routing, (), [x, plain.scales], plain.work)
        self._final, self._weights = True, weights

    @property
    def topk_weights(self) -> Any:
        """See a2a.moe.Routed."""
        return self._weights


class Routing(a2a.moe.Routing):
    """As a2a.moe.Routing, with gradients."""

    def __init__(self, core: Any, given: Any) -> None:
        super().__init__(core)
        self._given = given  # the weights [tokens, k]

    @overload
    def dispatch(
        self, x: Any, scales: Any = None, *, async_op: Literal[False] = False, timeout: float | None = None
    ) -> Any: ...
    @overload
    def dispatch(
        self, x: Any, scales: Any = None, *, async_op: Literal[True], timeout: float | None = None
    ) -> a2a.Work: ...
    @overload
    def dispatch(self, x: Any, scales: Any = None, *, async_op: bool = False, timeout: float | None = None) -> Any: ...
    @collective
    def dispatch(self, x: Any, scales: Any = None, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """Collective. As ExpertParallel.dispatch(), without another exchange of routes."""
        made = super().dispatch(_plain(x), scales, async_op=async_op, timeout=timeout)
        plain = made.result if async_op else made
        given, results = (x, self._given), [plain.x, plain.topk_weights]
        if wanted := [at for at in (0, 1) if _autograd.wants_gradient([given[at]])]:
            back, there = partial(self._home, wanted), partial(self._forth, wanted)
            joined = _autograd.results(
                self.comm, [given[at] for at in wanted], [results[at] for at in wanted], back, there
            )
            for at, result in zip(wanted, joined, strict=True):
                results[at] = result
        routed = Routed(plain, *results)
        return _core.set_result(made, routed) if async_op else routed

    @overload
    def combine(
        self,
        rows: Any,
        *,
        weights: Any = "routed",
        bias: Any = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> Any: ...
    @overload
    def combine(
        self,
        rows: Any,
        *,
        weights: Any = "routed",
        bias: Any = None,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> a2a.Work: ...
    @overload
    def combine(
        self,
        rows: Any,
        *,
        weights: Any = "routed",
        bias: Any = None,
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
        """Collective. As ExpertParallel.combine(), for weights without a gradient."""
        factors = weights
        if isinstance(weights, str):
            if self.layout == "expert" and _autograd.wants_gradient([self._given]):
                raise a2a.InvalidArgumentError(
                    "topk_weights has stop_gradient=False, and would get no gradient; call combine() of ExpertParallel "
                    "with what dispatch() returned"
                )
            factors = self.topk_weights
        return self._sum(rows, weights, factors, bias, async_op, timeout)

    def _sum(self, rows: Any, weights: Any, factors: Any, bias: Any, async_op: bool, timeout: float | None) -> Any:
        """combine() with ``weights``. Their gradient goes to ``factors``, which are the weights of each row in the
        graph."""
        biases = [] if bias is None else list(bias) if isinstance(bias, (list, tuple)) else [bias]
        made = super().combine(
            _plain(rows),
            weights=_plain(weights),
            bias=[_plain(tensor) for tensor in biases],
            async_op=async_op,
            timeout=timeout,
        )
        weighted = factors is not None and self.layout == "expert"
        inputs = [rows, *([factors] if weighted else []), *biases]
        if not _autograd.wants_gradient(inputs):
            return made
        output = _Sum.apply(_Summed(self, made.result if async_op else made, weighted, inputs), *inputs)
        return _core.set_result(made, output) if async_op else output

    def _rows(self, x: Any) -> Any:
        """Collective. Return the rows of dispatch(), with derivatives of any order in x only."""
        rows = super().dispatch(x.detach()).x
        if not _autograd.wants_gradient([x]):
            return rows
        return _autograd.results(self.comm, [x], [rows], partial(self._home, [0]), partial(self._forth, [0]))[0]

    @collective
    def _home(self, of: Sequence[int], gradients: Sequence[Any]) -> Sequence[Any]:
        """Send gradients to the tokens. ``of`` says for each tensor whether it belongs to the rows, 0, or to their
        weights, 1."""
        takes(len(of))
        return [
            self._weights_home(gradient) if which else super(Routing, self).combine(gradient, weights=None)
            for which, gradient in zip(of, gradients, strict=True)
        ]

    def _weights_home(self, gradient: Any) -> Any:
        if self.layout == "expert":
            return paddle.to_tensor(self.core.give_back(gradient))
        mine = (self.topk_idx >= 0).astype("float32")  # the other weights are on other ranks
        return super().combine(gradient * mine, weights=None)

    def _forth(self, of: Sequence[int], tensors: Sequence[Any]) -> Sequence[Any]:
        """Send tensors the way of dispatch() again, for derivatives of higher order."""
        if 1 in of:
            raise a2a.UnsupportedError("topk_weights of dispatch() have no derivatives of second order")
        return [super().dispatch(tensors[0]).x]


class ExpertParallel(a2a.moe.ExpertParallel):
    """As a2a.moe.ExpertParallel, with gradients of tokens, rows, weights and biases.

    Args:
        group: a Paddle group, an a2a communicator, or None for all ranks.
        num_experts, expert_to_rank, replicas: as there.

    A tensor that has ``stop_gradient=False`` on one rank has to have it on all, and each rank has to compute its
    argument of combine() from ``routed.x``, even if that has no row: otherwise the backward pass of a rank would lack
    an exchange."""

    def __init__(
        self,
        group: Any,
        num_experts: int,
        expert_to_rank: Homes | None = None,
        *,
        replicas: Replicas | None = None,
    ) -> None:
        super().__init__(require_member(group), num_experts, expert_to_rank, replicas=replicas)

    @staticmethod
    def _communicator(group: Any) -> a2a.Communicator:
        return require_member(group)

    @overload
    def combine(
        self,
        rows: Any,
        routed: a2a.moe.Routed | a2a.moe.Routing,
        *,
        weights: Any = "routed",
        bias: Any = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> Any: ...
    @overload
    def combine(
        self,
        rows: Any,
        routed: a2a.moe.Routed | a2a.moe.Routing,
        *,
        weights: Any = "routed",
        bias: Any = None,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> a2a.Work: ...
    @overload
    def combine(
        self,
        rows: Any,
        routed: a2a.moe.Routed | a2a.moe.Routing,
        *,
        weights: Any = "routed",
        bias: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any: ...
    @collective
    def combine(
        self,
        rows: Any,
        routed: a2a.moe.Routed | a2a.moe.Routing,
        *,
        weights: Any = "routed",
        bias: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Collective. See a2a.moe.ExpertParallel.combine()."""
        if isinstance(routed, Routed) and isinstance(routed.routing, Routing):
            self._require_own(routed.routing, "routed")
            factors = routed.topk_weights if isinstance(weights, str) else weights
            return routed.routing._sum(rows, weights, factors, bias, async_op, timeout)
        return super().combine(rows, routed, weights=weights, bias=bias, async_op=async_op, timeout=timeout)

    def _route(
        self, topk_idx: Any, topk_weights: Any, layout: str, align: int, x: Any, scales: Any, *others: Any
    ) -> Routing:
        plain = super()._route(topk_idx, _plain(topk_weights), layout, align, _plain(x), scales, *others)
        return Routing(plain.core, topk_weights)


class _Summed:
    """A combine() that is done, or in flight."""

    def __init__(self, routing: Routing, output: Any, weighted: bool, inputs: Sequence[Any]) -> None:
        self.routing, self.output, self.weighted = routing, output, weighted
        self.wanted = [not tensor.stop_gradient for tensor in inputs]


class _Sum(PyLayer):  # type: ignore[misc, unused-ignore]
    """Its node in the graph: a result of the rows, of their weights if there are any, and of biases."""

    @staticmethod
    def forward(ctx: Any, summed: _Summed, *inputs: Any) -> Any:
        ctx.summed, output, summed.output = summed, summed.output.detach(), None
        if summed.weighted:
            ctx.save_for_backward(*inputs[:2])
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        summed = ctx.summed
        came = summed.routing._rows(gradient)
        found = [came]
        if summed.weighted:
            rows, weights = ctx.saved_tensor()
            wide = "float64" if rows.dtype == paddle.float64 else "float32"
            came, row = came.astype(wide), math.prod(rows.shape[1:])
            products = (came * rows.astype(wide)).reshape([rows.shape[0], row]).sum(1)
            found = [
                (came * weights.reshape([-1] + [1] * (rows.ndim - 1))).astype(rows.dtype),
                products.astype("float32"),
            ]
        found += [gradient] * (len(summed.wanted) - len(found))
        # Paddle requires None exactly for the inputs without a gradient.
        return tuple(tensor if wanted else None for tensor, wanted in zip(found, summed.wanted, strict=True))


def _plain(tensor: Any) -> Any:
    """Return the tensor without a gradient, for the core."""
    return tensor.detach() if isinstance(tensor, paddle.Tensor) else tensor
