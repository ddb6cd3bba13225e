"""What ranks do in test_placements.py: experts with replicas, masked, on fewer ranks, and moving."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from moe_ranks import Case, check_routed
from strides_ranks import same

import a2a
from a2a import moe, testing
from a2a._core import host_of_ranks

Array = np.ndarray[Any, Any]
HIDDEN = 6


def random_homes(rng: np.random.Generator, experts: int, ranks: int) -> list[list[int]]:
    return [
        [int(rank) for rank in rng.permutation(ranks)[: rng.integers(1, min(ranks, 4) + 1)]] for _ in range(experts)
    ]


def masked(comm: a2a.Communicator, seeds: list[int]) -> None:
    """Random masks, replicas and placements against the oracle, in both layouts."""
    for seed in seeds:
        case, rank = Case(comm.size, seed, 40), comm.rank
        ep = moe.ExpertParallel(comm, case.experts, case.expert_to_rank)
        active = [int(one) for one in np.flatnonzero(case.rng.random(comm.size) < 0.7)]
        ep.active = active
        assert ep.active == tuple(active)
        expected, what = case.dispatched(comm, active), f"seed {seed}, {case.layout}, active {active}"
        routed = ep.dispatch(case.xs[rank], case.topks[rank], case.weights[rank], layout=case.layout, align=case.align)
        check_routed(routed, expected[rank], what)
        same(routed.dropped, expected[rank].dropped, f"{what}: dropped")
        weighted = case.layout == "expert"
        sums = testing.combine([one.x for one in expected], expected, case.tokens, case.top_k, weighted)[rank]
        same(ep.combine(routed.x, routed, weights="routed" if weighted else None), sums, what)


def expert(rows: Array, number: int) -> Array:
    made: Array = (rows * np.float32(number + 1) + np.float32(0.1 * number)).astype(rows.dtype)
    return made


def of_experts(routed: moe.Routed, numbers: list[int]) -> Array:
    """The results of this rank's experts."""
    assert routed.offsets is not None
    made = np.zeros_like(routed.x)
    for number, begin, end in zip(numbers, routed.offsets[:-1], routed.offsets[1:], strict=True):
        made[begin:end] = expert(routed.x[begin:end], number)
    return made


def dense(x: Array, topk: Array, weights: Array, live: set[int]) -> Array:
    """A loop over tokens and experts in one process. Experts that nobody has count for nothing."""
    out = np.zeros_like(x)
    for token, row in enumerate(x):
        total = None
        for k, number in enumerate(topk[token]):
            if number in live:
                term = weights[token, k] * expert(row, number).astype(np.float32)
                total = term if total is None else total + term
        if total is not None:
            out[token] = total.astype(x.dtype)
    return out


def step(ep: Any, seed: int, tokens: int = 12, top_k: int = 3) -> tuple[moe.Routed, Array]:
    """A step of random tokens, whose sum has the bits of a loop. Returns the routed rows and the choices."""
    rng = np.random.default_rng((seed, ep.comm.rank))
    x = rng.standard_normal((tokens, HIDDEN)).astype(np.float16)
    topk = np.array([rng.permutation(ep.num_experts)[:top_k] for _ in range(tokens)])
    topk[rng.random(topk.shape) < 0.1] = -1
    weights = rng.random(topk.shape, np.float32)
    routed = ep.dispatch(x, topk, weights)
    y = ep.combine(of_experts(routed, ep.local_experts), routed)
    live = {e for e, ranks in enumerate(ep.expert_to_rank) if set(ranks) & set(ep.active)}
    live = live if ep.comm.rank in ep.active else set()
    same(y, dense(x, topk, weights, live), f"seed {seed}, {ep.expert_to_rank}, active {ep.active}")
    lost = [[token, k] for token, k in np.argwhere(topk >= 0) if topk[token, k] not in live]
    assert routed.dropped.tolist() == lost
    return routed, topk


