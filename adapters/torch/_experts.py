"""Dispatch and combine of ``a2a.torch.moe`` as functions that autograd knows: each is the other's gradient. A *way*
moves rows from tokens to experts and back; on the host that is a2a.moe."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

import a2a
from a2a.adapting import collective, refuse, takes
from a2a.moe import Routing

from ._staging import inner

__all__ = ["HostWay", "as_it_is", "combine", "dispatch", "require_weights", "through_product"]

_Call = TypeVar("_Call", bound=Callable[..., Any])


def as_it_is(call: _Call) -> _Call:
    """Left alone by torch.compile, with a break before and after: torch.compiler.disable(), but for the second that it
    takes to import where nothing is compiled."""
    disabled: list[Any] = []

    @functools.wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return call(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(call))
        return disabled[0](*args, **kwargs)

    run._torchdynamo_disable = True  # type: ignore[attr-defined]
    return run  # type: ignore[return-value]


class HostWay:
    """Rows of tensors on the host."""

    def __init__(self, routing: Routing, timeout: float | None) -> None:
        self.routing, self.comm, self.timeout = routing, routing.comm, timeout
        self.topk_idx: Tensor = routing.topk_idx
        self.topk_weights: Tensor | None = routing.topk_weights

    @collective
    def spread(self, x: Tensor) -> Tensor:
        """Tokens to rows."""
        rows: Tensor = self.routing.dispatch(_plain(x), timeout=self.timeout).x
        return rows

    @collective
    def gather(self, rows: Tensor, weights: Any = None, bias: Sequence[Tensor] = ()) -> Tensor:
        """Rows to tokens: the weighted sums. ``weights``: "routed", None, or one for each row."""
        if isinstance(weights, Tensor):
            takes(2)
            weights = _plain(weights)
        biases = [_plain(one).contiguous() for one in bias] or None  # the core takes no other
        made: Tensor = self.routing.combine(_plain(rows), weights=weights, bias=biases, timeout=self.timeout)
        return made

    def give_back(self, values: Tensor) -> Tensor:
        """Bring the gradients of the rows' weights back to the tokens: [tokens, k]."""
        if self.routing.layout == "rank":  # each has those of its own experts
            return self.gather(values.masked_fill(self.topk_idx < 0, 0))
        return self.return_each(values)

    @collective
    def back(self, rows: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The gradients of the tokens, and of their weights, from those of the rows."""
        takes(1 if weights is None else 2)
        return self.gather(rows), None if weights is None else self.give_back(weights)

    @collective
    def return_each(self, values: Tensor) -> Tensor:
        """One value of each row to the token and place in top-k that it came for. Layout "expert" only."""
        return torch.from_numpy(self.routing.core.give_back(_plain(values), timeout=self.timeout))


def require_weights(way: HostWay, weights: Tensor) -> None:
    """One for each row, in the layout "expert". Otherwise the peers are told."""
    rows, text = way.routing.rows, ""
    if way.routing.layout == "rank":
        text = 'weights are given, but in the layout "rank" a row stands for several experts; multiply by them first'
    elif weights.shape != (rows,):
        text = f"weights has shape {tuple(weights.shape)}, but there are {rows} routed rows"
    if text:
        raise refuse(way.routing.comm, a2a.InvalidArgumentError(text))


def _plain(tensor: Tensor) -> Tensor:
    return inner(tensor.resolve_conj().resolve_neg())


class _First(torch.autograd.Function):  # type: ignore[misc]
    """First derivatives, and what they depend on. once_differentiable() does not serve: torch.autograd.grad() passes
    its error over, and leaves out the part of a second derivative that would have come this way."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Any, ...]:
        return tensors[:count]

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise a2a.UnsupportedError("a2a.torch.moe has no second derivatives")


def _first(found: list[Tensor], origins: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the derivatives, of which nobody can take another one."""
    if not torch.is_grad_enabled():
        return found
    return list(_First.apply(len(found), *found, *[one for one in origins if one is not None]))


class _Dispatch(torch.autograd.Function):  # type: ignore[misc]
    """(rows, their weights, a ticket), the last for combine(): so that the backward pass comes back to here even where
    a rank made its rows without those that it got."""

    @staticmethod
    def forward(ctx: Any, way: HostWay, x: Tensor, topk_weights: Tensor | None, _: Tensor) -> tuple[Any, ...]:
        ctx.way, ctx.comm, ctx.weighted = way, way.comm, topk_weights is not None
        weights = None if way.topk_weights is None else way.topk_weights.clone()
        if weights is not None and not ctx.weighted:
            ctx.mark_non_differentiable(weights)
        return way.spread(x), weights, x.new_empty(0)

    @staticmethod
    @collective
    def backward(ctx: Any, rows: Tensor, weights: Tensor | None, _: Any) -> tuple[Any, ...]:
        with torch.no_grad():
            # Whatever this rank wants to know: the peers call, too.
            found = [one for one in ctx.way.back(rows, weights if ctx.weighted else None) if one is not None]
        x, *given = _first(found, [rows, weights])
        return None, x, given[0] if given else None, None


class _Combine(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, way: HostWay, own: bool, rows: Tensor, weights: Tensor | None, ticket: Tensor, _: Any, *bias: Tensor
    ) -> Tensor:
        ctx.way, ctx.comm, ctx.biases = way, way.comm, len(bias)
        # The ticket, so that what computes a part of the graph again when something saved is wanted does so here, on
        # every rank.
        ctx.save_for_backward(None if weights is None else rows, weights, ticket)
        return way.gather(rows, "routed" if own and weights is not None else weights, bias)

    @staticmethod
    @collective
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        rows, weights, _ = ctx.saved_tensors
        with torch.no_grad():
            found = [ctx.way.spread(grad)]
            if weights is not None:
                found = list(through_product(rows, weights, found[0], ctx.way.topk_idx))
        rows_grad, *given = _first(found, [grad, rows, weights])
        return None, None, rows_grad, given[0] if given else None, None, None, *[grad] * ctx.biases


_BLOCK = 1 << 18  # elements that are widened at a time, so that they stay in the cache


def through_product(rows: Tensor, weights: Tensor, grad: Tensor, expert: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of rows and of weights, from that of their product."""
    wide = torch.promote_types(rows.dtype, torch.float32)
    for_rows, for_weights = torch.empty_like(grad), rows.new_empty(len(rows), dtype=torch.float32)
    block = max(1, _BLOCK // max(1, rows[:1].numel()))
    for begin in range(0, len(rows), block):
        part = slice(begin, begin + block)
        each = _matrix(grad[part]).to(wide)
        for_weights[part] = (_matrix(rows[part]).to(wide) * each).sum(1)
        for_rows[part] = (weights[part].unsqueeze(1) * each).view_as(grad[part])
    # Padding rows may hold anything.
    return for_rows, for_weights.masked_fill_(expert < 0, 0)


def _matrix(rows: Tensor) -> Tensor:
    return rows.unsqueeze(1).flatten(1)


def _anchor() -> Tensor:
    """An input that makes every rank's result require a gradient where gradients are recorded."""
    return torch.empty(0, device="cpu", requires_grad=torch.is_grad_enabled())


# After the route has been found, a rank that fails before rows move tells its peers.


@collective
def dispatch(way: HostWay, x: Tensor, topk_weights: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
    made: tuple[Tensor, Tensor | None, Tensor] = _Dispatch.apply(way, x, topk_weights, _anchor())
    return made


@collective
def combine(
    way: HostWay, rows: Tensor, weights: Tensor | None, own: bool, ticket: Tensor, bias: Sequence[Tensor]
) -> Tensor:
    made: Tensor = _Combine.apply(way, own, rows, weights, ticket, _anchor(), *bias)
    return made
