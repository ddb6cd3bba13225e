"""Operations in flight: many at once, forgotten, asked, awaited and interrupted."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import statistics
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_ranks import GUARD, Recipe
from rank_pool import Pool

import a2a
from a2a import testing

pytestmark = pytest.mark.timeout(110)
SECONDS = 30.0


@pytest.fixture(scope="module", params=[False, True], ids=["processes", "threads"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool(3, request.param) as pool:
        yield pool


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def side_of(comm: a2a.Communicator) -> a2a.Communicator:
    """A second communicator, with which the ranks of a test tell each other how far they are."""
    side = comm.split(0)
    assert side is not None
    return side


def recipe_of(number: int) -> Recipe:
    """Small, staged and pulled, in turn."""
    return Recipe(
        seed=number, dtype="int16", trailing=((), (40,), (9000,))[number % 3], max_rows=(4, 60, 20)[number % 3]
    )


def start(comm: a2a.Communicator, recipe: Recipe) -> tuple[a2a.Work, Any]:
    """An operation of which only Work and output are left to the caller."""
    case, rank = recipe.case(comm.size), comm.rank
    recv = recipe.poisoned(case.recv_rows[rank] + GUARD)
    work = comm.alltoallv(
        recipe.array(rank, case.send_rows[rank]),
        case.send_counts[rank],
        recv,
        case.recv_counts[rank],
        case.send_displs[rank],
        case.recv_displs[rank],
        async_op=True,
    )
    assert work is not None
    return work, recv


def difference(comm: a2a.Communicator, recipe: Recipe, recv: Any) -> str | None:
    case = recipe.case(comm.size)
    sends = [recipe.array(rank, rows) for rank, rows in enumerate(case.send_rows)]
    recvs = [recipe.poisoned(rows + GUARD) for rows in case.recv_rows]
    expected = testing.alltoallv(sends, case.send_counts, recvs, case.send_displs, case.recv_displs)
    return testing.first_difference(recv, expected[comm.rank])


def run_many(comm: a2a.Communicator, count: int, order: str) -> None:
    recipes = [recipe_of(number) for number in range(count)]
    started = [start(comm, recipe) for recipe in recipes]
    numbers = list(range(count))
    if order == "reverse":
        numbers.reverse()
    elif order == "random":
        np.random.default_rng(comm.rank).shuffle(numbers)
    for number in numbers:
        work, recv = started[number]
        work.wait()
        assert work.done()
        assert difference(comm, recipes[number], recv) is None, number


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_a_hundred_in_flight(pool: Pool, order: str) -> None:
    pool.run(run_many, 100, order)


def run_forgotten(comm: a2a.Communicator, count: int) -> None:
    recipes = [recipe_of(number) for number in range(count)]
    outputs = []
    for recipe in recipes:
        work, recv = start(comm, recipe)
        # Every rank forgets some of its outputs, too.
        outputs.append(None if recipe.seed % comm.size == comm.rank else recv)
        del work, recv
        gc.collect(0)
        testing.poison(np.empty(5000, np.uint8))  # Takes memory that was freed too early.
    comm.barrier()
    for recipe, output in zip(recipes, outputs, strict=True):
        assert output is None or difference(comm, recipe, output) is None, recipe


def test_forgotten_works_and_tensors(pool: Pool) -> None:
    pool.run(run_forgotten, 30)


def run_passive(comm: a2a.Communicator, folder: Path) -> None:
    """Rank 0 computes after it has started an exchange, and asks after nothing."""
    with side_of(comm) as group:
        each = 100_000
        send, recv = (np.asarray(group.empty(each * comm.size, "int64")) for _ in range(2))
        send[:] = comm.rank
        work = group.alltoall(send, recv, async_op=True)
        if comm.rank == 0:
            until(lambda: len(list(folder.iterdir())) == comm.size - 1)
        else:
            until(lambda: work.arrived(0))
            (folder / str(comm.rank)).touch()
        work.wait()
        assert (recv.reshape(comm.size, each).T == np.arange(comm.size)).all()


def test_a_rank_that_computes_gives_what_it_has(pool: Pool, tmp_path: Path) -> None:
    """With tensors in shared memory."""
    pool.run(run_passive, tmp_path)


def run_ahead(comm: a2a.Communicator, gate: Path) -> None:
    """Rank 1 copies rank 0's memory, then a part of rank 2's, and stops. Rank 0 opens the gate for it."""
    mib = np.array([[0, 1, 1], [1, 0, 1], [1, 32, 0]]) << 20
    send, recv = (comm.empty(int(counts.sum()), np.uint8) for counts in (mib[comm.rank], mib[:, comm.rank]))
    np.asarray(send).fill(comm.rank)
    with side_of(comm) as side:  # To close it is to wait, and who waits for anything copies.
        if comm.rank == 1:
            side.barrier()  # Both peers' memory is there for it when it begins.
        work = comm.alltoallv(send, mib[comm.rank], recv, mib[:, comm.rank], async_op=True)
        if comm.rank != 1:
            side.barrier()
        try:
            if comm.rank == 1:
                assert not work.done()
                gate.read_bytes()
            work.wait(timeout=SECONDS)
        finally:
            if comm.rank == 0:
                gate.write_bytes(b"")
    assert np.array_equal(recv, np.repeat(np.arange(3, dtype=np.uint8), mib[:, comm.rank]))


def test_a_rank_goes_on_when_its_memory_was_read(pool: Pool, tmp_path: Path) -> None:
    """Though the reader is not done with what it gets from others."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    pool.run(run_ahead, gate)