def same_bits_for_any_placement(comm: a2a.Communicator, seeds: list[int]) -> None:
    for seed in seeds:
        rng = np.random.default_rng(seed)
        ep = moe.ExpertParallel(comm, 7, random_homes(rng, 7, comm.size))
        step(ep, seed)
        ep.active = [rank for rank in range(comm.size) if rank != seed % comm.size or comm.size == 1]
        step(ep, seed)


def own_host_first(comm: a2a.Communicator) -> None:
    hosts = host_of_ranks(comm)
    ep = moe.ExpertParallel(comm, comm.size, [list(range(comm.size))] * comm.size)
    tokens = 60
    topk = np.tile(np.arange(comm.size), (tokens, 1))
    routed = ep.dispatch(np.zeros((tokens, 1), np.float32), topk)
    mine = [rank for rank in range(comm.size) if hosts[rank] == hosts[comm.rank]]
    assert {int(rank) for rank in routed.source[:, 0]} == set(mine)
    even = tokens * comm.size  # for each rank of the host, whose ranks all send as many
    assert abs(len(routed.x) - even) <= comm.size * len(mine)
    ep = moe.ExpertParallel(comm, comm.size, replicas=min(2, comm.size))
    for ranks in ep.expert_to_rank:
        assert len({hosts[rank] for rank in ranks}) == min(len(ranks), len(set(hosts)))


def even_load(comm: a2a.Communicator) -> None:
    """A replica gets as many tokens as another, though each sender has one token for an expert."""
    ep = moe.ExpertParallel(comm, 1, [list(range(comm.size))])
    routed = ep.dispatch(np.zeros((1, 1), np.float32), np.zeros((1, 1), np.int64))
    assert routed.counts.tolist() == [1]


def weights_of(experts: list[int], like: str = "numpy") -> list[Any]:
    """Two tensors of each expert, which tell its number."""
    numbers = np.array(experts, np.float32)
    a = (numbers[:, None, None] * 100 + np.arange(6, dtype=np.float32).reshape(2, 3)).astype(ml_dtypes.bfloat16)
    b = numbers * 7
    if like == "torch":
        import torch

        return [torch.from_numpy(a.astype(np.float32)).bfloat16(), torch.from_numpy(b)]
    if like == "jax":
        import jax.numpy as jnp

        return [jnp.asarray(a), jnp.asarray(b)]
    return [a, b]


def check_weights(weights: list[Any], experts: list[int], like: str) -> None:
    for found, right in zip(weights, weights_of(experts, like), strict=True):
        assert type(found) is type(right) and found.dtype == right.dtype and tuple(found.shape) == tuple(right.shape)
        assert bool((found == right).all()), (found, right)


def moving(comm: a2a.Communicator, like: str, seeds: list[int]) -> None:
    """Weights arrive where experts go, while dispatches go on."""
    ep = moe.ExpertParallel(comm, 6, replicas=min(2, comm.size))
    weights = weights_of(ep.local_experts, like)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        homes = random_homes(rng, 6, comm.size)
        if seed % 3 == 0:
            weights = ep.place(homes, weights)
        else:
            before = ep.expert_to_rank
            move = ep.place(homes, weights, async_op=True)
            for more in range(3):
                step(ep, 10 * seed + more)
            assert ep.expert_to_rank == before
            weights = move.finish()
            assert move.done()
            with pytest.raises(a2a.InvalidArgumentError, match="finished before"):
                move.finish()
        assert ep.expert_to_rank == tuple(map(tuple, homes))
        check_weights(weights, ep.local_experts, like)
        step(ep, seed)


def from_active_ranks(comm: a2a.Communicator) -> None:
    """Weights of a rank that takes no part are not taken; it gets those of the others."""
    ep = moe.ExpertParallel(comm, 3, replicas=comm.size)
    weights = weights_of(ep.local_experts)
    ep.active = range(1, comm.size)
    if comm.rank == 0:
        for one in weights:
            one[...] = -1
    weights = ep.place([list(range(comm.size))] * 3, weights)
    check_weights(weights, [0, 1, 2], "numpy")


