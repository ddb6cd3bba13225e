"""Dispatch and combine of ``a2a.torch.moe`` as custom operators, which is what torch.compile can trace.

How many rows come is a number that a graph learns when it runs; a handle (handles.py) stands for the way they came.
Operators that exchange have an effect, where Torch has register_effect(): they keep their order in a graph, and none is
left out because this rank wants no gradient. The peers call, too. Elsewhere their order is that of what they give each
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .autograd import through_product
from .handles import handle_for, take, way_of
from .host import require_weights
from .placement import placement_named

__all__ = ["about", "again", "combine", "dispatch", "learns_sizes", "size_of"]


def _operator(name: str, call: Any, fake: Any, exchanges: bool = True) -> Any:
    made = torch.library.custom_op(f"a2a::moe_{name}", call, mutates_args=())
    made.register_fake(fake)
    if exchanges and hasattr(made, "register_effect"):
        made.register_effect(torch._library.effects.EffectType.ORDERED)
    return made


def _anchor_like(tensor: Tensor) -> Tensor:
    """Return the gradient of an anchor."""
    return tensor.new_empty(0, dtype=torch.float32, device="cpu")


def _learns_sizes() -> bool:
    context = torch._guards.TracingContext.try_get()
    env = None if context is None or context.fake_mode is None else context.fake_mode.shape_env
    return bool(getattr(env, "allow_dynamic_output_shape_ops", True))


# Whether the graph that is being made may have sizes that it learns when it runs: with fullgraph=True, or where
# torch._dynamo.config.capture_dynamic_output_shape_ops says so. Marked as in _process_group/communicators.py.
learns_sizes: Any = _learns_sizes
learns_sizes._dynamo_marked_constant = True


# ---- dispatch --------------------------------------------------------------------------------------------------------


def _handle_fake(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(1, dtype=torch.float64, device="cpu")


def _dispatch(
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor | None,
    placement: str,
    layout: str,
    align: int,
    timeout: float | None,
) -> Tensor:
    return handle_for(*placement_named(placement).dispatched(x, topk_idx, topk_weights, layout, align, timeout))


def _again(x: Tensor, handle: Tensor) -> Tensor:
    way = way_of(handle)
    return handle_for(way, way.spread(x))


# The exchange: a handle, with which the rows are.
_send = _operator("dispatch", _dispatch, _handle_fake)
_send_again = _operator("dispatch_again", _again, _handle_fake)


def _rows(
    x: Tensor,
    topk_idx: Tensor | None,
    topk_weights: Tensor | None,
    layout: str,
    count: int,
    handle: Tensor,
    anchor: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    way, rows = take(handle)
    weights = x.new_empty(0, dtype=torch.float32) if topk_weights is None else way.topk_weights.clone()
    return rows, weights, handle_for(way)


def _rows_fake(x: Tensor, topk_idx: Any, topk_weights: Any, layout: str, count: Any, handle: Tensor, _: Any) -> Any:
    rows = torch.library.get_ctx().new_dynamic_size() if topk_idx is not None else count
    shape = [0] if topk_weights is None else [rows] if layout == "expert" else [rows, topk_idx.shape[1]]
    weights = x.new_empty(shape, dtype=torch.float32)
    return x.new_empty([rows, *x.shape[1:]]), weights, _handle_fake(x)


def _rows_setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, _, topk_weights, *_ = inputs
    ctx.tokens, ctx.k = x.shape[0], None if topk_weights is None else topk_weights.shape[1]
    ctx.save_for_backward(output[2])


def _rows_backward(ctx: Any, rows: Tensor, weights: Tensor, handle_grad: Tensor) -> tuple[Any, ...]:
    weighted = ctx.k is not None
    given = weights if weighted else None
    x, given, anchor = _back(rows, given, *ctx.saved_tensors, handle_grad, ctx.tokens, ctx.k or 0)
    return x, None, given if weighted else None, None, None, None, anchor


def _dispatch_back(
    rows: Tensor, weights: Tensor | None, handle: Tensor, handle_grad: Tensor, tokens: int, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    x, given = way_of(handle).back(rows, weights)
    return x, rows.new_empty(0, dtype=torch.float32) if given is None else given, _anchor_like(rows)


def _dispatch_back_fake(rows: Tensor, weights: Any, handle: Tensor, handle_grad: Tensor, tokens: Any, k: Any) -> Any:
    given = rows.new_empty([0] if weights is None else [tokens, k], dtype=torch.float32)
    return rows.new_empty([tokens, *rows.shape[1:]]), given, _anchor_like(rows)


# The results that belong to a handle: (rows, their weights, another handle); the weights are empty where there are
# none. ``count`` rows, if there are no choices. Apart from the exchange, because inductor takes no effect with a new
# size.
_take = _operator("rows", _rows, _rows_fake, exchanges=False)
_take.register_autograd(_rows_backward, setup_context=_rows_setup)
# (the gradients of tokens, of their weights, of the anchor). That of the handle comes after combine's backward pass.
_back = _operator("dispatch_back", _dispatch_back, _dispatch_back_fake)


def dispatch(
    x: Tensor, topk_idx: Tensor, topk_weights: Tensor | None, placement: str, layout: str, align: int,
    timeout: float | None, anchor: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """(rows, their weights, the handle)"""
    given = None if topk_weights is None else topk_weights.detach()
    handle = _send(x.detach(), topk_idx, given, placement, layout, align, timeout)
    rows, weights, handle = _take(x, topk_idx, topk_weights, layout, 0, handle, anchor)
    return rows, None if topk_weights is None else weights, handle


def again(x: Tensor, handle: Tensor, count: int, anchor: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, as many as ``count``, and another handle), the way of an earlier dispatch."""
    rows, _, handle = _take(x, None, None, "", count, _send_again(x.detach(), handle.detach()), anchor)
    return rows, handle


