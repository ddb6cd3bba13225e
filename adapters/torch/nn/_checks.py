"""Checks of the differentiable calls before an operator gets the arguments: the operators' own schemas would raise
errors of torch only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

import a2a

from .._errors import ArgumentTypeError, TensorError, not_a_tensor
from .._operations.staging import require_writable

__all__ = ["named_entries", "require_axes", "require_counts", "require_exchange", "require_splits"]

Named = Mapping[str, Any]


def named_entries(name: str, tensors: Any) -> Named:
    """Return the entries of a list argument by name; the argument itself when it is no list."""
    if not isinstance(tensors, (list, tuple)):
        return {name: tensors}
    return {f"{name}[{at}]": tensor for at, tensor in enumerate(tensors)}


def require_exchange(group: Any, outputs: Named, inputs: Named) -> None:
    """Require tensors of one dtype that can take part."""
    if group is not None and group == c10d.GroupMember.NON_GROUP_MEMBER:
        raise a2a.InvalidArgumentError("this process is not a member of the group, which has no exchange for it")
    for name, tensor in {**outputs, **inputs}.items():
        _require_tensor(name, tensor)
    for name, output in outputs.items():
        if output.requires_grad and output.is_leaf and torch.is_grad_enabled():
            raise TensorError(f"{name} is a leaf that requires a gradient, and would get values that have none")
        require_writable(None, name, output)
        for other, tensor in inputs.items():
            if tensor.dtype != output.dtype:
                raise a2a.InvalidArgumentError(f"{other} is {tensor.dtype}, but {name} is {output.dtype}")


def require_splits(splits: Named) -> None:
    """Require integers, or None."""
    for name, sizes in splits.items():
        if sizes is not None:
            _require_integers(name, sizes)


def require_axes(axes: Named) -> None:
    """Require integers."""
    for name, axis in axes.items():
        if isinstance(axis, bool) or not hasattr(axis, "__index__"):
            raise ArgumentTypeError(f"{name} is {axis!r}; pass the number of a dimension")


def require_counts(counts: Named) -> None:
    """Require integers, in a list or in a 1-D tensor on the host."""
    for name, given in counts.items():
        if not isinstance(given, Tensor):
            _require_integers(name, given)
        elif given.is_floating_point() or given.is_complex() or given.ndim != 1 or given.device.type != "cpu":
            raise a2a.InvalidArgumentError(
                f"{name} is a {given.ndim}-D {given.dtype} tensor on {given.device}; counts are a 1-D tensor of "
                "integers on the host, or a list"
            )


def _require_tensor(name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise not_a_tensor(name, tensor)
    kind = "nested" if tensor.is_nested else "meta" if tensor.is_meta else "quantized" if tensor.is_quantized else ""
    if not kind and tensor.layout != torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
    if kind:
        raise TensorError(f"{name} is a {kind} tensor; an exchange needs values in plain memory")


def _require_integers(name: str, given: Any) -> None:
    values = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(values, (list, tuple)):
        raise ArgumentTypeError(f"{name} is {type(given).__name__}; pass a list of integers")
    for at, value in enumerate(values):
        if isinstance(value, bool) or not (isinstance(value, torch.SymInt) or hasattr(value, "__index__")):
            raise ArgumentTypeError(f"{name}[{at}] is {value!r}; pass integers")
