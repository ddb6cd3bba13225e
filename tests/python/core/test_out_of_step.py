"""Every call that a peer could have matched takes its number, whatever fails first, so that no rank is ever a step
behind another."""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import a2a
from a2a._core import refuse

N = 3


def zeros() -> Any:
    return np.zeros(N, np.int64)


class NoBool:
    def __bool__(self) -> bool:
        raise SystemExit("no bool")


CALLS: dict[str, Callable[[a2a.Communicator], Any]] = {
    "alltoall": lambda c: c.alltoall(zeros(), zeros()),
    "alltoallv": lambda c: c.alltoallv(zeros(), [1] * N, zeros(), [1] * N),
    "alltoall_list": lambda c: c.alltoall_list([zeros()] * N, [zeros() for _ in range(N)]),
    "allgather": lambda c: c.allgather(np.zeros(1), np.zeros(N)),
    "allgather_bytes": lambda c: c.allgather_bytes(b"x"),
    "allgather_views": lambda c: c.allgather_views(c.empty(4)),
    "barrier": lambda c: c.barrier(),
    "split": lambda c: c.split(0),
    "group": lambda c: c.group([0, 1, 2]),
    "exchange": lambda c: c.exchange(zeros(), [1] * N),
    "global_scatter": lambda c: c.global_scatter(zeros(), [1] * N, [1] * N),
    "global_gather": lambda c: c.global_gather(zeros(), [1] * N, [1] * N),
    "run": lambda c: c.plan_alltoall(zeros(), zeros()).run(zeros(), zeros()),
    "allreduce": lambda c: c.allreduce(zeros()),
    "reduce_scatterv": lambda c: c.reduce_scatterv(zeros(), [1] * N, zeros()[:1]),
    "broadcast": lambda c: c.broadcast(zeros()),
    "allgatherv": lambda c: c.allgatherv(zeros()[:1], zeros(), [1] * N),
    "quantized": lambda c: a2a.quantized_all_reduce(c, np.zeros(N, np.int8), 1.0),
    "block quantized": lambda c: a2a.block_quantized_all_reduce(c, np.zeros(N, np.float32)),
}
# The call of rank 1 where the others make the one above.
WRONG: list[tuple[str, Callable[[Any], Any]]] = [
    ("alltoall", lambda c: c.alltoall(zeros())),
    ("alltoall", lambda c: c.alltoall(zeros(), zeros(), foo=1)),
    ("alltoall", lambda c: c.alltoall(zeros(), zeros(), async_op=NoBool())),
    ("alltoallv", lambda c: c.alltoallv(zeros(), [1] * N)),
    ("alltoall_list", lambda c: c.alltoall_list()),
    ("allgather", lambda c: c.allgather(send=np.zeros(1))),
    ("allgather_bytes", lambda c: c.allgather_bytes()),
    ("allgather_bytes", lambda c: c.allgather_bytes(b"x", 3.0)),
    ("allgather_views", lambda c: c.allgather_views()),
    ("barrier", lambda c: c.barrier(5)),
    ("split", lambda c: c.split()),
    ("group", lambda c: c.group(0, 1, 2)),
    ("exchange", lambda c: c.exchange(zeros())),
    ("global_scatter", lambda c: c.global_scatter(zeros(), [1] * N)),
    ("global_gather", lambda c: c.global_gather()),
    ("run", lambda c: c.plan_alltoall(zeros(), zeros()).run()),
    ("allreduce", lambda c: c.allreduce()),
    ("reduce_scatterv", lambda c: c.reduce_scatterv(zeros(), zeros())),
    ("broadcast", lambda c: c.broadcast(zeros(), 0, 0)),
    ("allgatherv", lambda c: c.allgatherv(zeros(), zeros())),
    ("quantized", lambda c: a2a.quantized_all_reduce(c, np.zeros(N, np.int8))),  # type: ignore[call-arg]
    ("block quantized", lambda c: a2a.block_quantized_all_reduce(comm=c)),  # type: ignore[call-arg]
]


def in_step(comm: a2a.Communicator) -> None:
    """Every step meets the same step of the other ranks."""
    for step in range(3):
        received = np.full(comm.size, -1)
        comm.alltoall(np.full(comm.size, 100 * step + comm.rank), received, timeout=10)
        assert received.tolist() == [100 * step + rank for rank in range(comm.size)]


def call_wrongly(comm: a2a.Communicator) -> list[str]:
    told = []
    for name, wrong in WRONG:
        error: Any = (TypeError, SystemExit) if comm.rank == 1 else a2a.MismatchError
        with pytest.raises(error) as raised:
            (wrong if comm.rank == 1 else CALLS[name])(comm)
        told.append(f"{name}: {raised.value}")
        in_step(comm)
    return told


def test_arguments_that_do_not_fit_the_signature(run_ranks: Callable[..., list[Any]]) -> None:
    first, own, last = run_ranks(N, call_wrongly)
    for mine, *others in zip(own, first, last, strict=True):
        reason = mine.partition(": ")[2]
        for told in others:
            assert "rank 1 does not take part" in told and told.endswith(reason)


@pytest.mark.ranks(N)
def test_plans_that_could_not_be_made(comm: a2a.Communicator) -> None:
    if comm.rank == 1:
        with pytest.raises(TypeError):
            comm.plan_alltoall(zeros())  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            comm.plan_alltoall(zeros(), zeros()).transpose(1)  # type: ignore[call-arg]
    else:
        comm.plan_alltoall(zeros(), zeros())
        comm.plan_alltoall(zeros(), zeros()).transpose()
    comm.plan_alltoall(zeros(), zeros()).run(zeros(), zeros())  # the same number on all ranks


