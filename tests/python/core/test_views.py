"""Views of the peers' tensors: what they show, in which framework's hands, and what is refused."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from typing import Any

import forge
import numpy as np
import pytest
import views_ranks as ranks
from exchange_ranks import DTYPES, Recipe
from forked import raised
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mpi import LIBRARIES
from rank_pool import Pool
from sample import examples, with_full
from views_ranks import SECONDS

import a2a
from a2a import _core, testing

pytestmark = pytest.mark.timeout(110)
POOLS = [*(Pool(n) for n in (1, 2, 5)), *with_full(Pool(n) for n in (3, 8))]
POOLS += [Pool(3, threads=True), *with_full(Pool(n, threads=True) for n in (2, 8))]


@pytest.fixture(scope="module", params=POOLS, ids=repr)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with request.param as pool:
        yield pool


# ---- what they show --------------------------------------------------------------------------------------------------


def require_shown(pool: Pool, recipe: Recipe) -> None:
    sends = [recipe.array(rank, ranks.rows_of(recipe, rank)) for rank in range(pool.n)]
    expected = [everything.tobytes() for everything in testing.allgather(sends)]
    assert pool.run(ranks.look, recipe) == expected


def test_any_tensors(pool: Pool) -> None:
    @settings(
        max_examples=examples(10),
        phases=[Phase.explicit, Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        seed=st.integers(0, 2**32 - 1),
        dtype=st.sampled_from(DTYPES),
        trailing=st.sampled_from([(), (1,), (3,), (2, 5), (7, 1, 2), (300,), (0,), (1,) * 30]),
        max_rows=st.sampled_from([0, 1, 5, 1000]),
    )
    def check(**case: Any) -> None:
        require_shown(pool, Recipe(**case))

    check()


@pytest.mark.parametrize(
    "threads", [pytest.param(False, id="processes"), pytest.param(True, id="threads", marks=pytest.mark.full)]
)
def test_every_dtype(threads: bool) -> None:
    with Pool(3, threads) as pool:
        for dtype in DTYPES:
            require_shown(pool, Recipe(seed=len(dtype), dtype=dtype, trailing=(3,), max_rows=20))


def test_a_tensor_that_its_owner_writes_again_and_again(pool: Pool) -> None:
    assert pool.run(ranks.take_turns, 300) == [0] * pool.n


def test_many_views_at_once(pool: Pool) -> None:
    pool.run(ranks.keep_all_sorts)


# ---- in every framework's hands --------------------------------------------------------------------------------------


def show_and_look(comm: a2a.Communicator, framework: str) -> None:
    maker = "numpy" if framework == "jax" else framework  # JAX writes into no tensor
    for dtype in ("float32", "bfloat16", "int16"):
        mine = comm.empty((64, 3), dtype, maker)
        mine[32:] = comm.rank + 1
        for like in ("numpy", framework, "a2a", mine):
            with comm.allgather_views(mine[32:], like) as views:
                for rank, view in enumerate(views):
                    assert tuple(view.shape) == (32, 3), (dtype, like)
                    expected = np.full((32, 3), rank + 1, ranks.dtype_of(dtype))
                    assert testing.first_difference(view, expected) is None, (dtype, like, rank)
            views.wait_released(SECONDS)


def test_frameworks() -> None:
    with Pool(2) as pool:
        for framework in ("torch", "paddle", "jax"):
            if importlib.util.find_spec(framework):
                pool.run(show_and_look, framework)


@pytest.fixture
def alone() -> Iterator[a2a.Communicator]:
    with _core.connect(0, 1) as comm:
        yield comm


def test_views_are_read_only(alone: a2a.Communicator) -> None:
    mine = alone.empty((2, 3))
    with alone.allgather_views(mine) as views, alone.allgather_views(mine, "a2a") as plain:
        with pytest.raises(ValueError, match="read-only"):
            views[0][0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            views[0].flags.writeable = True
        assert memoryview(plain[0]).readonly and not np.from_dlpack(plain[0]).flags.writeable
        assert not np.from_dlpack(views[0]).flags.writeable
        assert _core.describe_tensor(plain[0])["writable"] is False
        capsule = plain[0].__dlpack__(max_version=(1, 0))
        address = forge.api.PyCapsule_GetPointer(capsule, b"dltensor_versioned")
        assert forge.ManagedVersioned.from_address(address).flags == forge.READ_ONLY
        with pytest.raises(BufferError, match="versioned"):
            plain[0].__dlpack__()
        with pytest.raises(a2a.InvalidArgumentError, match="read-only"):
            alone.alltoall(mine, plain[0])


@pytest.mark.ranks(2)
def test_a_view_can_be_sent(comm: a2a.Communicator) -> None:
    mine = comm.empty(50_000, "int32")
    mine[:] = comm.rank
    views = comm.allgather_views(mine, "a2a")
    other = np.empty_like(mine)
    comm.alltoallv(views[1 - comm.rank], [0, 50_000] if comm.rank == 0 else [50_000, 0], other,
                   [0, 50_000] if comm.rank == 0 else [50_000, 0])  # fmt: skip
    assert (other == comm.rank).all()  # there and back
    views.release()


def test_sequence(alone: a2a.Communicator) -> None:
    views = alone.allgather_views(alone.empty(()))
    assert repr(views) == "<Views rank 0 of 1>" and [view.shape for view in views] == [()]
    for bad in (1, -2):
        with pytest.raises(IndexError, match="group of 1 ranks"):
            views[bad]
    with pytest.raises(a2a.InvalidArgumentError, match="integer"):
        views["0"]  # type: ignore[index]
    views.release()
    assert repr(views) == "<Views rank 0 of 1 released>"
    with pytest.raises(a2a.InvalidArgumentError, match="rank 0 has released these views"):
        views[0]
    with pytest.raises(TypeError, match="allgather_views"):
        a2a.Views()


# ---- what is refused -------------------------------------------------------------------------------------------------

REFUSED: list[tuple[Callable[[a2a.Communicator], Any], type[Exception], str]] = [
    (lambda comm: np.zeros(4, "f4"), a2a.InvalidArgumentError, "shared memory.*empty"),
    (lambda comm: comm.empty((4, 4))[:, 1], a2a.InvalidArgumentError, "contiguous"),
    (lambda comm: comm.empty(4)[::-1], a2a.InvalidArgumentError, "contiguous"),
    (lambda comm: a2a.from_pointer(4096, 4, "float32", device=(2, 0)), a2a.UnsupportedError, "cuda:0 memory"),
    (lambda comm: "text", a2a.InvalidArgumentError, "not a tensor"),
    (
        lambda comm: a2a.from_pointer(comm.empty(4).ctypes.data, 10**9, "float32"),
        a2a.InvalidArgumentError,
        "shared memory",
    ),
]


def refuse_one(comm: a2a.Communicator, number: int) -> tuple[str, str]:
    make, kind, _ = REFUSED[number]
    mine = comm.empty(4)
    mine[:] = comm.rank
    if comm.rank == 1:
        told = raised(kind, comm.allgather_views, make(comm))  # type: ignore[arg-type]
    else:
        told = raised(a2a.MismatchError, comm.allgather_views, mine)
    like = raised(a2a.InvalidArgumentError, comm.allgather_views, mine, "tensorflow")
    with comm.allgather_views(mine) as views:  # in step
        assert [view[0] for view in views] == [0, 1, 2]
    return told, like


@pytest.mark.parametrize("number", [0, 1, *with_full(range(2, len(REFUSED)))])
def test_refused_arguments(number: int, run_ranks: Callable[..., list[Any]]) -> None:
    told = run_ranks(3, refuse_one, number)
    assert re.search(REFUSED[number][2], told[1][0]) and "rank 1" in told[1][0]
    for rank in (0, 2):
        assert "allgather_views #1: rank 1 does not take part" in told[rank][0]
    assert "tensorflow" in told[0][1]


@pytest.mark.ranks(2)
def test_a_peers_tensor_is_refused(comm: a2a.Communicator) -> None:
    """What lies in a peer's segment is not this rank's to show."""
    with comm.allgather_views(comm.empty(1000)) as views:
        raised(a2a.InvalidArgumentError, comm.allgather_views, views[1 - comm.rank])


def disagree(comm: a2a.Communicator) -> list[str]:
    mine, told = comm.empty(8, "float32" if comm.rank != 2 else "int32"), []
    told.append(raised(a2a.MismatchError, comm.allgather_views, mine))
    other = comm.barrier if comm.rank == 0 else lambda: comm.allgather_views(mine)
    told.append(raised(a2a.MismatchError, other))
    gathered = np.empty(8 * 4 * comm.size, np.uint8)
    other = (lambda: comm.allgather(mine, gathered)) if comm.rank == 0 else lambda: comm.allgather_views(mine)  # type: ignore[assignment]
    told.append(raised(a2a.InvalidArgumentError if comm.rank == 0 else a2a.MismatchError, other))
    mine = comm.empty(8, "float32")
    comm.allgather_views(mine).release()
    return told


def test_disagreement_is_an_error_everywhere(run_ranks: Callable[..., list[Any]]) -> None:
    told = run_ranks(4, disagree)
    for rank, (dtype, op, _) in enumerate(told):
        assert "float32" in dtype and "int32" in dtype, (rank, dtype)
        assert "barrier" in op and "allgather_views" in op, (rank, op)


def test_closed(run_ranks: Callable[..., list[Any]]) -> None:
    comm = _core.connect(0, 1)
    mine = comm.empty(4)
    comm.close()
    with pytest.raises(a2a.AbortedError, match="closed"):
        comm.allgather_views(mine)


def refuse_several_hosts(comm: a2a.Communicator) -> str:
    told = raised(a2a.UnsupportedError, comm.allgather_views, comm.empty(4))
    comm.barrier()
    if comm.rank == 0:
        raised(a2a.UnsupportedError, comm.allgather_views, comm.empty(4))
    else:
        assert "rank 0 does not take part" in raised(a2a.MismatchError, comm.barrier)
    here = comm.group([0, 2])
    if here is not None:  # ranks of one host
        with here.allgather_views(here.empty(4)) as views:
            assert len(views) == 2
        here.close()
    comm.barrier()
    return told


@pytest.mark.skipif(not LIBRARIES, reason="no MPI")
def test_several_hosts() -> None:
    with Pool(3, hosts="a,b,a", mpi=LIBRARIES[0]) as pool:
        for told in pool.run(refuse_several_hosts):
            assert "several hosts" in told and "use allgather()" in told
