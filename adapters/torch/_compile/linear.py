"""Operators that are linear in their tensors, with every derivative that torch knows: an exchange moves tangents as it
moves values, and gradients the other way. Under vmap the entries of the batch travel together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from .._process_group.collective import of_named_group
from .._untraced import as_it_is

__all__ = ["Linear", "under_functorch"]

_library = torch.library.Library("a2a", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag,)


def under_functorch() -> bool:
    """Whether the call runs inside of torch.func. A traced call runs later."""
    return not is_dynamo_compiling() and torch._C._are_functorch_transforms_active()


class Linear:
    """The operator ``a2a::name``. Its first argument is a tensor, or a list of tensors; the others are constants, the
    last one the name of the group.

    Args:
        body, fake: the operator, and the same without an exchange.
        back: (shapes of the tensors, *others) -> (the operator that sends gradients back, its others).
        batched: (a tensor without its batch, size of the batch, *others) -> the others for tensors whose last dimension
            is the batch.
    """

    def __init__(
        self, name: str, body: Callable[..., Any], fake: Callable[..., Any], back: Callable[..., tuple[Any, ...]],
        batched: Callable[..., tuple[Any, ...]],
    ) -> None:  # fmt: skip
        self.back, self.batched = back, batched
        _library.define(name + torch.library.infer_schema(body, mutates_args=()), tags=_TAGS)
        _library.impl(name, as_it_is(of_named_group(body)), "CompositeExplicitAutograd")
        _library.impl(name, self._with_derivatives, "Autograd", with_keyset=True)
        self.op: Any = getattr(torch.ops.a2a, name).default
        torch.library.register_fake(f"a2a::{name}", fake, lib=_library)
        torch.library.register_vmap(f"a2a::{name}", self._vmap, lib=_library)

    def __call__(self, given: Any, *others: Any) -> Any:
        # functorch takes functions apart, but operators only down to where autograd is.
        if not under_functorch():
            return self.op(given, *others)
        return self._derived(given, others, lambda given: self.op(given, *others))

    def _with_derivatives(self, keyset: Any, given: Any, *others: Any) -> Any:
        """The kernel for autograd."""
        if torch._C._are_functorch_transforms_active():
            raise NotImplementedError(
                f"torch.func does not reach into the operator {self.op}; call the function of a2a.torch.nn instead"
            )

        def below(given: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return self.op.redispatch(keyset & torch._C._after_autograd_keyset, given, *others)

        tensors = given if isinstance(given, (list, tuple)) else (given,)
        records = torch.is_grad_enabled() and any([tensor.requires_grad for tensor in tensors])
        if not records and forward_ad._current_level < 0:  # then no tensor has a tangent
            return below(given)
        return self._derived(given, others, below)

    def _derived(self, given: Any, others: tuple[Any, ...], below: Callable[[Any], Any]) -> Any:
        listed = isinstance(given, (list, tuple))
        made = _Derived.apply(self, listed, others, below, *(given if listed else [given]))
        return list(made) if listed else made

    def _vmap(self, info: Any, in_dims: Any, given: Any, *others: Any) -> Any:
        """The rule for torch.vmap: the batch becomes the last dimension."""
        listed = isinstance(given, (list, tuple))
        tensors, dims = (given, in_dims[0]) if listed else ([given], [in_dims[0]])
        if any(dim is not None for dim in torch.utils._pytree.tree_leaves(in_dims[1:])):
            raise NotImplementedError(f"{self.op}: only its tensors can have a batch, not the numbers beside them")
        size = info.batch_size
        last = [
            tensor.unsqueeze(-1).expand(*tensor.shape, size) if dim is None else tensor.movedim(dim, -1)
            for tensor, dim in zip(tensors, dims or [None] * len(tensors), strict=True)
        ]
        made = self(last if listed else last[0], *self.batched(last[0][..., 0], size, *others))
        return (made, [tensor.ndim - 1 for tensor in made]) if listed else (made, made.ndim - 1)


class _Derived(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(linear: Linear, listed: bool, others: Any, below: Callable[[Any], Any], *tensors: Tensor) -> Any:
        return tuple(below(list(tensors))) if listed else below(tensors[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.linear, ctx.listed, ctx.others, _, *tensors = inputs
        ctx.like = [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        back, others = ctx.linear.back([shape for shape, *_ in ctx.like], *ctx.others)
        found = back(list(grads) if ctx.listed else grads[0], *others)
        return None, None, None, None, *(found if ctx.listed else [found])

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        # A tensor without a tangent takes part with zeros: the peers send theirs.
        given = [
            torch.zeros(shape, dtype=dtype, device=device) if tangent is None else tangent
            for tangent, (shape, dtype, device) in zip(tangents[4:], ctx.like, strict=True)
        ]
        made = ctx.linear(given if ctx.listed else given[0], *ctx.others)
        return tuple(made) if ctx.listed else made

    @staticmethod
    def vmap(info: Any, in_dims: Any, linear: Linear, listed: bool, others: Any, _: Any, *tensors: Tensor) -> Any:
        dims = list(in_dims[4:])
        made, at = linear._vmap(info, (dims if listed else dims[0],), list(tensors) if listed else tensors[0], *others)
        return (tuple(made), tuple(at)) if listed else (made, at)
