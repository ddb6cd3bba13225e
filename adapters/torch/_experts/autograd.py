"""Dispatch and combine of ``a2a.torch.moe`` as functions that autograd knows: each is the other's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import a2a
from a2a.adapting import collective

from .host import HostWay

__all__ = ["combine", "dispatch", "through_product"]


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
    """Returns (rows, their weights, a handle). combine() takes the handle, so that the backward pass reaches this
    function even on a rank whose rows do not depend on those that it got."""

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
        ctx: Any, way: HostWay, own: bool, rows: Tensor, weights: Tensor | None, handle: Tensor, _: Any, *bias: Tensor
    ) -> Tensor:
        ctx.way, ctx.comm, ctx.biases = way, way.comm, len(bias)
        # The handle, so that what computes a part of the graph again when something saved is wanted does so here, on
        # every rank.
        ctx.save_for_backward(None if weights is None else rows, weights, handle)
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
    """Return the gradients of rows and of weights, from that of their product."""
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
    way: HostWay, rows: Tensor, weights: Tensor | None, own: bool, handle: Tensor, bias: Sequence[Tensor]
) -> Tensor:
    made: Tensor = _Combine.apply(way, own, rows, weights, handle, _anchor(), *bias)
    return made
