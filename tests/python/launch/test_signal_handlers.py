"""Calls that begin inside a call: in signal handlers, finalisers and callbacks, and in a child that a handler forks."""

from __future__ import annotations

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

import a2a

Call = Callable[[Any], Any]


def zeros() -> Any:
    return np.zeros(2, np.int64)


WAITS: dict[str, Call] = {
    "alltoall": lambda c: c.alltoall(zeros(), zeros()),
    "work": lambda c: c.alltoallv(zeros(), [1, 1], zeros(), [1, 1], async_op=True).wait(),
    "plan": lambda c: c.plan_alltoall(zeros(), zeros()).run(zeros(), zeros()),
    "views": lambda c: c.allgather_views(c.empty(4)),
    "barrier": lambda c: c.barrier(),
    "bytes": lambda c: c.allgather_bytes(b"x"),
    "split": lambda c: c.split(0),
    "group": lambda c: c.group([0, 1]),
    "close": lambda c: c.close(),
    "shrink": lambda c: c.shrink(timeout=10),
}


class Alarm(Exception):
    pass


def raise_alarm(_: Any) -> None:
    raise Alarm


def fork(_: Any) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


# What the handler on rank 0 does, and whether rank 1 does the same after its own call.
DOES: dict[str, tuple[Call, bool]] = {
    "raise": (raise_alarm, False),
    "fork": (fork, False),
    "abort": (lambda c: c.abort(), False),
    **{name: (WAITS[name], True) for name in ("alltoall", "barrier", "bytes", "split", "close", "shrink")},
}
GONE = (a2a.AbortedError, a2a.PeerLostError)


def call_in_handlers(comm: a2a.Communicator, wait: str) -> list[str]:
    wrong, begun = [], comm.empty(1)
    seen = comm.allgather_views(begun)
    for number, (does, (act, both)) in enumerate(DOES.items(), 1):
        part = comm.split(0)
        ends = {"close", "shrink", "abort"} & {wait, does}
        said = []

        def attempt(call: Call, part: Any = part, said: list[str] = said) -> None:
            try:
                call(part)
            except Alarm:
                raise
            except a2a.Error as error:
                said.append(type(error).__name__)

        def handler(*_: Any, act: Call = act, attempt: Call = attempt, number: int = number) -> None:
            begun[0] = number
            attempt(act)

        comm.barrier()
        if comm.rank == 0:
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            try:
                attempt(WAITS[wait])
            except Alarm:
                said.append("Alarm")
        else:
            while seen[0][0] != number:
                time.sleep(0.001)
            attempt(WAITS[wait])
            if both:
                attempt(act)
        expected = ["Alarm"] if does == "raise" and comm.rank == 0 else []
        if not ends and said != expected:
            wrong.append(f"{does}: {said}")
        received = np.full(2, -1)
        try:
            part.alltoall(np.full(2, comm.rank), received, timeout=10)
            if ends or received.tolist() != [0, 1]:
                wrong.append(f"{does}: {received}")
        except GONE as error:
            if not ends:
                wrong.append(f"{does}: {error}")
    return wrong


@pytest.mark.parametrize(
    "wait", [pytest.param(wait, marks=pytest.mark.full) if at % 3 else wait for at, wait in enumerate(WAITS)]
)
def test_a_signal_handler_calls(wait: str, run_ranks: Callable[..., list[Any]]) -> None:
    assert run_ranks(2, call_in_handlers, wait) == [[], []]


def return_in_a_child(comm: a2a.Communicator) -> list[int]:
    """The handler forks, and both processes return into the call."""
    codes = []
    for name in ("split", "barrier"):
        children: list[int] = []
        if comm.rank == 0:
            parent = os.getpid()
            signal.signal(signal.SIGALRM, lambda *_, children=children: children.append(os.fork()))  # type: ignore[misc]
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            try:
                WAITS[name](comm)
            except a2a.AbortedError:
                if os.getpid() != parent:
                    os._exit(7)
                raise
            codes += [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        else:
            time.sleep(0.2)
            WAITS[name](comm)
    return codes


def test_a_child_returns_into_a_call(run_ranks: Callable[..., list[Any]]) -> None:
    assert run_ranks(2, return_in_a_child, timeout=20)[0] == [7, 7]


class Last:
    """Calls when it is let go of."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call, self.me = call, self

    def __del__(self) -> None:
        self.call()


class Collecting:
    """A tensor at whose sight something happens."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act

    def __dlpack__(self, **kwargs: Any) -> Any:
        self.act()
        return zeros().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def call_in_callbacks(comm: a2a.Communicator) -> None:
    def finalise() -> None:
        Last(comm.barrier)
        gc.collect()

    def drop() -> None:
        thing = Last(lambda: None)
        thing.me = None  # type: ignore[assignment]
        weakref.finalize(thing, comm.split, 0)

    for act, same in ((finalise, comm.barrier), (drop, lambda: comm.split(0))):
        received = zeros()
        if comm.rank == 0:
            comm.alltoall(Collecting(act), received)
        else:
            same()
            comm.alltoall(np.array([5, 6]), received)
        assert received.tolist() == ([0, 5] if comm.rank == 0 else [0, 6])


def test_finalisers_call(run_ranks: Callable[..., list[Any]]) -> None:
    run_ranks(2, call_in_callbacks)


def close_from_another_thread(comm: a2a.Communicator) -> None:
    part: Any = comm.split(0)
    if comm.rank == 0:
        thread = threading.Thread(target=part.allgather_bytes, args=(b"x",))
        thread.start()
        time.sleep(0.1)
        with pytest.raises(a2a.InvalidArgumentError, match="another thread"):
            part.close()
        thread.join()
        with pytest.raises(GONE):
            part.barrier()
    else:
        time.sleep(0.3)
        part.allgather_bytes(b"x")
        with pytest.raises(a2a.MismatchError, match="another thread"):
            part.close()


def test_another_thread_closes(run_ranks: Callable[..., list[Any]]) -> None:
    run_ranks(2, close_from_another_thread)
