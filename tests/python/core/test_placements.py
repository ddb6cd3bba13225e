"""Experts with replicas, on ranks of which some take no part, and experts that move: ``ep.active``, ``ep.place()``,
``ep.connect()``. What the ranks do is in placement_ranks.py."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import placement_ranks as ranks
import pytest
from rank_pool import Pool
from sample import with_full

import a2a
from a2a import moe
from a2a._balance import busiest, smallest, with_replicas

pytestmark = pytest.mark.timeout(110)

POOLS = [Pool(3), Pool(4, threads=True), Pool(5, hosts="a,b,a,c,b"), *with_full([Pool(2), Pool(8)])]


@pytest.fixture(scope="module", params=POOLS, ids=repr)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with request.param as pool:
        yield pool


def test_random_masks_and_placements(pool: Pool) -> None:
    pool.run(ranks.masked, list(range(15)))


def test_the_same_bits_for_any_placement(pool: Pool) -> None:
    pool.run(ranks.same_bits_for_any_placement, list(range(8)))


def test_own_host_first_then_even_load(pool: Pool) -> None:
    pool.run(ranks.own_host_first)
    if not pool.hosts:
        pool.run(ranks.even_load)


@pytest.mark.parametrize("like", ["numpy", "torch", "jax"])
def test_experts_move_while_dispatches_go_on(pool: Pool, like: str) -> None:
    pytest.importorskip(like)
    pool.run(ranks.moving, like, list(range(6)))


def test_weights_come_from_ranks_that_take_part(pool: Pool) -> None:
    pool.run(ranks.from_active_ranks)


def test_fewer_ranks_and_more(pool: Pool) -> None:
    pool.run(ranks.fewer_ranks)
    pool.run(ranks.more_ranks)


def test_refusals(pool: Pool) -> None:
    for rank, ended in enumerate(pool.run(ranks.refusals)):
        for kind, text in ended:
            if rank == 0:
                assert kind in ("InvalidArgumentError", "MismatchError"), (kind, text)
            else:
                assert kind == "MismatchError" and "rank 0" in text, (kind, text)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"replicas": 0}, "replicas of expert 0 is 0"),
        ({"replicas": 3}, "pass 1 to 2"),
        ({"replicas": [1, 1]}, "2 entries for 4 experts"),
        ({"replicas": [1, 1, 1, True]}, "replicas of expert 3"),
        ({"replicas": 1, "expert_to_rank": [0, 0, 0, 0]}, "both expert_to_rank and replicas"),
    ],
)
def test_replicas_that_are_none(options: dict[str, object], said: str) -> None:
    def rank(comm: a2a.Communicator) -> None:
        with pytest.raises(a2a.InvalidArgumentError, match=said):
            moe.ExpertParallel(comm, 4, **options)  # type: ignore[arg-type]

    a2a.spawn(rank, 2, threads=True)


def test_replicas_are_spread() -> None:
    assert with_replicas(4, [0, 0, 1, 1], 1) == [[0], [1], [2], [3]]
    for hosts, experts, replicas in (([0] * 8, 16, 3), ([0, 0, 1, 1, 2, 2], 12, [1, 2, 3] * 4), ([0, 1, 0], 5, 2)):
        homes = with_replicas(experts, hosts, replicas)
        used = np.bincount([rank for own in homes for rank in own], minlength=len(hosts))
        assert len(set(hosts)) == 2 or max(used) - min(used) <= 2, (hosts, homes)
        counts = [replicas] * experts if isinstance(replicas, int) else replicas
        for own, count in zip(homes, counts, strict=True):
            assert len(set(own)) == count
            assert len({hosts[rank] for rank in own}) == min(count, len(set(hosts)))


def test_balanced_placements_against_the_best() -> None:
    rng = np.random.default_rng(7)
    for case in range(300):
        experts, size = int(rng.integers(1, 6)), int(rng.integers(1, 4))
        slots = -(-experts // size) + int(rng.integers(0, 2))
        loads = np.round(rng.pareto(rng.choice([0.5, 1, 3]), experts) * 10 + rng.integers(0, 3), 2)
        if case % 3 == 0:
            loads = rng.integers(0, 10, experts).astype(float)
        homes = moe.balanced_placement(loads, size, slots)
        assert all(own and len(own) == len(set(own)) for own in homes)
        assert max(np.bincount([rank for own in homes for rank in own])) <= slots
        best = smallest(loads.tolist(), size, slots)
        assert busiest(loads, homes, size) <= 1.1 * best + 1e-9, (loads.tolist(), size, slots, homes, best)


def test_balanced_placements_of_many_experts() -> None:
    loads = np.random.default_rng(1).zipf(1.5, (3, 128)).clip(0, 3000).astype(float)
    homes = moe.balanced_placement(loads, 16, 10)
    assert homes == moe.balanced_placement(loads.sum(0), 16, 10)
    assert busiest(loads.sum(0), homes, 16) <= 1.1 * max(loads.sum() / 16, loads.sum(0).max() / 16)


@pytest.mark.parametrize(
    ("loads", "size", "slots", "said"),
    [
        ([1.0, -1.0], 2, None, "negative"),
        ([1.0, float("nan")], 2, None, "no number"),
        ([1.0] * 5, 2, 2, "2 ranks of 2 slots cannot have 5 experts"),
        ([1.0], 0, None, "ranks is 0"),
    ],
)
def test_loads_that_cannot_be_placed(loads: list[float], size: int, slots: int | None, said: str) -> None:
    with pytest.raises(a2a.InvalidArgumentError, match=said):
        moe.balanced_placement(loads, size, slots)
