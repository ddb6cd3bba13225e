"""``a2a.torch.moe`` with replicas, masked ranks and experts that move: values and gradients against a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from placement_ranks import random_homes
from rank_pool import Pool
from torch_worlds import group

import a2a

torch = pytest.importorskip("torch")

from test_torch_moe import forward_and_back, results  # noqa: E402
from torch_moe_ranks import HIDDEN, loop, step  # noqa: E402

pytestmark = pytest.mark.timeout(110)

EXPERTS, SIZE = 6, 3


def on_device(ep: Any, device: bool) -> Any:
    if device:
        ep.home.on_host = lambda x: False
    return ep


def live_choices(ep: Any, topk_idx: Any) -> Any:
    """The choices, with -1 for experts that no active rank has, and for all on a rank that takes no part."""
    homes, active = ep.expert_to_rank, set(ep.active)
    live = [e for e in range(ep.num_experts) if set(homes[e]) & active and ep.comm.rank in active]
    return torch.where(torch.isin(topk_idx, torch.tensor(live, dtype=topk_idx.dtype)), topk_idx, -1)


def check(ep: Any, seed: int, layout: str, align: int, experts: int = EXPERTS) -> None:
    own = step(ep.comm.rank, ep.comm.size, 3, experts, torch.float32, seed)
    choices = live_choices(ep, own.topk_idx)
    x, weights = own.x.clone().requires_grad_(), own.topk_weights.clone().requires_grad_()
    want = loop(x, choices, weights)
    want.backward(own.grad)
    y, x_grad, weights_grad = forward_and_back(ep, own, ep.local_experts, layout, align)
    assert layout == "rank" or torch.equal(y, want)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(x_grad, x.grad)
    torch.testing.assert_close(weights_grad, weights.grad)
    routed = ep.dispatch(own.x, own.topk_idx)
    assert np.array_equal(routed.dropped, ((own.topk_idx >= 0) & (choices < 0)).nonzero().numpy())
    ep.combine(results(ep, routed, ep.local_experts), routed)


def masked(comm: a2a.Communicator, way: str, device: bool, seeds: list[int]) -> None:
    from a2a.torch.moe import ExpertParallel

    at = group(comm, way, SIZE)
    if comm.rank >= SIZE:
        return
    for seed in seeds:
        rng = np.random.default_rng(seed)
        layout = "rank" if seed % 3 == 2 and not device else "expert"
        ep = on_device(ExpertParallel(at, EXPERTS, random_homes(rng, EXPERTS, SIZE)), device)
        check(ep, seed, layout, 1)
        ep.active = [int(rank) for rank in np.flatnonzero(rng.random(SIZE) < 0.7)]
        check(on_device(ep, device), seed, layout, 4 if layout == "expert" else 1)
        ep.active = range(SIZE)
        weights = [torch.tensor(ep.local_experts, dtype=torch.bfloat16), torch.zeros(len(ep.local_experts), HIDDEN)]
        move = ep.place(random_homes(rng, EXPERTS, SIZE), weights, async_op=True)
        check(on_device(ep, device), seed + 100, layout, 1)
        numbers, zeros = move.finish()
        assert numbers.dtype == torch.bfloat16 and numbers.tolist() == ep.local_experts
        assert zeros.shape == (len(ep.local_experts), HIDDEN)
        check(on_device(ep, device), seed + 200, layout, 1)


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("way", ["communicator", "backend"])
def test_masks_replicas_and_moves(ranks: Pool, way: str, device: bool) -> None:
    ranks.run(masked, way, device, list(range(6)))


def compiled(comm: a2a.Communicator) -> None:
    """A graph that was compiled for one placement is compiled anew for the next."""
    from a2a.torch.moe import ExpertParallel

    at = group(comm, "communicator", 2)
    if comm.rank >= 2:
        return
    ep = ExpertParallel(at, 4)

    @torch.compile(backend="eager")
    def forward(x: Any, topk_idx: Any) -> Any:
        routed = ep.dispatch(x, topk_idx)
        return ep.combine(routed.x * 2, routed)

    x, topk_idx = torch.ones(4, 3), torch.arange(4).unsqueeze(1)
    assert torch.equal(forward(x, topk_idx), 2 * x)
    ep.active = [0]
    want = 2 * x if comm.rank == 0 else 0 * x
    want[2:] = 0
    assert torch.equal(forward(x, topk_idx), want)
    ep.active = [0, 1]
    ep.place([[0, 1], 1, 0, 0])
    assert torch.equal(forward(x, topk_idx), 2 * x)


def test_compiled_graphs_follow(ranks: Pool) -> None:
    ranks.run(compiled)


def fewer_and_more(comm: a2a.Communicator) -> None:
    """One rank leaves with its experts, then comes back without any, and gets some."""
    from a2a.torch.moe import ExpertParallel

    ep = ExpertParallel(comm, 2 * comm.size)
    group = comm.group(range(comm.size - 1))
    if group is not None:
        ep.connect(group)
        assert ep.comm is group and ep.expert_to_rank[-2:] == ((), ())
        check(ep, 1, "expert", 1, 2 * comm.size)
        ep.connect(comm)
    else:
        ep = ExpertParallel.join(comm)
        assert ep.num_local_experts == 0 and ep.num_experts == 2 * comm.size
    weights = [torch.tensor(ep.local_experts, dtype=torch.float32)]
    homes = [[expert % comm.size] for expert in range(2 * comm.size)]
    (numbers,) = ep.place(homes, weights, load=lambda expert: [torch.tensor(float(expert))])
    assert numbers.tolist() == ep.local_experts
    check(ep, 2, "expert", 1, 2 * comm.size)


def test_fewer_ranks_and_more(ranks: Pool) -> None:
    ranks.run(fewer_and_more)
