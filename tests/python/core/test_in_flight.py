"""Several operations in flight on ranks of one host: they end, and those that share a tensor run in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from in_flight_ranks import (
    edges,
    held_and_from_any,
    many_on_one_tensor,
    read_by_calls,
    rounds,
    starts_that_do_not_wait,
    three_in_flight,
    views_of_what_arrives,
)
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


def test_columns_are_apart(pool: Pool) -> None:
    if pool.n > 1:
        pool.run(edges)


def test_a_start_does_not_wait(pool: Pool) -> None:
    pool.run(starts_that_do_not_wait)


def test_views(pool: Pool) -> None:
    if pool.n > 1:
        pool.run(views_of_what_arrives)


def test_a_receive_that_waits_for_its_memory_keeps_its_turn(pool: Pool) -> None:
    if pool.n == 3:
        pool.run(held_and_from_any)


def test_calls_that_read_tensors_themselves(pool: Pool) -> None:
    pool.run(read_by_calls)


def test_many_operations_on_one_tensor_end(run_ranks: Callable[..., Any]) -> None:
    run_ranks(2, many_on_one_tensor, 20_000)