def run_release(comm: a2a.Communicator) -> None:
    send, recv = np.ones(300_000), np.empty(300_000)
    watched = [weakref.ref(send), weakref.ref(recv)]
    with side_of(comm) as side:
        if comm.rank == 1:
            side.barrier()  # The others' operation cannot be over before.
        work = comm.alltoall(send, recv, async_op=True)
        del send, recv
        gc.collect()
        assert comm.rank == 1 or (not work.done() and all(ref() is not None for ref in watched))
        if comm.rank != 1:
            side.barrier()
        work.wait()
        del work
        gc.collect()
        assert [ref() for ref in watched] == [None, None]


def test_tensors_are_held_until_done_and_not_longer(pool: Pool) -> None:
    pool.run(run_release)


def run_arrived(comm: a2a.Communicator, elements: int) -> None:
    send, recv = np.full(3 * elements, comm.rank, np.int32), np.empty(3 * elements, np.int32)
    with side_of(comm) as side:
        if comm.rank == 1:
            side.barrier()
        work = comm.alltoall(send, recv, async_op=True)
        if comm.rank == 0:
            until(lambda: work.arrived(2))
            assert work.arrived(0) and not work.arrived(1) and not work.done()
            assert set(recv[:elements]) == {0} and set(recv[2 * elements :]) == {2}
        if comm.rank != 1:
            side.barrier()
        work.wait()
        assert work.done() and all(work.arrived(rank) for rank in range(3))
        assert recv.tolist() == np.repeat([0, 1, 2], elements).tolist()
        with pytest.raises(a2a.InvalidArgumentError, match="rank 3"):
            work.arrived(3)


@pytest.mark.parametrize("elements", [1, 3000, 200_000])
def test_done_and_arrived(pool: Pool, elements: int) -> None:
    pool.run(run_arrived, elements)


def run_wait_timeout(comm: a2a.Communicator) -> None:
    recipe = recipe_of(2)
    with side_of(comm) as side:
        if comm.rank == 1:
            side.barrier()
        work, recv = start(comm, recipe)
        if comm.rank == 0:
            for seconds in (0, 0.05, 0.2):
                before = time.monotonic()
                with pytest.raises(a2a.TimeoutError) as caught:
                    work.wait(timeout=seconds)
                assert isinstance(caught.value, TimeoutError)
                assert seconds <= time.monotonic() - before < seconds + 5
            assert not work.done() and not comm.broken
        if comm.rank != 1:
            side.barrier()
        work.wait(timeout=SECONDS)
        work.wait()
        assert difference(comm, recipe, recv) is None


def test_a_wait_that_times_out_leaves_the_operation_going(pool: Pool) -> None:
    pool.run(run_wait_timeout)