def fewer_ranks(comm: a2a.Communicator) -> None:
    """Go on with some of the ranks; experts that are lost are dropped until they are loaded."""
    ep = moe.ExpertParallel(comm, 2 * comm.size)
    weights = weights_of(ep.local_experts)
    ranks = list(range(comm.size))[::-1][: comm.size - 1]
    group = comm.group(ranks)
    if group is not None:
        had = ep.local_experts
        ep.connect(group)
        assert ep.local_experts == had and ep.active == tuple(range(group.size))
        assert [ranks for ranks in ep.expert_to_rank[:2]] == [(), ()]  # those of rank 0
        step(ep, 3)
        everywhere = [[expert % group.size] for expert in range(ep.num_experts)]
        with pytest.raises(a2a.Error, match="pass load"):
            ep.place(everywhere, weights)
        loaded = []

        def load(expert: int) -> list[Any]:
            loaded.append(expert)
            return [one[0] for one in weights_of([expert])]

        weights = ep.place(everywhere, weights, load=load)
        check_weights(weights, ep.local_experts, "numpy")
        assert loaded == [expert for expert in (0, 1) if expert % group.size == group.rank]
        routed, _ = step(ep, 4)
        assert len(routed.dropped) == 0
    comm.barrier()


def more_ranks(comm: a2a.Communicator) -> None:
    """A rank that is new joins, has no experts, and gets some."""
    group = comm.group(list(range(comm.size - 1)))
    if group is not None:
        ep = moe.ExpertParallel(group, 4, replicas=1)
        weights = weights_of(ep.local_experts)
        ep.connect(comm)
    else:
        ep = moe.ExpertParallel.join(comm)
        weights = weights_of([])
        assert ep.num_local_experts == 0 and ep.num_experts == 4
    step(ep, 1)
    weights = ep.place([[expert % comm.size, comm.size - 1][: 1 + (expert % comm.size != comm.size - 1)]
                        for expert in range(4)], weights)  # fmt: skip
    check_weights(weights, ep.local_experts, "numpy")
    step(ep, 2)
    with pytest.raises(a2a.InvalidArgumentError, match="every rank joins"):
        moe.ExpertParallel.join(comm)


def refusals(comm: a2a.Communicator) -> list[tuple[str, str]]:
    """What is refused on rank 0 ends the call of all ranks, and nothing else. Returns (kind, text) of each."""
    ep = moe.ExpertParallel(comm, 4, [0, 0, 0, 0])
    weights = [np.zeros((ep.num_local_experts, 3), np.float32)]
    there = [[comm.size - 1]] * 4
    wrong: list[tuple[Any, ...]] = [
        ([0, 0, 0], weights),
        ([0, 0, 0, comm.size], weights),
        ([0, 0, 0, []], weights),
        ([0, 0, 0, [0, 0]], weights),
        (there, [np.zeros((3, 3), np.float32)]),
        (there, [np.zeros((4, 6), np.float32)[:, ::2]]),
        (there, [np.zeros((4, 3), np.float64)]),
        (there, [np.zeros((4, 2), np.float32)]),
        (there, [*weights, *weights]),
        ([[0]] * 4, weights),
    ]
    ended = []
    for given in wrong:
        with pytest.raises(a2a.Error) as caught:
            ep.place(*(given if comm.rank == 0 else (there, weights)))
        ended.append((type(caught.value).__name__, str(caught.value)))
        assert ep.expert_to_rank == ((0,),) * 4
        step(ep, 0)
    with pytest.raises(a2a.Error) as caught:
        if comm.rank == 0:
            ep.active = [comm.size]
        else:
            step(ep, 0)
    ended.append((type(caught.value).__name__, str(caught.value)))
    ep.active = [0] if comm.rank == 0 else range(comm.size)
    with pytest.raises(a2a.MismatchError, match="placement of experts"):
        step(ep, 0)
    return ended