# ---- combine ---------------------------------------------------------------------------------------------------------


def _combine(
    rows: Tensor, weights: Tensor | None, own: bool, handle: Tensor, bias: Sequence[Tensor], tokens: int, anchor: Tensor
) -> Tensor:
    way = way_of(handle)
    if weights is not None and not own:
        require_weights(way, weights)
    made: Tensor = way.gather(rows, "routed" if own and weights is not None else weights, bias)
    return made


def _combine_fake(rows: Tensor, weights: Any, own: bool, handle: Tensor, bias: Any, tokens: Any, anchor: Tensor) -> Any:
    return rows.new_empty([tokens, *rows.shape[1:]])


def _combine_setup(ctx: Any, inputs: Any, output: Any) -> None:
    rows, weights, _, handle, bias, *_ = inputs
    ctx.rows, ctx.biases = rows.shape[0], len(bias)
    ctx.save_for_backward(None if weights is None else rows, weights, handle)


def _combine_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    rows, weights, handle = ctx.saved_tensors
    rows_grad, weights_grad, handle_grad, anchor = _combine_back(grad, rows, weights, handle, ctx.rows)
    return rows_grad, None if weights is None else weights_grad, None, handle_grad, [grad] * ctx.biases, None, anchor


def _combine_back_real(
    grad: Tensor, rows: Tensor | None, weights: Tensor | None, handle: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    way = way_of(handle)
    rows_grad, weights_grad = way.spread(grad), grad.new_empty(0, dtype=torch.float32)
    if rows is not None and weights is not None:
        rows_grad, weights_grad = through_product(rows, weights, rows_grad, way.topk_idx)
    return rows_grad, weights_grad, torch.zeros_like(handle), _anchor_like(grad)


def _combine_back_fake(grad: Tensor, rows: Any, weights: Any, handle: Tensor, count: Any) -> Any:
    weights_grad = grad.new_empty([0 if weights is None else count], dtype=torch.float32)
    return grad.new_empty([count, *grad.shape[1:]]), weights_grad, torch.empty_like(handle), _anchor_like(grad)


# The sums for ``tokens`` tokens. ``own``: the weights are those that were dispatched.
combine = _operator("combine", _combine, _combine_fake)
combine.register_autograd(_combine_backward, setup_context=_combine_setup)
# (the gradients of rows, of their weights, of the handle, of the anchor)
_combine_back = _operator("combine_back", _combine_back_real, _combine_back_fake)


# ---- what rows are ---------------------------------------------------------------------------------------------------


def _about(handle: Tensor, what: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    way = way_of(handle)
    values = way.topk_idx if what == "topk_idx" else getattr(way.routing, what)
    return torch.as_tensor(values).clone()


def _size(handle: Tensor, expert: int) -> int:
    offsets = way_of(handle).routing.offsets
    return int(offsets[expert + 1] - offsets[expert])


# An attribute of a routing: "counts", "offsets", "topk_idx" or "source".
about = _operator(
    "about",
    _about,
    lambda handle, what, shape, dtype, device: torch.empty(shape, dtype=dtype, device=device),
    exchanges=False,
)
# How many rows a local expert has, with padding.
size_of = _operator("size_of", _size, lambda *_: torch.library.get_ctx().new_dynamic_size(), exchanges=False)
