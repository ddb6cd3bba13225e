"""A process in the chaos of generations: each of its endpoints has a thread, which does the calls of a driver."""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import a2a

from .. import chaos_ranks
from ..chaos_ranks import OPERATIONS, Step, WrongBytes
from ..harness import Answer, attempt, exchange, works

OPERATION_SECONDS = 20.0
LOSING_SECONDS = 10.0  # in which somebody is missed, at the latest

Tell = Callable[[str, Answer], None]


@dataclass(frozen=True)
class Call:
    """A connect() of one endpoint, and what it does with the communicator."""

    handles: list[str]
    generation: int
    timeout: float
    late: float = 0.0
    steps: list[Step] = field(default_factory=list)
    first: str = ""
    """"drops" or "aborts": what it does with the communicator at once."""
    until_lost: bool = False
    """Whether it exchanges until an error comes."""
    shrinks: bool = False
    """Whether it shrinks then."""
    leaves: str = "kept"
    """What becomes of the communicator: "kept", "dropped", "closed", "in flight" or "views"."""
    idle: bool = False
    """Where an operation is left in flight: this rank does not begin it."""
    forgets: bool = False
    """Drops what it keeps of former generations when the new one has come."""


class Member:
    """An endpoint, its communicator, and what it keeps of former generations."""

    def __init__(self, address: str | None, secret: str | None) -> None:
        self.place, self.calls = (address, secret), queue.SimpleQueue[tuple[Call, Tell] | None]()
        self.comm: a2a.Communicator | None = None
        self.kept: list[Any] = []
        self.renew()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def renew(self) -> str:
        """Close the endpoint and make another one. Return its handle."""
        self.endpoint: a2a.Endpoint | None = None
        self.comm, self.kept = None, []  # a communicator has its endpoint
        gc.collect()
        self.endpoint = a2a.Endpoint(address=self.place[0], secret=self.place[1])
        return self.endpoint.handle

    def _serve(self) -> None:
        while (work := self.calls.get()) is not None:
            call, tell = work
            try:
                self._take(call, tell)
            except BaseException as error:
                tell("harness", Answer("error", time.monotonic(), type(error).__name__, str(error)))
            tell("done", Answer("right", time.monotonic()))
            del work, call, tell

    def _take(self, call: Call, tell: Tell) -> None:
        time.sleep(call.late)
        made: list[a2a.Communicator] = []
        endpoint = self.endpoint
        assert endpoint is not None
        answer = attempt(lambda: made.append(endpoint.connect(call.handles, call.generation, timeout=call.timeout)))
        if made:
            comm = made[0]
            answer.note = (comm.rank, comm.size, comm.generation, comm.handles == call.handles, list(comm.joined))
            comm.timeout = OPERATION_SECONDS
        tell("connect", answer)
        if made:
            self._look_back(call.forgets, tell)
            self.comm = made.pop()
            self._use(call, tell)

    def _look_back(self, forgets: bool, tell: Tell) -> None:
        """Whatever is left of former generations says so at once, or still has its bytes."""
        if self.comm is not None:
            self.kept.append(("former", self.comm.barrier, None))
        for what, call, right in self.kept:
            tell(what, attempt(call, right=right) if right else attempt(call))
        if forgets or len(self.kept) > 6:
            self.kept.clear()

    def _use(self, call: Call, tell: Tell) -> None:
        comm = self.comm
        assert comm is not None
        if call.first == "drops":
            self.comm = None
            return
        if call.first == "aborts":
            comm.abort("chaos")
        for step in call.steps:
            answer = _checked(OPERATIONS[step.operation], comm, step)
            tell(f"step {step.operation}", answer)
            if answer.kind != "right":
                break
        if call.until_lost:
            tell("loss", attempt(_until_lost, comm))
            if call.shrinks:
                tell("shrink", _checked(_shrink, comm))
        if not comm.broken:
            self._leave(call, comm, tell)

    def _leave(self, call: Call, comm: a2a.Communicator, tell: Tell) -> None:
        if call.leaves == "dropped":
            self.comm = None
        elif call.leaves == "closed":
            tell("close", attempt(comm.close))
            self.comm = None
        elif call.leaves == "in flight" and not call.idle:
            send, recv = np.arange(comm.size * 3000) + comm.rank, np.zeros(comm.size * 3000, int)
            work = comm.alltoall(send, recv, async_op=True)
            self.kept.append(("work in flight", work.wait, None))
        elif call.leaves == "views":
            self._look(comm, tell)

    def _look(self, comm: a2a.Communicator, tell: Tell) -> None:
        held: list[Any] = []
        values = np.asarray(comm.empty(50_000, "int32"))
        values[:] = comm.rank
        answer = attempt(lambda: held.append(comm.allgather_views(values)))
        tell("views", answer)
        if held:
            views, size = held[0], comm.size
            same = lambda: all(bool((np.asarray(views[rank]) == rank).all()) for rank in range(size))  # noqa: E731
            self.kept.append(("former view", lambda: None, same))


