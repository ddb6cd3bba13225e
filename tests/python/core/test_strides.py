"""Tensors with gaps between their elements in every call, and alltoall and alltoallv along axes, against the oracle.
What lies in the gaps stays as it was. What the ranks do is in strides_ranks.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import strides_ranks as ranks
from mpi import INSTALLED
from rank_pool import Pool
from sample import with_full

import a2a

pytestmark = pytest.mark.timeout(110)

KIB, MIB = 1 << 10, 1 << 20
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


@pytest.mark.parametrize("name", ranks.OPERATIONS)
def test_random_strides(pool: Pool, name: str) -> None:
    few = pool.n == 8 or bool(pool.hosts)
    for most, count in ((60, 12), (4000, 8), (100_000, 3)):
        pool.run(ranks.cases, name, list(range(most, most + (count + 1) // (2 if few else 1))), most)


def test_large_tensors(pool: Pool) -> None:
    """Several MiB between two ranks."""
    if pool.n <= 3:
        for name in ("alltoall", "alltoallv", "allgather", "allreduce", "broadcast", "messages"):
            pool.run(ranks.cases, name, [1], 1_500_000)


@pytest.mark.parametrize("along", [False, True], ids=["rows", "any axis"])
def test_in_place(pool: Pool, along: bool) -> None:
    pool.run(ranks.in_place, along, list(range(12)), 100)
    pool.run(ranks.in_place, along, list(range(4)), 50_000)


def test_refusals(pool: Pool) -> None:
    """What is wrong with this rank's arguments it says at once; its peers hear of it."""
    for rank, ended in enumerate(pool.run(ranks.refusals)):
        for text, kind, said in ended:
            assert kind == ("MismatchError" if rank else "InvalidArgumentError"), (text, kind, said)
            assert "rank 0" in said, said
            assert rank > 0 or re.search(text, said), (text, said)


@pytest.mark.parametrize("scale", [1, 12])
def test_disagreements(pool: Pool, scale: int) -> None:
    """Blocks of other shapes and as many bytes are none that another rank expects."""
    if pool.n == 1:
        return
    for rank, said in enumerate(pool.run(ranks.disagreements, scale)):
        for name, text in said:
            assert text.startswith("MismatchError: ") and "rank 1" in text, (rank, name, text)


# ---- sizes -----------------------------------------------------------------------------------------------------------

SIZES = [1, 60, 4 * KIB, 16 * KIB + 1, 64 * KIB, 256 * KIB - 4, MIB + 4, 3 * MIB + 7]
PIECES = [128 * KIB * pieces + off for pieces in (1, 4, 5) for off in (-1, 0, 2)]


@pytest.fixture(scope="module")
def pools() -> Iterator[Callable[..., Pool]]:
    made: dict[Any, Pool] = {}
    yield lambda n, threads=False, hosts="": made.setdefault((n, threads, hosts), Pool(n, threads, hosts))
    for pool in made.values():
        pool.__exit__()


@pytest.mark.parametrize("path", ["default", "direct", "staged"])
@pytest.mark.parametrize(("n", "threads"), [(2, False), (3, True)])
def test_sizes(pools: Callable[..., Pool], n: int, threads: bool, path: str) -> None:
    pools(n, threads).run(ranks.sizes, path, SIZES)


@pytest.mark.parametrize("hosts", ["a,b", "a,b,a,c"])
def test_what_repeats_between_hosts(pools: Callable[..., Pool], hosts: str) -> None:
    """Ranks that have agreed on an operation send the next ones like it at once; gaps must not be sent so."""
    n = hosts.count(",") + 1
    pools(n, hosts=hosts).run(ranks.repeats, [40, 3000, 20 * KIB, 100 * KIB, *(PIECES if n == 2 else PIECES[:4])])


@pytest.mark.full
def test_frameworks(pools: Callable[..., Pool]) -> None:
    for dtype in ("float32", "bfloat16", "int8"):
        for rows in (1, 40, 1000):
            pools(4).run(ranks.mixed, dtype, rows)


# ---- alone -----------------------------------------------------------------------------------------------------------


def test_the_oracle_is_what_a_rank_gets_alone() -> None:
    """Along other axes one rank sends itself all there is."""
    with a2a.init(0, 1) as comm:
        x = np.arange(24.0).reshape(2, 3, 4)
        for split in range(-3, 3):
            for concat in range(-3, 3):
                y = np.zeros((4, 3, 2)).T
                comm.alltoall(x[:, ::-1], y, split, concat)
                assert (y == x[:, ::-1]).all()
        comm.alltoall(y, y, 1, 2)
        assert (y == x[:, ::-1]).all()


@pytest.mark.parametrize("axis", [0, -3, np.int64(0), np.int8(-3), True, -1])
def test_words_for_an_axis(axis: int) -> None:
    with a2a.init(0, 1) as comm:
        x, y = np.arange(24.0).reshape(2, 3, 4), np.zeros((2, 3, 4))
        count = [x.shape[axis]]
        comm.alltoall(x, y, axis, axis)
        comm.plan_alltoall(x, y, axis, axis).run(x + 1, y)
        assert (y == x + 1).all()
        plan = comm.plan_alltoallv(x, count, y, count, split_axis=axis, concat_axis=axis)
        plan.run(x + 2, y)
        assert (y == x + 2).all()
        plan.transpose().run(x, y)
        assert (y == x).all()
