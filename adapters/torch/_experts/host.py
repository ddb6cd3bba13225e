"""Rows of tensors on the host: a2a.moe moves them from tokens to experts and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import a2a
from a2a.adapting import collective, refuse, takes
from a2a.moe import Routing

from .._operations.staging import inner

__all__ = ["HostWay", "require_weights"]


class HostWay:
    """Rows of tensors on the host."""

    def __init__(self, routing: Routing, timeout: float | None) -> None:
        self.routing, self.comm, self.timeout = routing, routing.comm, timeout
        self.topk_idx: Tensor = routing.topk_idx
        self.topk_weights: Tensor | None = routing.topk_weights

    @collective
    def spread(self, x: Tensor) -> Tensor:
        """Send the tokens to their experts. Returns the rows that came."""
        rows: Tensor = self.routing.dispatch(_plain(x), timeout=self.timeout).x
        return rows

    @collective
    def gather(self, rows: Tensor, weights: Any = None, bias: Sequence[Tensor] = ()) -> Tensor:
        """Send the rows back. Returns each token's weighted sum. ``weights``: "routed", None, or one for each row."""
        if isinstance(weights, Tensor):
            takes(2)
            weights = _plain(weights)
        biases = [_plain(one).contiguous() for one in bias] or None  # the core takes no other
        made: Tensor = self.routing.combine(_plain(rows), weights=weights, bias=biases, timeout=self.timeout)
        return made

    def give_back(self, values: Tensor) -> Tensor:
        """Bring the gradients of the rows' weights back to the tokens. Returns [tokens, k]."""
        if self.routing.layout == "rank":  # each has those of its own experts
            return self.gather(values.masked_fill(self.topk_idx < 0, 0))
        return self.return_each(values)

    @collective
    def back(self, rows: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of the tokens and of their weights, from those of the rows."""
        takes(1 if weights is None else 2)
        return self.gather(rows), None if weights is None else self.give_back(weights)

    @collective
    def return_each(self, values: Tensor) -> Tensor:
        """Send a value of each row to the token for which the row came. Returns [tokens, k]. Layout "expert" only."""
        return torch.from_numpy(self.routing.core.give_back(_plain(values), timeout=self.timeout))


def require_weights(way: HostWay, weights: Tensor) -> None:
    """Require one weight for each row, and the layout "expert". Otherwise raise, and tell the peers."""
    rows, text = way.routing.rows, ""
    if way.routing.layout == "rank":
        text = 'weights are given, but in the layout "rank" a row stands for several experts; multiply by them first'
    elif weights.shape != (rows,):
        text = f"weights has shape {tuple(weights.shape)}, but there are {rows} routed rows"
    if text:
        raise refuse(way.routing.comm, a2a.InvalidArgumentError(text))


def _plain(tensor: Tensor) -> Tensor:
    return inner(tensor.resolve_conj().resolve_neg())
