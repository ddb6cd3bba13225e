"""Checks the arguments of the reductions, rooted operations and messages, with Paddle's names, before the core gets
them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import paddle
from paddle.distributed import ReduceOp

import a2a
from a2a.adapting import wait_to_read

from ._errors import ArgumentTypeError, CallError

if TYPE_CHECKING:
    from a2a._core import ReduceOp as Fold

_FOLDS: dict[int, Fold] = {
    ReduceOp.SUM: "sum",
    ReduceOp.MAX: "max",
    ReduceOp.MIN: "min",
    ReduceOp.PROD: "prod",
    ReduceOp.AVG: "avg",
}


def fold_of(op: Any) -> Fold:
    """Return the core's name of one of Paddle's ReduceOp."""
    found = _FOLDS.get(op) if isinstance(op, int) else None
    if found is None:
        raise CallError(f"Unknown reduce_op type for {op!r}; pass one of ReduceOp.SUM, MAX, MIN, PROD and AVG")
    return found


def plain(tensor: Any, name: str) -> Any:
    """Return a tensor over the same memory without a gradient: like Paddle, these calls record none."""
    if not isinstance(tensor, paddle.Tensor):
        kind = type(tensor)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        raise ArgumentTypeError(f"{name} is {module}{kind.__name__}, not paddle.Tensor; pass paddle.to_tensor(x)")
    if not tensor.is_dense():
        raise a2a.InvalidArgumentError(f"{name} is not a dense tensor; pass {name}.to_dense()")
    return tensor.detach()


def elems(tensor: Any) -> int:
    return math.prod(tensor.shape)


def plain_list(tensors: Any, name: str, like: Any, like_name: str, size: int) -> list[Any]:
    """Return plain() of one tensor for each rank. Raises unless each has the dtype and the number of elements of
    ``like``."""
    if not isinstance(tensors, (list, tuple)):
        raise ArgumentTypeError(f"{name} is {type(tensors).__name__}, not a list of paddle.Tensor")
    if len(tensors) != size:
        raise a2a.InvalidArgumentError(f"{name} has {len(tensors)} tensors, but the group has {size} ranks")
    found = [plain(tensor, f"{name}[{at}]") for at, tensor in enumerate(tensors)]
    for at, tensor in enumerate(found):
        require_parts(tensor, f"{name}[{at}]", like, like_name, 1)
    return found


def require_parts(whole: Any, name: str, part: Any, part_name: str, size: int) -> None:
    """Raise unless ``whole`` has the dtype of ``part``, and ``size`` times its elements."""
    if whole.dtype != part.dtype:
        raise a2a.InvalidArgumentError(f"{name} is {_dtype(whole)}, but {part_name} is {_dtype(part)}")
    if elems(whole) != size * elems(part):
        ranks = f", and the group has {size} ranks" if size > 1 else ""
        raise a2a.InvalidArgumentError(
            f"{name} {tuple(whole.shape)} has {elems(whole)} elements, but {part_name} {tuple(part.shape)} has "
            f"{elems(part)}{ranks}"
        )


def require_place(whole: Any, name: str, part: Any, part_name: str, rank: int) -> None:
    """Raise unless ``part`` has memory of its own, or is this rank's part of ``whole``. The core checks tensors with
    gaps."""
    if not (part.is_contiguous() and whole.is_contiguous()):
        return
    part_bytes = elems(part) * part.element_size()
    offset = part.data_ptr() - whole.data_ptr()
    if -part_bytes < offset < elems(whole) * whole.element_size() and part_bytes and offset != rank * part_bytes:
        raise a2a.InvalidArgumentError(
            f"{part_name} and {name} share memory, but {part_name} is not this rank's part of {name}; pass that part, "
            "or a tensor of its own"
        )


def joined(comm: a2a.Communicator, tensors: Sequence[Any]) -> Any:
    """Return a copy of the tensors in one tensor."""
    wait_to_read(comm, tensors)
    return paddle.concat([tensor.reshape([-1]) for tensor in tensors])


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).rpartition(".")[2]
