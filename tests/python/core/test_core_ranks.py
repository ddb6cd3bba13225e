"""What the bindings owe to other ranks, with threads as ranks: refusals reach them, and memory is held for them."""

import asyncio
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from a2a import _core
from a2a._core import Communicator, Error, InvalidArgumentError, MismatchError, PeerLostError

SECONDS = 30.0


def ranks(size: int, body: Callable[[Communicator], Any]) -> list[Any]:
    """Runs ``body`` on every rank; the results, or the exceptions in their place."""
    results: list[Any] = [None] * size
    bootstraps = _core.thread_bootstraps(size)

    def run(rank: int) -> None:
        try:
            with _core.connect(rank, size, bootstrap=bootstraps[rank], timeout=SECONDS) as comm:
                results[rank] = body(comm)
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    return results


def check(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def arrays() -> tuple[Any, Any]:
    return np.arange(6, dtype=np.float32).reshape(6, 1), np.zeros((6, 1), np.float32)


GOOD: dict[str, Callable[[Communicator, Any, Any], Any]] = {
    "alltoallv": lambda c, s, r: c.alltoallv(s, [2] * 3, r, [2] * 3),
    "alltoall": lambda c, s, r: c.alltoall(s, r),
    "alltoall_list": lambda c, s, r: c.alltoall_list(np.split(s, 3), np.split(r, 3)),
    "allgather": lambda c, s, r: c.allgather(s[:2], r),
    "global_scatter": lambda c, s, r: c.global_scatter(s, [2] * 3, [2] * 3),
    "global_gather": lambda c, s, r: c.global_gather(s, [1] * 6, [1] * 6, r),
    "exchange": lambda c, s, r: c.exchange(s, [2] * 3),
    "plan": lambda c, s, r: c.plan_alltoall(s, r).run(s, r),
    "barrier": lambda c, s, r: c.barrier(),
    "split": lambda c, s, r: c.split(0),
    "group": lambda c, s, r: c.group([0, 1, 2]),
    "allgather_bytes": lambda c, s, r: c.allgather_bytes(b"x"),
}
BAD: dict[str, Callable[[Communicator, Any, Any], Any]] = {
    "alltoallv": lambda c, s, r: c.alltoallv(s, None, r, [2] * 3),
    "alltoall": lambda c, s, r: c.alltoall(s, "text"),
    "alltoall_list": lambda c, s, r: c.alltoall_list(np.split(s, 3), None),  # type: ignore[arg-type]
    "allgather": lambda c, s, r: c.allgather(s, r),
    "global_scatter": lambda c, s, r: c.global_scatter(s, [2] * 3, [2.0] * 3),
    "global_gather": lambda c, s, r: c.global_gather(s, [1] * 6, [1] * 6, r[::2]),
    "exchange": lambda c, s, r: c.exchange(s, [2, 2]),
    "plan": lambda c, s, r: c.plan_alltoall(s, r).run(s, r[:3]),
    "barrier": lambda c, s, r: c.barrier(timeout=-1),
    "split": lambda c, s, r: c.split("red"),  # type: ignore[arg-type]
    "group": lambda c, s, r: c.group([0, 7]),
    "allgather_bytes": lambda c, s, r: c.allgather_bytes(7),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("operation", GOOD)
def test_bad_arguments_on_one_rank(operation: str) -> None:
    """That rank gets its own error, the others learn who and why at once, and the next call is right."""

    def body(comm: Communicator) -> list[Exception]:
        send, recv = arrays()
        call = BAD if comm.rank == 1 else GOOD
        with pytest.raises(Error) as caught:
            call[operation](comm, send, recv)
        assert not recv[2:4].any()  # what was to come from rank 1; the other pairs finish
        GOOD[operation](comm, send, recv)
        comm.alltoall(send + comm.rank, recv)
        assert recv.tolist() == [[2 * comm.rank + i % 2 + i // 2] for i in range(6)]
        return [caught.value]

    results = [error for (error,) in check(ranks(3, body))]
    assert [type(error) for error in results] == [MismatchError, InvalidArgumentError, MismatchError]
    assert "rank 1" in str(results[1])
    for error in (results[0], results[2]):
        assert "rank 1" in str(error) and str(results[1]) in str(error)


def test_exchange_when_one_rank_cannot_allocate(monkeypatch: pytest.MonkeyPatch) -> None:
    empty, unlucky = np.empty, threading.local()

    def scarce(*args: Any) -> Any:
        if getattr(unlucky, "now", False) and isinstance(args[0], list):  # the output's shape
            raise MemoryError("no room")
        return empty(*args)

    monkeypatch.setattr(np, "empty", scarce)

    def body(comm: Communicator) -> Any:
        send = np.zeros((3, 1), np.float32)
        unlucky.now = comm.rank == 0
        with pytest.raises((MemoryError, MismatchError)) as caught:
            comm.exchange(send, [1] * 3)
        unlucky.now = False
        return comm.exchange(send, [1] * 3)[1].tolist(), caught.value

    results = check(ranks(3, body))
    assert [counts for counts, _ in results] == [[1, 1, 1]] * 3
    assert isinstance(results[0][1], MemoryError)
    assert "rank 0" in str(results[1][1]) and "no room" in str(results[2][1])


@pytest.mark.smoke
def test_ranks_disagree_about_dtype_in_exchange() -> None:
    def body(comm: Communicator) -> Any:
        with pytest.raises(MismatchError, match="float32"):
            comm.exchange(np.zeros(3, np.float32 if comm.rank else np.int32), [1] * 3)
        return comm.exchange(np.full(3, comm.rank), [1] * 3)[0].tolist()

    assert check(ranks(3, body)) == [[0, 1, 2]] * 3


def test_frameworks_mix() -> None:
    def tensor(rank: int, values: Any) -> Any:
        if rank == 1:
            return pytest.importorskip("torch").from_numpy(values)
        if rank == 2:
            return pytest.importorskip("paddle").to_tensor(values)
        return pytest.importorskip("jax.numpy").asarray(values) if rank == 3 else values

    for rank in range(4):
        tensor(rank, np.zeros(1, np.float32))  # imports on the main thread

    def body(comm: Communicator) -> Any:
        rows = np.repeat(np.arange(4, dtype=np.float32)[:, None] + 10 * comm.rank, 3, axis=1)
        x = tensor(comm.rank, rows)
        result, counts = comm.exchange(x, [1] * 4)
        assert type(result) is type(x) and counts.tolist() == [1] * 4
        dispatched: Any = comm.global_scatter(x, [1] * 4, [1] * 4)
        back: Any = comm.global_gather(dispatched, [1] * 4, [1] * 4)
        assert type(back) is type(x) and back.tolist() == rows.tolist() and dispatched.tolist() == result.tolist()
        return [row[0] for row in result.tolist()]

    assert check(ranks(4, body)) == [[rank, 10 + rank, 20 + rank, 30 + rank] for rank in range(4)]


def test_dropped_work_keeps_its_tensors() -> None:
    ready = threading.Barrier(2)

    def body(comm: Communicator) -> None:
        send, recv = np.full(1 << 16, comm.rank), np.zeros(1 << 16, np.int64)
        alive = weakref.ref(recv)
        if comm.rank == 0:
            comm.alltoall(send, recv, async_op=True)
            del send, recv
            gc.collect()
            assert alive() is not None
            ready.wait()
        else:
            ready.wait()
            comm.alltoall(send, recv)
            assert recv[0] == 0
        comm.barrier()
        comm.barrier()  # what is finished is let go by the next call
        assert comm.rank == 1 or alive() is None

    check(ranks(2, body))


def test_a_wait_may_end_before_the_operation() -> None:
    ready = threading.Barrier(2)

    def body(comm: Communicator) -> None:
        send, recv = np.full(2, comm.rank), np.zeros(2, np.int64)
        if comm.rank == 1:
            ready.wait()
        work = comm.alltoall(send, recv, async_op=True)
        assert work is not None
        if comm.rank == 0:
            for timeout in (0, 0.1):
                with pytest.raises(_core.TimeoutError):
                    work.wait(timeout=timeout)
            assert not work.done() and not comm.broken
            ready.wait()
        work.wait(timeout=SECONDS)
        assert recv.tolist() == [0, 1]

    check(ranks(2, body))


def test_asyncio_goes_on_while_ranks_are_awaited() -> None:
    ready = threading.Barrier(2)

    def body(comm: Communicator) -> int:
        async def main() -> int:
            send, recv = np.full(2, comm.rank), np.zeros(2, np.int64)
            if comm.rank == 1:
                ready.wait()
            work = comm.alltoall(send, recv, async_op=True)
            assert work is not None
            task = asyncio.ensure_future(work)
            turns = 0
            while not task.done():
                turns += 1
                await asyncio.sleep(0.001)
                if turns == 20 and comm.rank == 0:
                    ready.wait()
            await task
            assert recv.tolist() == [0, 1]
            return turns

        return asyncio.run(main())

    assert check(ranks(2, body))[0] >= 20


def test_a_rank_that_leaves_by_an_exception() -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            raise KeyError("mine")
        comm.barrier()

    first, second, third = ranks(3, body)
    assert isinstance(second, KeyError)
    for error in (first, third):
        assert isinstance(error, PeerLostError) and "rank 1" in str(error)


def test_ctrl_c_between_the_halves_of_exchange() -> None:
    """The interrupted rank tells the peers that its second half does not come."""
    bootstraps = _core.thread_bootstraps(2)
    go = threading.Event()
    errors: list[Any] = []

    def peer() -> None:
        comm = _core.connect(1, 2, bootstrap=bootstraps[1], timeout=SECONDS)
        go.wait(SECONDS)
        try:
            comm.exchange(np.zeros(2), [1, 1])
        except Error as error:
            errors.append(error)
        errors.append(comm.exchange(np.full(2, 1.0), [1, 1])[0].tolist())
        comm.close()

    thread = threading.Thread(target=peer)
    thread.start()
    comm = _core.connect(0, 2, bootstrap=bootstraps[0], timeout=SECONDS)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        comm.exchange(np.zeros(2), [1, 1])
    assert time.monotonic() - start < 1
    go.set()
    assert comm.exchange(np.full(2, 5.0), [1, 1])[0].tolist() == [5, 1]
    comm.close()
    thread.join(SECONDS)
    assert isinstance(errors[0], MismatchError) and "KeyboardInterrupt" in str(errors[0]) and errors[1] == [5, 1]
