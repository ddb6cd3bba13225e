"""Every operation against the oracle, for any number of ranks, with counts, gaps, dtypes and row shapes at random.

Outputs are poisoned and have guard rows around them; all comparisons are of bytes, so that NaN and whatever lies
outside the received ranges count. What the ranks do is in exchange_ranks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import exchange_ranks as ranks
import numpy as np
import pytest
from exchange_ranks import DTYPES, Recipe
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mpi import INSTALLED
from rank_pool import Pool
from sample import examples, with_full

from a2a import testing

pytestmark = pytest.mark.timeout(110)

HOWS = ("call", "async", "plan")
POOLS = [
    *(Pool(n) for n in (1, 2, 3, 8)),
    *with_full(Pool(n) for n in (5, 7, 16, 64)),  # communicator_test.cc has 64 ranks, and 65
    *(Pool(n, threads=True) for n in (2, 5)),
    *with_full(Pool(n, threads=True) for n in (1, 3, 8)),
    *(Pool(5, hosts="a,b,a,c,b", mpi=mpi) for mpi in INSTALLED),
    Pool(5, hosts="a,b,a,c,b"),
]


@pytest.fixture(scope="module", params=POOLS, ids=repr)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with request.param as pool:
        yield pool


@st.composite
def recipes(draw: st.DrawFn, max_rows: int = 300) -> Recipe:
    """Zero rows, zero-size rows and no gaps are among them."""
    return Recipe(
        seed=draw(st.integers(0, 2**32 - 1)),
        dtype=draw(st.sampled_from(DTYPES)),
        trailing=draw(st.sampled_from([(), (1,), (3,), (2, 5), (7, 1, 2), (300,), (0,), (2, 0)])),
        max_rows=draw(st.sampled_from([0, 1, 5, max_rows])),
        max_gap=draw(st.sampled_from([0, 3])),
        empty=draw(st.sampled_from([0, 0.2, 0.8, 1])),
        experts=draw(st.sampled_from([1, 2, 5])),
    )


def for_examples(pool: Pool, check: Callable[..., None], **strategies: st.SearchStrategy[Any]) -> None:
    """Runs the check for several examples, fewer with many ranks. The first that fails is shown as it is: the examples
    are small, and after a failure new ranks have to be started."""
    max_rows = 300 if pool.n <= 8 else 20
    limits = settings(
        max_examples=5 if pool.n == 64 else 10 if pool.n == 16 else examples(30),
        phases=[Phase.explicit, Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    limits(given(recipe=recipes(max_rows), **strategies)(check))()


def require_same(actual: Sequence[bytes], expected: Sequence[bytes]) -> None:
    for rank, (left, right) in enumerate(zip(actual, expected, strict=True)):
        if left != right:
            pytest.fail(f"rank {rank}: {testing.first_difference(left, right)}")


def bare(results: Sequence[Any]) -> list[bytes]:
    return [np.ascontiguousarray(result).tobytes() for result in results]


def guarded(recipe: Recipe, results: Sequence[Any]) -> list[bytes]:
    return [ranks.unguarded(recipe, result) for result in results]


def expected_alltoallv(recipe: Recipe, n: int, packed: bool) -> list[Any]:
    case = recipe.case(n)
    displs = () if packed else (case.send_displs, case.recv_displs)
    sends = [recipe.array(rank, rows) for rank, rows in enumerate(case.send_rows)]
    recvs = [recipe.poisoned(rows) for rows in case.recv_rows]
    return testing.alltoallv(sends, case.send_counts, recvs, *displs)


def test_alltoallv(pool: Pool) -> None:
    def check(recipe: Recipe, packed: bool, how: str) -> None:
        expected = guarded(recipe, expected_alltoallv(recipe, pool.n, packed))
        require_same(pool.run(ranks.alltoallv, recipe, packed, how), expected)

    for_examples(pool, check, packed=st.booleans(), how=st.sampled_from(HOWS))


@pytest.mark.parametrize("dtype", DTYPES)
def test_alltoallv_of_every_dtype(pool: Pool, dtype: str) -> None:
    recipe = Recipe(seed=len(dtype), dtype=dtype, trailing=(3,), max_rows=20)
    expected = guarded(recipe, expected_alltoallv(recipe, pool.n, False))
    require_same(pool.run(ranks.alltoallv, recipe, False, "call"), expected)


def test_alltoall(pool: Pool) -> None:
    def check(recipe: Recipe, how: str) -> None:
        sends = [recipe.array(rank, recipe.max_rows * pool.n) for rank in range(pool.n)]
        require_same(pool.run(ranks.alltoall, recipe, how), guarded(recipe, testing.alltoall(sends)))

    for_examples(pool, check, how=st.sampled_from(HOWS))


def test_allgather(pool: Pool) -> None:
    def check(recipe: Recipe, stacked: bool, how: str) -> None:
        sends = [recipe.array(rank, recipe.max_rows) for rank in range(pool.n)]
        require_same(pool.run(ranks.allgather, recipe, stacked, how), guarded(recipe, testing.allgather(sends)))

    for_examples(pool, check, stacked=st.booleans(), how=st.sampled_from(HOWS))


def test_alltoall_list(pool: Pool) -> None:
    def check(recipe: Recipe, how: str) -> None:
        expected = testing.alltoall_list([ranks.list_parts(recipe, rank, pool.n) for rank in range(pool.n)])
        flat = Recipe(recipe.seed, recipe.dtype)
        joined = [b"".join(ranks.unguarded(flat, part) for part in parts) for parts in expected]
        require_same(pool.run(ranks.alltoall_list, flat_rows(recipe), how), joined)

    for_examples(pool, check, how=st.sampled_from(["call", "async"]))


def flat_rows(recipe: Recipe) -> Recipe:
    """The list form has its own shapes."""
    return Recipe(recipe.seed, recipe.dtype, (), recipe.max_rows, recipe.max_gap, recipe.empty)


def test_exchange(pool: Pool) -> None:
    def check(recipe: Recipe) -> None:
        case = recipe.case(pool.n)
        sends = [recipe.array(rank, counts.sum()) for rank, counts in enumerate(case.send_counts)]
        recvs = [recipe.poisoned(counts.sum()) for counts in case.recv_counts]
        expected = testing.alltoallv(sends, case.send_counts, recvs)
        results = pool.run(ranks.exchange, recipe)
        require_same([result[0] for result in results], bare(expected))
        assert [result[1] for result in results] == case.recv_counts.tolist()

    for_examples(pool, check)


def test_global_scatter_and_gather(pool: Pool) -> None:
    def check(recipe: Recipe, how: str) -> None:
        counts = recipe.local_counts(pool.n)
        xs = [recipe.array(rank, row.sum()) for rank, row in enumerate(counts)]
        scattered = testing.global_scatter(xs, counts)
        gathered = testing.global_gather(scattered, counts)
        require_same(bare(gathered), bare(xs))
        results = pool.run(ranks.there_and_back, recipe, how)
        require_same([result[0] for result in results], guarded(recipe, scattered))
        require_same([result[1] for result in results], guarded(recipe, gathered))

    for_examples(pool, check, how=st.sampled_from(["out", "async", "plan", "none", "later"]))


def test_allgather_bytes(pool: Pool) -> None:
    for seed, longest in enumerate((0, 5, 300, 100_000 // pool.n)):
        expected = [ranks.string(seed, rank, longest) for rank in range(pool.n)]
        assert pool.run(ranks.strings, seed, longest) == [expected] * pool.n


def test_barrier(pool: Pool) -> None:
    pool.run(ranks.barriers, 20)


# Around every size at which the transport takes another path or another chunk, and some that are many chunks.
KIB, MIB = 1 << 10, 1 << 20
EDGES = [
    edge + off
    for edge in (0, 16, 80, 4 * KIB, 16 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB)
    for off in (-1, 0, 1)
]
SIZES = [size for size in EDGES if size >= 0] + [3 * MIB + 7]
GROUPS = [
    *(Pool(2), Pool(3), Pool(3, threads=True)),
    *(Pool(2, hosts="a,b"), Pool(5, hosts="a,b,a,c,b")),
    *(Pool(5, hosts="a,b,a,c,b", mpi=mpi) for mpi in INSTALLED),
]


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
@pytest.mark.parametrize("path", ["default", "direct", "staged"])
@pytest.mark.parametrize(
    "group", [pytest.param(group, marks=pytest.mark.smoke if group.n == 2 else ()) for group in GROUPS], ids=repr
)
@pytest.mark.usefixtures("groups_end")
def test_sizes(group: Pool, path: str, shared: bool) -> None:
    """Sources in the rank's own memory and in shared memory, copied by receiver or sender, staged, and sent between
    hosts."""
    for rank, problems in enumerate(group.run(ranks.sizes, path, shared, SIZES)):
        assert problems == [], f"rank {rank}"


@pytest.fixture(scope="module")
def groups_end() -> Iterator[None]:
    yield
    for group in GROUPS:
        group.__exit__()
