"""Views of the peers' tensors: what they show, whom they belong to, and when memory is used again."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import forge
import numpy as np
import pytest
import views_ranks as ranks
from exchange_ranks import Recipe
from forked import apart, connect, job_name, raised, run, values
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mpi import LIBRARIES
from rank_pool import Pool
from test_exchange import DTYPES
from views_ranks import MIB, SECONDS, segment_bytes

import a2a
from a2a import _core, testing

pytestmark = pytest.mark.timeout(110)
POOLS = [*(Pool(n) for n in (1, 2, 3, 5, 8)), *(Pool(n, threads=True) for n in (2, 3, 8))]


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
        max_examples=10,
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


@pytest.mark.parametrize("threads", [False, True], ids=["processes", "threads"])
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


@pytest.mark.parametrize("framework", ["torch", "paddle", "jax"])
def test_frameworks(framework: str, run_ranks: Callable[..., list[Any]]) -> None:
    pytest.importorskip(framework)
    run_ranks(2, show_and_look, framework, timeout=100)


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


def send_what_is_seen(comm: a2a.Communicator) -> None:
    mine = comm.empty(50_000, "int32")
    mine[:] = comm.rank
    views = comm.allgather_views(mine, "a2a")
    other = np.empty_like(mine)
    comm.alltoallv(views[1 - comm.rank], [0, 50_000] if comm.rank == 0 else [50_000, 0], other,
                   [0, 50_000] if comm.rank == 0 else [50_000, 0])  # fmt: skip
    assert (other == comm.rank).all()  # there and back
    views.release()


def test_a_view_can_be_sent(run_ranks: Callable[..., list[Any]]) -> None:
    run_ranks(2, send_what_is_seen)


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


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused_arguments(number: int, run_ranks: Callable[..., list[Any]]) -> None:
    told = run_ranks(3, refuse_one, number)
    assert re.search(REFUSED[number][2], told[1][0]) and "rank 1" in told[1][0]
    for rank in (0, 2):
        assert "allgather_views #1: rank 1 does not take part" in told[rank][0]
    assert "tensorflow" in told[0][1]


def show_a_view(comm: a2a.Communicator) -> None:
    """What lies in a peer's segment is not this rank's to show."""
    with comm.allgather_views(comm.empty(1000)) as views:
        raised(a2a.InvalidArgumentError, comm.allgather_views, views[1 - comm.rank])


def test_a_peers_tensor_is_refused(run_ranks: Callable[..., list[Any]]) -> None:
    run_ranks(2, show_a_view)


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
    with Pool(3, hosts="a,b,a") as pool:
        for told in pool.run(refuse_several_hosts):
            assert "several hosts" in told and "use allgather()" in told


# ---- whose memory it is ----------------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def given_back(comm: a2a.Communicator, before: int) -> bool:
    comm.empty(1)  # looks who has released what
    return segment_bytes() < before + MIB


def drop_what_is_seen(comm: a2a.Communicator) -> None:
    comm.barrier()
    before = segment_bytes()
    mine = comm.empty(4 * MIB, "uint8")
    mine[:] = comm.rank + 1
    views = comm.allgather_views(mine)
    del mine
    other = comm.empty(4 * MIB, "uint8")
    other[:] = 0xAA
    assert segment_bytes() >= before + 8 * MIB
    comm.barrier()
    assert all((view == rank + 1).all() for rank, view in enumerate(views))
    comm.barrier()
    kept = views[0][MIB:]  # rank 2 lets go of the Views only, which releases nothing
    del other
    if comm.rank == 2:
        del views
        gc.collect()
    else:
        del kept
        views.release()
        with pytest.raises(a2a.TimeoutError, match=r"after 0\.1 seconds another rank still looks"):
            views.wait_released(0.1)
        assert not given_back(comm, before) and not comm.broken
    comm.barrier()
    if comm.rank == 2:
        assert (kept == 1).all()
        del kept
        gc.collect()
    else:
        views.wait_released()
    wait_for(lambda: given_back(comm, before))
    comm.close()


def test_an_owner_may_drop_its_tensor(run_ranks: Callable[..., list[Any]]) -> None:
    run_ranks(3, drop_what_is_seen)


def show_for_ever(comm: a2a.Communicator, rounds: int) -> tuple[int, int]:
    def show() -> None:
        mine = comm.empty(MIB, "uint8")
        mine[::4096] = comm.rank
        assert comm.allgather_views(mine)[comm.size - 1][4096] == comm.size - 1

    for _ in range(20):
        show()
    comm.barrier()
    before = segment_bytes()
    for _ in range(rounds):
        show()
    comm.barrier()
    wait_for(lambda: given_back(comm, before))
    return before, segment_bytes()


def test_many_rounds_leave_nothing(run_ranks: Callable[..., list[Any]]) -> None:
    run_ranks(3, show_for_ever, 300)


KEPT: list[Any] = []


def outlive(rank: int, job: str) -> int | None:
    comm = connect(rank, 2, job)
    mine = comm.empty(3 * MIB, "uint8")
    mine[:] = rank + 7
    views, end = comm.allgather_views(mine), comm.allgather_views(comm.empty(0))
    seen = views[1 - rank]
    comm.close()
    if rank == 1:
        KEPT.append((views, end))
        return None
    del comm, mine
    gc.collect()
    end.wait_released(SECONDS)  # the other process is gone
    assert (seen == 8).all() and (views[0] == 7).all()
    views.release()
    assert int(seen[-1]) in range(256) and memoryview(seen).nbytes == 3 * MIB  # no crash
    del views
    return int(seen.sum() >= 0)


@apart
def test_views_outlive_communicator_and_owner() -> None:
    assert values(run(2, outlive, job_name())) == [1, None]


def lose_owner(rank: int, job: str) -> str | None:
    comm = connect(rank, 3, job)
    mine = comm.empty(3 * MIB, "uint8")
    mine[:] = rank + 7
    views = comm.allgather_views(mine)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    told = raised(a2a.PeerLostError, comm.barrier)
    views.release() if rank == 0 else None
    assert rank == 0 or [int(view[-1]) for view in views] == [7, 8, 9]
    smaller = comm.shrink(timeout=SECONDS)
    with smaller.allgather_views(mine) as again:  # the same tensor, in another group
        assert [int(view[-1]) for view in again] == [7, 9]
    smaller.barrier()
    views.release()
    views.wait_released(SECONDS)
    comm.close()
    smaller.close()
    return told


@apart
def test_an_owner_dies() -> None:
    ends = run(3, lose_owner, job_name())
    assert ends.pop(1).status == -signal.SIGKILL
    assert all("rank 1" in text for text in values(ends))


def lose_viewer(rank: int, job: str) -> None:
    comm = connect(rank, 2, job)
    comm.barrier()
    before = segment_bytes()
    mine = comm.empty(8 * MIB, "uint8")
    views = comm.allgather_views(mine)
    comm.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    del mine
    views.release()
    views.wait_released(SECONDS)
    wait_for(lambda: given_back(comm, before))


@apart
def test_a_viewer_dies() -> None:
    ends = run(2, lose_viewer, job_name())
    assert ends.pop(1).status == -signal.SIGKILL
    values(ends)


def come_late(rank: int, job: str, end: str) -> None:
    """Rank 2 does not come. What the others have shown is theirs again."""
    comm = connect(rank, 3, job)
    comm.barrier()
    before = segment_bytes()
    mine = comm.empty(8 * MIB, "uint8")
    if rank == 2:
        time.sleep(0.3)
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if end == "aborts":
            comm.abort("no more")
        if end == "leaves":
            comm.__exit__(ValueError, None, None)
        time.sleep(1)
        return
    kind = {"killed": a2a.PeerLostError, "aborts": a2a.AbortedError, "leaves": a2a.PeerLostError}
    raised(kind.get(end, a2a.TimeoutError), comm.allgather_views, mine, timeout=0.6)
    assert comm.broken
    del mine
    wait_for(lambda: given_back(comm, before))


@pytest.mark.parametrize("end", ["killed", "aborts", "leaves", "sleeps"])
@apart
def test_a_rank_does_not_come(end: str) -> None:
    ends = run(3, come_late, job_name(), end)
    ends.pop(2)
    values(ends)


def wait_in_turns(comm: a2a.Communicator) -> float:
    mine = comm.empty(16)
    views = comm.allgather_views(mine)
    started = time.monotonic()
    if comm.rank == 1:
        time.sleep(0.5)
        views.release()
    else:
        assert not views.released
        views.wait_released(SECONDS)
        assert views.released
    return time.monotonic() - started


@pytest.mark.parametrize("threads", [False, True])
def test_the_owner_waits(threads: bool, run_ranks: Callable[..., list[Any]]) -> None:
    waited = run_ranks(3, wait_in_turns, threads=threads)
    assert all(0.4 < waited[rank] < 5 for rank in (0, 2)), waited


def look_in_a_child(rank: int, job: str) -> None:
    comm = connect(rank, 2, job)
    mine = comm.empty(2 * MIB, "uint8")
    mine[:] = rank + 1
    views = comm.allgather_views(mine)

    def child(_: int) -> list[str]:
        assert (views[1 - rank] == 2 - rank).all()
        told = [raised(a2a.AbortedError, views.wait_released), raised(a2a.AbortedError, comm.allgather_views, mine)]
        views.release()
        return told

    if rank == 0:
        for told in values(run(1, child, timeout=20)):
            assert all("fork" in text for text in told)
    comm.barrier()
    if rank == 1:  # the child's release is nobody's
        raised(a2a.TimeoutError, views.wait_released, 0.1)
    comm.barrier()
    assert rank == 1 or (views[1] == 2).all()
    views.wait_released(SECONDS)
    comm.close()


@apart
def test_fork() -> None:
    values(run(2, look_in_a_child, job_name()))


def test_interrupted() -> None:
    """The operation goes on, and nobody looks at what comes of it."""
    bootstraps = _core.thread_bootstraps(2)
    go, done = threading.Event(), threading.Event()
    waited: list[Any] = []

    def peer() -> None:
        comm = _core.connect(1, 2, bootstrap=bootstraps[1], timeout=SECONDS)
        go.wait(SECONDS)
        views = comm.allgather_views(comm.empty(100))
        views.wait_released()
        waited.append(len(views))
        done.set()
        comm.close()

    thread = threading.Thread(target=peer)
    thread.start()
    comm = _core.connect(0, 2, bootstrap=bootstraps[0], timeout=SECONDS)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        comm.allgather_views(comm.empty(100))
    assert time.monotonic() - start < 1
    go.set()
    comm.close()
    assert done.wait(SECONDS) and waited == [2]
    thread.join()