@contextmanager
def no_more_threads() -> Iterator[None]:
    """The stack of no further thread fits."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 20), before[1]))
    over, parked = threading.Event(), []
    try:
        with pytest.raises(RuntimeError, match="thread"):
            while True:  # some stacks are left from earlier threads
                thread = threading.Thread(target=over.wait)
                thread.start()
                parked.append(thread)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        over.set()
        for thread in parked:
            thread.join()


def call_without_threads(comm: a2a.Communicator) -> list[str]:
    told = []
    for name in ("allgather_bytes", "split", "group"):
        if comm.rank == 1:
            with no_more_threads(), pytest.raises(a2a.BackendError, match="cannot start a thread") as raised:
                CALLS[name](comm)
            told.append(str(raised.value))
        else:
            with pytest.raises(a2a.MismatchError) as refused:
                CALLS[name](comm)
            told.append(str(refused.value))
        in_step(comm)
    return told


def test_a_control_call_whose_thread_does_not_start(run_ranks: Callable[..., list[Any]]) -> None:
    for told in run_ranks(N, call_without_threads)[::2]:
        assert all("rank 1 does not take part" in text and "cannot start a thread" in text for text in told)


def call_beside_a_control_call(comm: a2a.Communicator) -> str:
    """On rank 0 another thread calls while the first is in the middle of a split: told after it, not in between."""
    if comm.rank == 0:
        thread = threading.Thread(target=comm.split, args=(0,))
        thread.start()
        time.sleep(0.2)
        with pytest.raises(a2a.InvalidArgumentError, match="another thread") as refused:
            comm.barrier()
        thread.join()
    else:
        time.sleep(0.4)
        assert comm.split(0) is not None
        with pytest.raises(a2a.MismatchError, match="another thread") as refused:
            comm.barrier()
    in_step(comm)
    return str(refused.value)


def test_another_thread_beside_a_control_call(run_ranks: Callable[..., list[Any]]) -> None:
    run_ranks(N, call_beside_a_control_call)


class Alarm(Exception):
    pass


def raise_alarm(*_: Any) -> None:
    raise Alarm


@pytest.mark.ranks(2)
def test_interrupted_while_it_waits_for_an_interrupted_call(comm: a2a.Communicator) -> None:
    """The second signal comes while a call still waits for the control call that the first one interrupted."""
    if comm.rank == 0:
        signal.signal(signal.SIGALRM, raise_alarm)
        for call in (CALLS["split"], lambda c: c.alltoall(np.zeros(2), np.zeros(2)), CALLS["barrier"]):
            with pytest.raises(Alarm):
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                call(comm)
    else:
        time.sleep(1)
        assert comm.split(0) is not None
        for call in (lambda c: c.alltoall(np.zeros(2), np.zeros(2)), CALLS["barrier"]):
            with pytest.raises(a2a.MismatchError, match="rank 0 does not take part"):
                call(comm)
    in_step(comm)


@pytest.mark.ranks(2)
def test_halves_of_an_exchange(comm: a2a.Communicator) -> None:
    """The first half of one is not taken for the second half of the other, though both move 8 bytes."""
    if comm.rank == 0:
        signal.signal(signal.SIGALRM, lambda *_: exchange(comm))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        exchange(comm)
    else:
        time.sleep(0.3)
        exchange(comm)
        exchange(comm)
    in_step(comm)


def exchange(comm: a2a.Communicator) -> None:
    with pytest.raises(a2a.MismatchError, match=r"exchange #\d: rank 0 is in its (first|second) half, rank 1"):
        comm.exchange(np.ones(2, np.int64), [1, 1])


@pytest.mark.ranks(2)
def test_bytes_and_tensors_are_not_the_same_call(comm: a2a.Communicator) -> None:
    with pytest.raises(a2a.MismatchError, match="rank 0 calls allgather_bytes, rank 1 calls allgather"):
        if comm.rank == 0:
            comm.allgather_bytes(b"x")
        else:
            comm.allgather(np.zeros(8, np.uint8), np.zeros(16, np.uint8))
    in_step(comm)


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Posing(str):
    def encode(self, *_: Any) -> bytes:  # type: ignore[override]
        raise RuntimeError("no bytes")

    def __str__(self) -> str:
        return self


# A reason, and what the peers read of it.
REASONS: list[tuple[Any, str]] = [
    ("cannot read \udce9t\udce9.bin", r"cannot read \udce9t\udce9.bin"),
    ("a\0b", r"a\0b"),
    ("é" * 10_000_000, "é" * 150),
    (None, "None"),
    (b"\xff", r"b'\xff'"),
    (ValueError("why"), "why"),
    (Speechless(), "an error without words"),
    (Posing("words"), "words"),
    ("", "str"),
]


def give_reasons(comm: a2a.Communicator) -> list[tuple[str, str]]:
    told = []
    for reason, _ in REASONS:
        part: Any = comm.split(0)
        if comm.rank == 0:
            refuse(part, reason if isinstance(reason, Exception) else ValueError(reason))
            comm.barrier()
            part.abort(reason)
            continue
        with pytest.raises(a2a.MismatchError) as refused:
            part.barrier()
        comm.barrier()
        with pytest.raises(a2a.AbortedError) as aborted:
            part.barrier()
        told.append((str(refused.value), str(aborted.value)))
    part = comm.split(0)
    if comm.rank == 0:
        with pytest.raises(TypeError):
            part.abort(1, 2)
    with pytest.raises(a2a.AbortedError, match="abort"):
        part.barrier()
    return told


def test_reasons_that_are_no_plain_text(run_ranks: Callable[..., list[Any]]) -> None:
    told = run_ranks(2, give_reasons)[1]
    for (_, words), (refused, aborted) in zip(REASONS, told, strict=True):
        assert words in aborted and "rank 0 aborted" in aborted
        if words not in ("str", "None"):
            assert words in refused
