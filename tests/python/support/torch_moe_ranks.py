"""A step of a mixture of experts in one process, and what every rank has of it: the tests of ``a2a.torch.moe`` and
``a2a.torch.deep_ep`` compare with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

HIDDEN = 6


@dataclass
class Step:
    """What one rank has: its tokens, their choices, and the gradient of its result."""

    x: Any
    topk_idx: Any
    topk_weights: Any
    grad: Any


def step(rank: int, size: int, k: int, experts: int, dtype: Any, seed: int, hidden: int = HIDDEN) -> Step:
    """That of a rank, the same in every process. One rank has no tokens; some choices are none. Weights are eighths, so
    that a product with one rounds alike in any precision."""
    random = torch.Generator().manual_seed(1000 * seed + rank)
    tokens = 0 if size > 1 and rank == seed % size else int(torch.randint(1, 12, (), generator=random))
    x = torch.randn(tokens, hidden, generator=random).to(dtype)
    choices = [torch.randperm(experts, generator=random)[:k] for _ in range(tokens)]
    topk_idx = torch.stack(choices) if choices else torch.zeros(0, k, dtype=torch.int64)
    topk_idx[torch.rand(topk_idx.shape, generator=random) < 0.15] = -1
    weights = torch.randint(1, 9, topk_idx.shape, generator=random).float() / 8
    return Step(x, topk_idx, weights, torch.randn(x.shape, generator=random).to(dtype))


def expert(x: Any, number: int) -> Any:
    """What expert ``number`` makes of rows, each for itself."""
    return torch.tanh(x * (1 + number / 4))


def loop(x: Any, topk_idx: Any, topk_weights: Any) -> Any:
    """The result of a loop over tokens and their experts, which sums in float32 at least and rounds once."""
    wide = torch.promote_types(x.dtype, torch.float32)
    results = [x[:0] + (0 * topk_weights.sum()).to(x.dtype)]  # of no tokens a result, too
    for token, experts, weights in zip(x, topk_idx.tolist(), topk_weights, strict=True):
        total = torch.zeros(x.shape[1:], dtype=wide) + 0 * token.to(wide)
        for number, weight in zip(experts, weights, strict=True):
            if number >= 0:
                total = total + weight * expert(token, number).to(wide)
        results.append(total.to(x.dtype).unsqueeze(0))
    return torch.cat(results)
