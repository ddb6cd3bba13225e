"""Several operations in flight on ranks of several hosts: they end, and those that share a tensor run in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from in_flight_ranks import edges, held_and_from_any, rounds, starts_that_do_not_wait
from mpi import INSTALLED
from rank_pool import Pool
from sample import examples, with_full

pytestmark = pytest.mark.timeout(200)

POOLS = [Pool(3, hosts="a,b,a"), *(Pool(2, hosts="a,b", mpi=mpi) for mpi in INSTALLED)]
POOLS += with_full(Pool(hosts.count(",") + 1, hosts=hosts) for hosts in ("a,b", "a,a,b,b"))
POOLS += with_full(Pool(4, hosts="a,b,b,a", mpi=mpi) for mpi in INSTALLED)


@pytest.fixture(scope="module", params=POOLS, ids=repr)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with request.param as made:
        yield made


@pytest.mark.parametrize("shared", [False, True], ids=["own tensors", "shared tensors"])
def test_random_operations(pool: Pool, shared: bool) -> None:
    pool.run(rounds, list(range(examples(60))), shared)


def test_messages_and_starts(pool: Pool) -> None:
    pool.run(edges)
    pool.run(starts_that_do_not_wait)
    if pool.n == 3:
        pool.run(held_and_from_any)
