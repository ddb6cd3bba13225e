"""Rows of tensors on a device: picked and put in order by torch, exchanged by alltoallv. The host counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import a2a
from a2a.adapting import collective, refuse, takes
from a2a.moe import Routing

from .host import HostWay

__all__ = ["DeviceWay"]


class DeviceWay(HostWay):
    """A row crosses for each token and expert in the layout "expert", for each token and rank in the layout "rank".

    Args:
        device: where rows are.
        topk_idx, topk_weights: of this rank's tokens, on the host.
        experts: those of each rank, in the order of their numbers there.
    """

    def __init__(
        self,
        routing: Routing,
        timeout: float | None,
        device: torch.device,
        topk_idx: Tensor,
        topk_weights: Tensor | None,
        experts: list[list[int]],
    ) -> None:
        super().__init__(routing, timeout)
        self.device, self.tokens = device, len(topk_idx)
        self.topk_idx = self.topk_idx.to(device)
        if topk_weights is not None and self.topk_weights is not None:
            self.token_weights, self.topk_weights = topk_weights.to(device), self.topk_weights.to(device)
        ranks, tokens = (column.long() for column in routing.source.unbind(1))
        by_rank = torch.argsort(ranks, stable=True)[int((ranks < 0).sum()) :]
        self.received = torch.bincount(ranks[by_rank], minlength=routing.comm.size)
        self.rows = by_rank.to(device)  # what comes i-th is row rows[i]
        local = routing.topk_idx[by_rank].long() if routing.layout == "expert" else torch.zeros_like(by_rank)
        asked = self._ask(torch.stack([tokens[by_rank], local], 1))
        self.picked = asked[:, 0].to(device)  # what goes i-th is token picked[i]
        self.turns = [turn.to(device) for turn in self._turns(asked, topk_idx, experts)]

    def _ask(self, wanted: Tensor) -> Tensor:
        """Tell every rank which of its tokens come here, and for which experts. Returns what the others ask for."""
        comm = self.routing.comm
        self.sent = torch.empty_like(self.received)
        comm.alltoall(self.received, self.sent, timeout=self.timeout)
        asked = wanted.new_empty(int(self.sent.sum()), 2)
        comm.alltoallv(wanted, self.received.tolist(), asked, self.sent.tolist(), timeout=self.timeout)
        return asked

    def _turns(self, asked: Tensor, topk_idx: Tensor, experts: list[list[int]]) -> list[Tensor]:
        """Divide the rows that come back into turns. In a turn a token has at most one row, so sums have one order."""
        if self.routing.layout == "rank":
            return list(torch.arange(len(asked)).split(self.sent.tolist()))
        parts = asked[:, 1].split(self.sent.tolist())
        chosen = torch.cat(
            [torch.tensor(own, dtype=torch.int64)[part] for own, part in zip(experts, parts, strict=True)]
        )
        places = topk_idx[asked[:, 0]] == chosen.unsqueeze(1)
        return [places[:, k].nonzero().squeeze(1) for k in range(topk_idx.shape[1])]

    def _require(self, name: str, tensor: Tensor, rows: int, of: str) -> None:
        if tensor.device != self.device:
            text = f"{name} is on {tensor.device}, but was dispatched from {self.device}"
            raise refuse(self.routing.comm, a2a.InvalidArgumentError(text))
        if tensor.ndim == 0 or len(tensor) != rows:
            text = f"{name} has shape {tuple(tensor.shape)}, but there are {rows} {of}"
            raise refuse(self.routing.comm, a2a.InvalidArgumentError(text))

    def _require_bias(self, bias: Tensor, rows: Tensor) -> None:
        self._require("bias", bias, self.tokens, "tokens")
        if bias.dtype != rows.dtype or bias.shape[1:] != rows.shape[1:]:
            shape = self.tokens, *rows.shape[1:]
            text = f"bias is {bias.dtype} {tuple(bias.shape)}, but the result is {rows.dtype} {shape}"
            raise refuse(self.routing.comm, a2a.InvalidArgumentError(text))

    @collective
    def spread(self, x: Tensor) -> Tensor:
        self._require("x", x, self.tokens, "tokens")
        values = _words(x.detach())
        arrived = self._exchange(values.index_select(0, self.picked), self.sent, self.received)
        rows = values.new_zeros(self.routing.rows, *x.shape[1:])
        return rows.index_copy_(0, self.rows, arrived).view(x.dtype)

    @collective
    def gather(self, rows: Tensor, weights: Any = None, bias: Sequence[Tensor] = ()) -> Tensor:
        takes(2 if isinstance(weights, Tensor) else 1)
        self._require("rows", rows, self.routing.rows, "routed rows")
        for one in bias:
            self._require_bias(one, rows)
        if not rows.is_floating_point():
            text = f"a weighted sum is not defined for {str(rows.dtype).removeprefix('torch.')}"
            raise refuse(self.routing.comm, a2a.InvalidArgumentError(text))
        given = self.give_back(weights) if isinstance(weights, Tensor) else None
        if isinstance(weights, str):
            given = self.token_weights
        values = _words(rows.detach()).index_select(0, self.rows)
        back = self._exchange(values, self.received, self.sent)
        wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
        total = torch.zeros(self.tokens, *rows.shape[1:], dtype=wide, device=rows.device)
        for k, turn in enumerate(self.turns):
            tokens, part = self.picked[turn], back[turn].view(rows.dtype).to(wide)
            if given is not None:
                part = part * given[tokens, k].view(-1, *[1] * (part.ndim - 1))
            total.index_add_(0, tokens, part)  # no token twice, so in one order
        for one in bias:
            total += one.to(wide)
        return total.to(rows.dtype)

    @collective
    def return_each(self, values: Tensor) -> Tensor:
        self._require("weights", values, self.routing.rows, "routed rows")
        back = self._exchange(values.detach().index_select(0, self.rows), self.received, self.sent)
        given = values.new_zeros(self.tokens, len(self.turns))
        for k, turn in enumerate(self.turns):
            given[self.picked[turn], k] = back[turn]
        return given

    def _exchange(self, rows: Tensor, sent: Tensor, received: Tensor) -> Tensor:
        out = rows.new_empty(int(received.sum()), *rows.shape[1:])
        self.routing.core.alltoallv(rows, sent.tolist(), out, received.tolist(), timeout=self.timeout)
        return out


def _words(tensor: Tensor) -> Tensor:
    """Return the same bits in a dtype that every operation of torch knows: few know float8."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 and tensor.is_floating_point() else tensor