def run_result(comm: a2a.Communicator) -> None:
    send, recv = np.arange(3.0), np.empty(3)
    work = comm.alltoall(send, recv, async_op=True)
    work.order_before(None)
    assert work.done() and work.result is recv
    scatter = comm.global_scatter(send, [1, 1, 1], [1, 1, 1], async_op=True)
    scatter.wait()
    assert scatter.result.tolist() == recv.tolist() == [comm.rank] * 3


def test_result(pool: Pool) -> None:
    pool.run(run_result)


def run_mismatch(comm: a2a.Communicator, awaited: bool) -> str:
    """Rank 2 expects other counts than the others send."""
    send, recv = np.zeros(6), np.zeros(9)
    work = comm.alltoallv(send, [2] * 3, recv, [3 if comm.rank == 2 else 2] * 2 + [2], async_op=True)
    text = ""
    try:
        asyncio.run(wait_for(work)) if awaited else work.wait()
    except a2a.MismatchError as error:
        text = str(error)
    assert work.done() and not comm.broken
    comm.barrier()
    return text


async def wait_for(work: a2a.Work) -> None:
    await work


@pytest.mark.parametrize("awaited", [False, True])
def test_errors_come_from_the_wait(pool: Pool, awaited: bool) -> None:
    texts = pool.run(run_mismatch, awaited)
    assert "rank 0 sends 2" in texts[0] and "rank 1 sends 2" in texts[1]
    assert "rank 0 sends 2" in texts[2] and "rank 1 sends 2" in texts[2]


def run_asyncio(comm: a2a.Communicator) -> int:
    """Several operations and a task that has nothing to do with them, in one event loop."""
    return asyncio.run(exchange_and_tick(comm))


async def exchange_and_tick(comm: a2a.Communicator) -> int:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    async def one(number: int) -> None:
        assert await operations[number][0] is None
        assert difference(comm, recipes[number], operations[number][1]) is None

    ticker = asyncio.create_task(tick())
    if comm.rank == 0:
        await asyncio.sleep(0.3)  # The others wait for this rank meanwhile.
    recipes = [recipe_of(number) for number in range(12)]
    operations = [start(comm, recipe) for recipe in recipes]
    await asyncio.wait_for(asyncio.gather(*(one(number) for number in reversed(range(12)))), SECONDS)
    ticker.cancel()
    return ticks


def test_await_lets_other_tasks_go_on(pool: Pool) -> None:
    assert min(pool.run(run_asyncio)) > 20


def run_counting(comm: a2a.Communicator, call: str) -> int:
    """How far another thread counts while this one waits for rank 0."""
    count, over = 0, threading.Event()

    def step() -> None:
        nonlocal count
        while not over.is_set():
            count += 1
            time.sleep(0)

    comm.barrier()
    counter = threading.Thread(target=step)
    counter.start()
    if comm.rank == 0:
        time.sleep(0.3)
    before = count
    if call == "wait":
        comm.alltoall(np.zeros(3), np.zeros(3), async_op=True).wait()
    elif call == "barrier":
        comm.barrier()
    else:
        comm.allgather_bytes(b"")
    counted = count - before
    over.set()
    counter.join()
    return counted


@pytest.mark.parametrize("call", ["wait", "barrier", "allgather_bytes"])
def test_the_gil_is_free_during_a_wait(pool: Pool, call: str) -> None:
    assert min(pool.run(run_counting, call)[1:]) > 20


def run_other_thread(comm: a2a.Communicator) -> None:
    """Started here, waited for by two threads at once."""
    recipe = recipe_of(1)
    for _ in range(20):
        work, recv = start(comm, recipe)
        waiters = [threading.Thread(target=work.wait) for _ in range(2)]
        for waiter in waiters:
            waiter.start()
        for waiter in waiters:
            waiter.join(SECONDS)
        assert work.done() and difference(comm, recipe, recv) is None


def test_other_threads_may_wait(pool: Pool) -> None:
    pool.run(run_other_thread)