def _checked(operation: Callable[..., None], *args: Any) -> Answer:
    answer = attempt(operation, *args)
    if answer.error == WrongBytes.__name__:
        answer.kind = "wrong"
    return answer


def _until_lost(comm: a2a.Communicator) -> None:
    until = time.monotonic() + LOSING_SECONDS
    i = 0
    while time.monotonic() < until:
        if not exchange(comm, 1 + 700 * (i % 3), i):
            raise WrongBytes(f"round {i}")
        i += 1


def _shrink(comm: a2a.Communicator) -> None:
    """Until nobody dies any more."""
    for _ in range(8):
        try:
            comm = comm.shrink(timeout=OPERATION_SECONDS)
            comm.timeout = OPERATION_SECONDS
            if not works(comm):
                raise WrongBytes("after shrink()")
            chaos_ranks.several_in_flight(comm, Step("several_in_flight", comm.size, 300))
            return
        except (a2a.PeerLostError, a2a.AbortedError):
            if not comm.broken:
                raise
    raise RuntimeError("shrink() never came to an end")


# ---- the process -----------------------------------------------------------------------------------------------------


def measure() -> dict[str, int]:
    """What must not grow with the number of generations."""
    gc.collect()
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "a2a" in line]
    sizes = [[int(end, 16) for end in line.split()[0].split("-")] for line in maps]
    descriptors: collections.Counter[str] = collections.Counter()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists this directory
            target = str(entry.readlink())
            if not target.startswith("/proc/"):  # a process makes those once
                descriptors[f"descriptors of {target.split('[')[0].split('/')[-1]}"] += 1
    threads = len(list(Path("/proc/self/task").iterdir()))
    mapped = sum(end - begin for begin, end in sizes)
    return {**descriptors, "mappings": len(maps), "mapped bytes": mapped, "threads": threads}


def serve(driver: Connection, host: str, members: int, address: str | None, secret: str | None) -> None:
    """Do what the driver says until it says no more. Endpoints of one host's name share memory."""
    if host:
        os.environ["A2A_HOSTS"] = host
    mine, lock = [Member(address, secret) for _ in range(members)], threading.Lock()

    def tell(*what: Any) -> None:
        with lock:
            driver.send(what)

    tell("handles", [member.endpoint.handle for member in mine if member.endpoint is not None])
    while (order := driver.recv()) is not None:
        what, arguments = order[0], order[1:]
        if what == "call":
            index, call = arguments
            mine[index].calls.put((call, lambda label, answer, index=index: tell("answer", index, label, answer)))
            del call
        elif what == "renew":
            tell("renewed", mine[arguments[0]].renew())
        elif what == "measure":
            tell("measured", measure())
    for member in mine:
        member.calls.put(None)
        member.thread.join()
    mine.clear()
    gc.collect()


def steps_of(chance: Any, operations: Sequence[str], most: int) -> list[Step]:
    return [
        Step(chance.choice(list(operations)), chance.getrandbits(30), chance.choice([1, 30, 1000, 20_000]))
        for _ in range(chance.randint(1, most))
    ]
