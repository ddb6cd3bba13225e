"""What ranks do in tests/gpu/test_moe.py: a2a.torch.moe with CUDA tensors beside the same on the host."""

from __future__ import annotations

from typing import Any

import gpu_ranks
import torch
from a2a.torch import moe

import a2a


def experts(comm: a2a.Communicator, layout: str, align: int) -> None:
    """The same rows, sums and gradients."""
    gpu_ranks.place(comm, "torch")
    torch.manual_seed(comm.rank)
    ep = moe.ExpertParallel(comm, 4 * comm.size)
    tokens = 5 * comm.rank  # rank 0 has none
    x = torch.randn(tokens, 48)
    choice = torch.rand(tokens, 4 * comm.size).argsort(1)[:, :3]
    choice[::4, 0] = -1
    weights = torch.rand(tokens, 3)
    made = [step(ep, layout, align, x, choice, weights, device) for device in ("cpu", "cuda")]
    for here, there in zip(*made, strict=True):
        assert there.device.type == "cuda"
        torch.testing.assert_close(there.cpu(), here, rtol=1e-5, atol=1e-5)


def step(
    ep: moe.ExpertParallel, layout: Any, align: int, x: Any, choice: Any, weights: Any, device: str
) -> list[torch.Tensor]:
    x = x.to(device).requires_grad_()
    weights = weights.to(device).requires_grad_()
    routed = ep.dispatch(x, choice.to(device), weights, layout=layout, align=align)
    y = ep.combine(routed.x * 2, routed)
    (y * torch.arange(48, device=device)).sum().backward()
    given = [weights.grad] if layout == "expert" and weights.grad is not None else []
    return [routed.x.detach(), y.detach(), x.grad, *given]