def run_close_in_flight(comm: a2a.Communicator) -> None:
    recipes = [recipe_of(number) for number in range(10)]
    group = side_of(comm)
    outputs = [start(group, recipe)[1] for recipe in recipes]
    group.close()
    for recipe, output in zip(recipes, outputs, strict=True):
        assert difference(comm, recipe, output) is None


def test_close_waits_for_what_is_in_flight(pool: Pool) -> None:
    pool.run(run_close_in_flight)


INTERRUPTED = {
    "alltoall": lambda comm, send, recv: comm.alltoall(send, recv),
    "wait": lambda comm, send, recv: comm.alltoall(send, recv, async_op=True).wait(),
    "exchange": lambda comm, send, recv: comm.exchange(send, [1, 1]),
    "barrier": lambda comm, send, recv: comm.barrier(),
    "allgather_bytes": lambda comm, send, recv: comm.allgather_bytes(b"x"),
    "split": lambda comm, send, recv: comm.split(0),
}


def run_interrupts(comm: a2a.Communicator, name: str, count: int) -> list[float]:
    """Rank 1 interrupts rank 0 while it waits for rank 1. Returns how long each took."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Ignored in the background jobs of a shell.
    pids = [int(text) for text in comm.allgather_bytes(str(os.getpid()).encode())]
    side = side_of(comm)
    times = []
    for round_ in range(count):
        send, recv = np.array([10 * comm.rank, 10 * comm.rank + 1]) + round_, np.zeros(2, np.int64)
        side.barrier()
        if comm.rank == 0:
            with pytest.raises(KeyboardInterrupt):
                INTERRUPTED[name](comm, send, recv)
            times.append(time.monotonic())
            side.barrier()
        else:
            time.sleep(0.1)
            times.append(time.monotonic())
            os.kill(pids[0], signal.SIGINT)
            side.barrier()
            try:
                INTERRUPTED[name](comm, send, recv)
            except a2a.MismatchError as error:
                assert name == "exchange" and "KeyboardInterrupt" in str(error)
        # The operation went on, and so does the communicator.
        comm.barrier()
        if name in ("alltoall", "wait"):
            assert recv.tolist() == [comm.rank + round_, comm.rank + 10 + round_]
        result, _ = comm.exchange(send, [1, 1])
        assert result.tolist() == [comm.rank + round_, comm.rank + 10 + round_]
    side.close()
    return times


@pytest.mark.parametrize("name", INTERRUPTED)
def test_ctrl_c(name: str, pair: Pool) -> None:
    raised, sent = pair.run(run_interrupts, name, 5)
    # At once where there is a CPU. Beside another test, with ten ranks for each CPU, it took a fifth of a second.
    assert statistics.median(np.subtract(raised, sent)) < 0.5


def interrupted(comm: a2a.Communicator) -> list[weakref.ref[Any]]:
    """Calls with arrays of its own, like those of an earlier call, and is interrupted."""
    send, recv = np.zeros(2, np.int64), np.zeros(2, np.int64)
    with pytest.raises(KeyboardInterrupt):
        comm.alltoallv(send, [1, 1], recv, [1, 1])
    return [weakref.ref(send), weakref.ref(recv)]


def run_interrupt_and_leave(comm: a2a.Communicator) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pids = [int(text) for text in comm.allgather_bytes(str(os.getpid()).encode())]
    buffers = np.zeros((2, 2), np.int64)
    comm.alltoallv(buffers[0], [1, 1], buffers[1], [1, 1])
    with side_of(comm) as side:
        if comm.rank == 0:
            watched = interrupted(comm)
            gc.collect()
            assert all(ref() is not None for ref in watched)
            side.barrier()
        else:
            time.sleep(0.1)
            os.kill(pids[0], signal.SIGINT)
            side.barrier()
            comm.alltoallv(buffers[0], [1, 1], buffers[1], [1, 1])
        comm.barrier()
        comm.alltoallv(buffers[0], [1, 1], buffers[1], [1, 1])
        assert comm.rank == 1 or [ref() for ref in watched] == [None, None]


def test_ctrl_c_leaves_the_memory_to_the_operation(pair: Pool) -> None:
    pair.run(run_interrupt_and_leave)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pool]:
    with Pool(2) as pool:
        yield pool
