"""a2a.moe against the oracle: tokens to experts and back, for every layout, dtype, placement and transport. What the
ranks do is in moe_ranks.py."""

from __future__ import annotations

from collections.abc import Iterator

import moe_ranks as ranks
import numpy as np
import pytest
from mpi import INSTALLED
from rank_pool import Pool
from sample import with_full

import a2a
from a2a import frameworks, moe

pytestmark = pytest.mark.timeout(110)

POOLS = [
    *(Pool(n) for n in (1, 3, 8)),
    *with_full([Pool(2), Pool(2, threads=True), Pool(2, hosts="a,b")]),
    Pool(5, threads=True),
    Pool(5, hosts="a,b,a,c,b"),
    *(Pool(3, hosts="a,b,a", mpi=mpi) for mpi in INSTALLED),
]


@pytest.fixture(scope="module", params=POOLS, ids=repr)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with request.param as pool:
        yield pool


def test_random_cases(pool: Pool) -> None:
    few = pool.n == 8 or bool(pool.hosts)
    pool.run(ranks.cases, list(range(12 if few else 40)), 200)
    pool.run(ranks.cases, list(range(100, 104 if few else 110)), 8000)


def test_quantised_tokens(pool: Pool) -> None:
    pool.run(ranks.scales)


def test_routings_have_an_identity(pool: Pool) -> None:
    pool.run(ranks.routings)


def test_what_ranks_have_alike(pool: Pool) -> None:
    pool.run(ranks.what_each_rank_has_alike)


def test_a_routing_of_another_communicator(pool: Pool) -> None:
    pool.run(ranks.of_another_communicator)


def test_a_placement_that_one_rank_refuses(pool: Pool) -> None:
    pool.run(ranks.placements)


@pytest.mark.parametrize("path", ["default", "direct", "staged"])
def test_rows_from_peers_in_turn(pool: Pool, path: str) -> None:
    if pool.hosts and path != "default":
        pytest.skip("the paths are those of shared memory")
    if pool.n >= 3:
        pool.run(ranks.cycle, path, 300, 1024)


@pytest.mark.parametrize("path", ["default", "direct", "staged"])
def test_large_rows(pool: Pool, path: str) -> None:
    if pool.hosts and path != "default":
        pytest.skip("the paths are those of shared memory")
    pool.run(ranks.large, path, 20, 7168)


@pytest.mark.parametrize("threads", [False, True])
def test_edges(threads: bool) -> None:
    for n in (1, 7):
        with Pool(n, threads=threads) as pool:
            pool.run(ranks.edges)


def test_experts_as_their_tokens_come(pool: Pool) -> None:
    pool.run(ranks.as_they_come)


def test_refusals(pool: Pool) -> None:
    for rank, ended in enumerate(pool.run(ranks.refusals)):
        for text, kind, said in ended:
            if pool.n == 1 and text in ranks.UNLIKE:
                continue
            if text in ranks.UNLIKE:
                assert kind == "MismatchError", (text, kind, said)
                assert "rank 0" in said, (text, said)
            elif rank == 0:
                assert kind in ("InvalidArgumentError", "TypeError"), (text, kind, said)
            else:
                assert kind == "MismatchError", (text, kind, said)
                assert "rank 0" in said, (text, said)


def test_mixed_frameworks() -> None:
    with Pool(4) as pool:
        pool.run(ranks.mixed, frameworks.installed("host"))


@pytest.mark.parametrize(
    ("experts", "placement", "said"),
    [
        (3, None, "cannot share equally"),
        (2, [0], "1 entries for 2 experts"),
        (2, [0, 2], "rank 2, but the group has size 2"),
        (2, [0, []], "has no rank"),
        (2, [0, [1, 1]], "rank 1 twice"),
        (2, [0, "x"], "expert_to_rank"),
    ],
)
def test_placements_that_are_none(experts: int, placement: object, said: str) -> None:
    def rank(comm: a2a.Communicator) -> None:
        with pytest.raises(a2a.InvalidArgumentError, match=said):
            moe.ExpertParallel(comm, experts, placement)  # type: ignore[arg-type]

    a2a.spawn(rank, 2, threads=True)


def test_same_bits_on_any_number_of_ranks() -> None:
    """And as in one process."""
    rng = np.random.default_rng(3)
    x, topk = rng.standard_normal((64, 33)).astype(np.float16), np.array([rng.permutation(8)[:4] for _ in range(64)])
    weights = rng.random((64, 4), np.float32)

    def rank(comm: a2a.Communicator) -> np.ndarray:
        part = slice(64 // comm.size * comm.rank, 64 // comm.size * (comm.rank + 1))
        ep = moe.ExpertParallel(comm, 8)
        routed = ep.dispatch(x[part], topk[part], weights[part])
        scale = (routed.topk_idx + 1 + 8 // comm.size * comm.rank).astype(np.float16)
        return np.asarray(ep.combine(routed.x * scale[:, None], routed))

    alone = np.concatenate(a2a.spawn(rank, 1, threads=True))
    for n in (2, 4, 8):
        assert (np.concatenate(a2a.spawn(rank, n, threads=True)) == alone).all()
