"""What both kinds of buffer are made of: the ranks, what is refused, and the shapes of results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor

import a2a
from a2a.adapting import refuse
from a2a.moe import ExpertParallel, Routing

from .._groups import communicator
from .._staging import inner

__all__ = ["Ranks", "Rows", "by_columns", "combined", "dispatched", "grown", "plain", "rounded_up"]

Rows: TypeAlias = Tensor | tuple[Tensor, Tensor]


class Ranks:
    """The ranks of a group and the experts on them."""

    def __init__(self, group: Any) -> None:
        comm = communicator(group)
        if comm is None:
            raise a2a.UnsupportedError(f"group {group!r}: this process is no member, or a2a does not connect its ranks")
        self.comm = comm
        self._experts: dict[int, ExpertParallel] = {}

    def require(self, holds: bool, text: str) -> None:
        """Raises InvalidArgumentError where it does not hold; the peers are told."""
        if not holds:
            raise refuse(self.comm, a2a.InvalidArgumentError(text))

    def experts(self, num_experts: Any) -> ExpertParallel:
        """That many experts, in blocks."""
        size = self.comm.size
        found = self._experts.get(num_experts) if isinstance(num_experts, int) else None
        if found is None:
            fits = isinstance(num_experts, int) and num_experts > 0 and num_experts % size == 0
            self.require(fits, f"num_experts is {num_experts!r}; pass a multiple of the {size} ranks")
            found = self._experts[num_experts] = ExpertParallel(self.comm, num_experts)
        return found

    def tokens(self, x: Any) -> tuple[Tensor, Tensor | None]:
        """Those of ``x``, and their scales, if it is a pair."""
        given, scales = x if isinstance(x, tuple) and len(x) == 2 else (x, None)
        for name, tensor in (("x", given), ("scales of x", scales)):
            if tensor is not None or name == "x":
                self.require_matrix(name, tensor)
        return given, scales

    def require_matrix(self, name: str, tensor: Any, rows: int | None = None, columns: int | None = None) -> None:
        """A matrix, with so many rows and columns if these are given."""
        if not isinstance(tensor, Tensor):
            self.require(False, f"{name} is {type(tensor).__name__}, not a tensor")
        shape = tuple(tensor.shape)
        fits = len(shape) == 2 and rows in (None, shape[0]) and columns in (None, shape[1])
        self.require(fits, f"{name} has shape {shape}; pass [{'any' if rows is None else rows}, "
                           f"{'any' if columns is None else columns}]")  # fmt: skip


def dispatched(routing: Routing, x: Tensor, scales: Tensor | None, later: bool) -> tuple[Rows, list[a2a.Work]]:
    """Rows of x, or of both, and with ``later`` the work by which they come."""
    made = routing.dispatch(plain(x), None if scales is None else plain(scales), async_op=later)
    routed = made.result if later else made
    return (routed.x if scales is None else (routed.x, routed.scales)), [made] if later else []


def combined(
    routing: Routing, rows: Tensor, later: bool, weights: Any = None, bias: Any = None
) -> tuple[Tensor, list[a2a.Work]]:
    """The sums of each token's rows, and with ``later`` the work by which they come."""
    several = list(bias) if isinstance(bias, (tuple, list)) else [] if bias is None else [bias]
    biases = [plain(one) for one in several] or None
    made = routing.combine(plain(rows), weights=weights, bias=biases, async_op=later)
    return (made.result, [made]) if later else (made, [])


def plain(tensor: Tensor) -> Tensor:
    """Its values, whatever gradient it requires."""
    return inner(tensor)


def grown(tensor: Tensor, rows: int, fill: float = 0) -> Tensor:
    """With so many rows, of which the last are ``fill``."""
    if len(tensor) == rows:
        return tensor
    made = tensor.new_empty(rows, *tensor.shape[1:])
    if tensor.dtype.itemsize == 1:  # float8 has no fill
        made.view(torch.uint8)[len(tensor) :] = 0
    else:
        made[len(tensor) :] = fill
    made[: len(tensor)] = tensor
    return made


def by_columns(matrix: Tensor, multiple: int = 1) -> Tensor:
    """The same values, column after column, each beginning at a multiple of so many elements."""
    column = -(-matrix.shape[-2] // multiple) * multiple
    made = matrix.new_zeros(*matrix.shape[:-2], matrix.shape[-1], column).transpose(-1, -2)[..., : matrix.shape[-2], :]
    return made.copy_(matrix)


def rounded_up(counts: Iterable[int], multiple: int) -> list[int]:
    """Each to a multiple."""
    return [-(-int(count) // multiple) * multiple for count in counts]
