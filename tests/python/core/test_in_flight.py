"""Several operations in flight on ranks of one host: they end, and those that share a tensor run in their order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from in_flight_ranks import rounds, three_in_flight
from rank_pool import Pool
from sample import examples, with_full

POOLS = [Pool(2), Pool(3), Pool(2, threads=True), *with_full([Pool(1), Pool(4), Pool(5, threads=True)])]


@pytest.fixture(scope="module", params=POOLS, ids=repr)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with request.param as made:
        yield made


@pytest.mark.parametrize("shared", [False, True], ids=["own tensors", "shared tensors"])
def test_random_operations(pool: Pool, shared: bool) -> None:
    pool.run(rounds, list(range(examples(120))), shared)


def test_small_operations_behind_a_large_one(pool: Pool) -> None:
    if pool.n == 2:
        pool.run(three_in_flight, 20)
