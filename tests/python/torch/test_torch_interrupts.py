"""A signal handler that raises inside a call of ``a2a.torch`` that has several operations: the peers raise
MismatchError at once, and the ranks stay in step. See interrupts.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import interrupts
import pytest
from rank_pool import Pool
from sample import with_full

import a2a

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(110)


@pytest.fixture(scope="module")
def two() -> Iterator[Pool]:
    with Pool(2) as pool:
        yield pool


def inputs(comm: a2a.Communicator) -> tuple[Any, Any, Any]:
    return torch.ones(4, 512), torch.arange(8).view(4, 2) % 4, torch.ones(4, 2)


def moe(comm: a2a.Communicator) -> dict[str, Callable[[], Any]]:
    from a2a.torch.moe import ExpertParallel

    x, choices, weights = inputs(comm)
    own, given = x.clone().requires_grad_(), weights.clone().requires_grad_()
    experts = ExpertParallel(comm, 4)
    routed = experts.dispatch(own, choices, given)
    rows, factors = routed.x.detach(), torch.ones(len(routed.x))
    y = experts.combine(routed.x, routed)
    sums = routed.x.sum() + routed.topk_weights.sum()
    # The public functions are plain ones, which torch.compile reads: the call begins in these.
    return {
        "dispatch": lambda: experts._dispatch(x, choices, weights, "expert", 1, None, None),
        "dispatch again": lambda: experts._dispatch(x, None, None, "expert", 1, routed, None),
        "combine": lambda: experts._combine(rows, routed, factors, None),
        "back of dispatch": lambda: torch.autograd.grad(sums, (own, given), retain_graph=True),
        "back of combine": lambda: torch.autograd.grad(y, routed.x, rows[:4], retain_graph=True),
    }


def deep_ep(comm: a2a.Communicator) -> dict[str, Callable[[], Any]]:
    from a2a.torch.deep_ep import Buffer, ElasticBuffer

    x, choices, weights = inputs(comm)
    buffer, elastic = Buffer(comm), ElasticBuffer(comm, num_max_tokens_per_rank=4)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(choices, 4)
    layout = {"num_tokens_per_rank": per_rank, "is_token_in_rank": in_rank, "num_tokens_per_expert": per_expert}
    rows, _, sums, _, handle, _ = buffer.dispatch(x, topk_idx=choices, topk_weights=weights, **layout)
    low = x.bfloat16()
    room, _, low_handle, _, _ = buffer.low_latency_dispatch(low, choices, 4, 4, use_fp8=False)
    expanded, _, each, expanded_handle, _ = elastic.dispatch(x, choices, weights, num_experts=4, do_expand=True)
    return {
        "dispatch": lambda: buffer.dispatch(x, topk_idx=choices, topk_weights=weights, **layout),
        "dispatch to ranks": lambda: buffer.dispatch(x, **layout),
        "dispatch again": lambda: buffer.dispatch(x, handle=handle),
        "combine": lambda: buffer.combine(rows, handle, sums, async_finish=True)[2].current_stream_wait(),
        "low latency dispatch": lambda: buffer.low_latency_dispatch(low, choices, 4, 4),
        "low latency combine": lambda: buffer.low_latency_combine(room, choices, weights, low_handle),
        "elastic dispatch": lambda: elastic.dispatch(x, choices, weights, num_experts=4, do_expand=True),
        "elastic dispatch again": lambda: elastic.dispatch(
            x, topk_weights=weights, handle=expanded_handle, do_expand=True
        ),
        "elastic combine": lambda: elastic.combine(expanded, expanded_handle, each),
    }


def sparse(comm: a2a.Communicator) -> dict[str, Callable[[], Any]]:
    from a2a.torch._operations import sparse as sparse_operations

    tensor = torch.eye(4).to_sparse()
    op = torch.distributed.ReduceOp.SUM
    return {"all_reduce": lambda: sparse_operations.all_reduce(comm, tensor, op, False, None)}


def state_dict(comm: a2a.Communicator) -> dict[str, Callable[[], Any]]:
    from a2a.torch import reshard_state_dict
    from a2a.torch._process_group.collective import _run_on  # the call begins here

    inner: Any = reshard_state_dict.__wrapped__.__wrapped__  # type: ignore[attr-defined]
    src, dst = {"weight": torch.ones(4), "bias": torch.ones(2)}, {"bias": torch.zeros(2), "weight": torch.zeros(4)}
    return {"reshard_state_dict": lambda: _run_on(comm, inner, (src, dst, comm), {})}


def at_every_step(comm: a2a.Communicator, make: Callable[..., Any], device: bool, opcodes: bool) -> dict[str, int]:
    from a2a.torch._experts.placement import Placement

    torch.set_num_threads(1)
    torch.set_grad_enabled(True)  # an interrupt between two instructions of no_grad() leaves it off
    before = Placement.on_host
    if device:
        Placement.on_host = staticmethod(lambda x: False)
    try:
        # Every call once before, because the first one imports and fills caches.
        calls = make(comm)
        for call in calls.values():
            call()
        return {name: interrupts.at_every_step(comm, call, opcodes) for name, call in calls.items()}
    finally:
        Placement.on_host = staticmethod(before)


@pytest.mark.parametrize(
    "make,device", [(moe, False), (deep_ep, False), (moe, True), (deep_ep, True), (sparse, False), (state_dict, False)]
)
@pytest.mark.parametrize("opcodes", [False, *with_full([True])])
def test_at_every_step(two: Pool, make: Callable[..., Any], device: bool, opcodes: bool) -> None:
    steps = two.run(at_every_step, make, device, opcodes)
    assert min(steps[1].values()) > 1, steps
