"""The step of ``a2a demo`` as programs write it for torch.distributed, on Gloo, and the same by a2a.moe."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from .. import moe
from .._core import Communicator
from ._demo_rank import Expected, Job

_ROUNDS = 3


def run_rank(comm: Communicator, job: Job, store: str) -> tuple[float, float]:
    """Return the seconds of a dispatch and combine: by a2a.moe, and on Gloo. Ranks meet for Gloo in the file
    ``store``."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=comm.rank, world_size=comm.size)
    expected = Expected(job, 0)
    x = torch.from_numpy(expected.tokens(comm.rank).view("i2" if job.layer.dtype == "bfloat16" else "i4"))
    x = x.view(getattr(torch, job.layer.dtype))
    choice = torch.from_numpy(expected.choice[comm.rank]).long()
    weights = torch.from_numpy(expected.weights[comm.rank])
    ep = moe.ExpertParallel(comm, job.layer.experts)

    def ours() -> Any:
        routed = ep.dispatch(x, choice, weights)
        return ep.combine(routed.x, routed)

    def theirs() -> Any:
        return _on_gloo(torch, x, choice, weights, job.layer.experts, comm.size)

    difference = (ours().float() - theirs().float()).abs().max()
    if difference > 0.05 * ours().float().abs().max():
        raise AssertionError(f"the two steps differ by {difference}")
    times = _seconds(comm, ours), _seconds(comm, theirs)
    torch.distributed.destroy_process_group()
    return times


def _seconds(comm: Communicator, step: Callable[[], Any]) -> float:
    rounds = []
    for _ in range(_ROUNDS):
        comm.barrier()
        started = time.perf_counter()
        step()
        rounds.append(time.perf_counter() - started)
    return median(rounds)


def _on_gloo(torch: Any, x: Any, choice: Any, weights: Any, experts: int, ranks: int) -> Any:
    """Run counts, exchange of counts, permutation, exchange, and the inverse of all. The experts do nothing."""
    top_k, all_to_all = choice.shape[1], torch.distributed.all_to_all_single
    order = torch.argsort(choice.flatten(), stable=True)
    counts = torch.bincount(choice.flatten(), minlength=experts)
    there = torch.empty_like(counts)
    all_to_all(there, counts)
    sends, recvs = (each.view(ranks, -1).sum(1).tolist() for each in (counts, there))
    rows = x.index_select(0, order // top_k)
    arrived = x.new_empty(sum(recvs), x.shape[1])
    all_to_all(arrived, rows, recvs, sends)
    by_expert = torch.argsort(torch.arange(experts // ranks).repeat(ranks).repeat_interleave(there), stable=True)
    worked = arrived.index_select(0, by_expert)
    arrived[by_expert] = worked
    all_to_all(rows, arrived, sends, recvs)
    weighted = rows.float() * weights.flatten()[order].unsqueeze(1)
    return torch.zeros(x.shape).index_add_(0, order // top_k, weighted).to(x.dtype)
