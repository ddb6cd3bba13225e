"""The calls of several operations that test_interrupts.py interrupts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import interrupts
import numpy as np

import a2a
from a2a import moe
from a2a.sharding import Partial, Replicate, Shard, Sharding

Make = Callable[[a2a.Communicator], Callable[[], Any]]


def _routed(comm: a2a.Communicator) -> tuple[moe.ExpertParallel, Any, Any, Any]:
    tokens = np.ones((8, 4), np.float32)
    choices = np.arange(16).reshape(8, 2) % (2 * comm.size)
    return moe.ExpertParallel(comm, 2 * comm.size), tokens, choices, np.ones((8, 2), np.float32)


def _dispatch(comm: a2a.Communicator) -> Callable[[], Any]:
    experts, tokens, choices, weights = _routed(comm)
    return lambda: experts.dispatch(tokens, choices, weights)


def _again(comm: a2a.Communicator) -> Callable[[], Any]:
    experts, tokens, choices, _ = _routed(comm)
    routing = experts.plan(choices)
    return lambda: experts.dispatch(tokens, routing=routing)


def _combine(comm: a2a.Communicator) -> Callable[[], Any]:
    experts, tokens, choices, _ = _routed(comm)
    routed = experts.dispatch(tokens, choices)
    rows, given = routed.x, np.ones(len(routed.x), np.float32)
    return lambda: experts.combine(rows, routed, weights=given)


def _place(comm: a2a.Communicator) -> Callable[[], Any]:
    """Weights move to where they are: whether a rank was interrupted before or after the end makes no difference."""
    experts = moe.ExpertParallel(comm, 2 * comm.size, replicas=min(2, comm.size))
    weights = [np.ones((experts.num_local_experts, 5), np.float32), np.zeros(experts.num_local_experts)]
    homes = experts.expert_to_rank
    return lambda: experts.place(homes, weights)


def _quantized(comm: a2a.Communicator) -> Callable[[], Any]:
    x = np.ones(500, np.int8)
    return lambda: a2a.quantized_all_reduce(comm, x, 0.5)


def _blocks(comm: a2a.Communicator) -> Callable[[], Any]:
    x = np.ones(500, np.float32)
    return lambda: a2a.block_quantized_all_reduce(comm, x)


def _exchange(comm: a2a.Communicator) -> Callable[[], Any]:
    x, counts = np.ones(4 * comm.size), [4] * comm.size
    return lambda: comm.exchange(x, counts)


def _reshard(comm: a2a.Communicator) -> Callable[[], Any]:
    """Two operations: one copies, one folds."""
    ranks = range(comm.size)
    rows, everything = Sharding(ranks, Shard(0)), Sharding(ranks, Replicate())
    tensors = [((2 * comm.size, 3), rows, everything), ((5,), Sharding(ranks, Partial()), everything)]
    plan = comm.plan_reshard_all([(*one, "float32") for one in tensors])
    sends = [np.ones((2, 3), np.float32), np.ones(5, np.float32)]
    recvs = [np.empty((2 * comm.size, 3), np.float32), np.empty(5, np.float32)]
    return lambda: plan.run(sends, recvs)


# Each makes the call before anything can interrupt it.
CORE: dict[str, Make] = {
    "quantized": _quantized,
    "blocks": _blocks,
    "dispatch": _dispatch,
    "dispatch again": _again,
    "place": _place,
    "combine": _combine,
    "exchange": _exchange,
    "reshard": _reshard,
}
BRIEF = {"exchange", "reshard"}
"""They have no Python code of the package between their operations, and are over too soon."""


def core(comm: a2a.Communicator, name: str, opcodes: bool) -> int:
    """Interrupt a call of the core at every step. Returns the number of steps."""
    return interrupts.at_every_step(comm, CORE[name](comm), opcodes)


def core_at_random(comm: a2a.Communicator, name: str, trials: int) -> int:
    return interrupts.at_random_times(comm, CORE[name], trials, seed=len(name))
