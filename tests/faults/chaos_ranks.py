"""What a rank does in a run of chaos: the steps of a plan, with the faults that are its own."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import a2a
from a2a import testing

from .harness import Answer, attempt, fork, works

TIMEOUT = 20.0
JOINING = 1.5  # where a rank never comes
BROKEN = ("PeerLostError", "TimeoutError", "AbortedError", "BackendError", "KeyboardInterrupt")


@dataclass(frozen=True)
class Fault:
    """Hits that rank when it comes to that step, or so many seconds later."""

    kind: str
    rank: int
    step: int
    delay: float


@dataclass(frozen=True)
class Step:
    """An operation, whose counts and bytes come of its seed."""

    operation: str
    seed: int
    rows: int


@dataclass(frozen=True)
class Plan:
    transport: str
    ranks: int
    steps: list[Step] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Plan:
        read = json.loads(text)
        steps, faults = ([kind(**one) for one in read[name]] for kind, name in ((Step, "steps"), (Fault, "faults")))
        return Plan(read["transport"], read["ranks"], steps, faults)

    def has(self, *kinds: str) -> bool:
        return any(fault.kind in kinds for fault in self.faults)

    @property
    def timeout(self) -> float:
        return JOINING if self.has("never comes") else TIMEOUT


# ---- operations: each makes its call and says whether every byte is what the oracle says ---------------------------


class WrongBytes(Exception):
    pass


def _compare(recv: Any, expected: Any) -> None:
    if difference := testing.first_difference(recv, expected):
        raise WrongBytes(difference)


def _some(comm: a2a.Communicator, step: Step, shared: bool = False) -> tuple[Any, ...]:
    """Arguments of an alltoallv, and what comes of it."""
    rng = np.random.default_rng(step.seed)
    counts = testing.random_counts(rng, comm.size, step.rows)
    sends = [testing.random_array(rng, (int(row.sum()), 3), "int32") for row in counts]
    recvs = [testing.poison(np.empty((int(column.sum()), 3), "int32")) for column in counts.T]
    expected = testing.alltoallv(sends, counts, recvs)[comm.rank]
    send, recv = sends[comm.rank], recvs[comm.rank]
    if shared:
        own = np.asarray(comm.empty(send.shape, "int32"))
        own[:] = send
        send = own
    return send, counts[comm.rank], recv, counts[:, comm.rank], expected


def alltoallv(comm: a2a.Communicator, step: Step, fault: str = "", shared: bool = False) -> None:
    send, to, recv, from_, expected = _some(comm, step, shared)
    if fault == "wrong count":
        peer = (comm.rank + 1) % comm.size
        from_ = from_ + np.eye(comm.size, dtype=from_.dtype)[peer]
        recv = np.concatenate([recv, recv[:1] if len(recv) else np.zeros((1, 3), "int32")])
    if fault == "read-only output":
        recv.flags.writeable = False
    comm.alltoallv(send, to, recv, from_)
    _compare(recv, expected)


def in_shared_memory(comm: a2a.Communicator, step: Step) -> None:
    alltoallv(comm, step, shared=True)


def alltoall(comm: a2a.Communicator, step: Step) -> None:
    rng = np.random.default_rng(step.seed)
    sends = [testing.random_array(rng, comm.size * step.rows, "float32") for _ in range(comm.size)]
    recv = testing.poison(np.empty_like(sends[0]))
    comm.alltoall(sends[comm.rank], recv)
    _compare(recv, testing.alltoall(sends)[comm.rank])


def allgather(comm: a2a.Communicator, step: Step) -> None:
    rng = np.random.default_rng(step.seed)
    sends = [testing.random_array(rng, step.rows, "int64") for _ in range(comm.size)]
    recv = testing.poison(np.empty(comm.size * step.rows, "int64"))
    comm.allgather(sends[comm.rank], recv)
    _compare(recv, testing.allgather(sends)[comm.rank])


def allgatherv(comm: a2a.Communicator, step: Step) -> None:
    rng = np.random.default_rng(step.seed)
    counts = [int(count) for count in rng.integers(0, step.rows + 1, comm.size)]
    sends = [testing.random_array(rng, (count, 2), "int32") for count in counts]
    recv = testing.poison(np.empty((sum(counts), 2), "int32"))
    expected = testing.allgatherv(sends, [recv] * comm.size)[comm.rank]
    comm.allgatherv(sends[comm.rank], recv, counts)
    _compare(recv, expected)


def reduced(comm: a2a.Communicator, step: Step) -> None:
    """Sums for all, one rank's tensor for all, and a message in both directions of a ring."""
    rng, size, rank = np.random.default_rng(step.seed), comm.size, comm.rank
    sends = [rng.integers(-99, 99, 2 * step.rows + 1) for _ in range(size)]
    recv = testing.poison(np.empty_like(sends[0]))
    comm.allreduce(sends[rank], recv)
    _compare(recv, testing.allreduce(sends)[rank])
    root, tensor = int(rng.integers(size)), sends[rank].copy()
    comm.broadcast(tensor, root)
    _compare(tensor, sends[root])
    for tag, way in enumerate((1, -1)):
        there = comm.send(sends[rank], (rank + way) % size, tag=tag, async_op=True)
        comm.recv(recv, (rank - way) % size, tag=tag)
        there.wait()
        _compare(recv, sends[(rank - way) % size])


def planned(comm: a2a.Communicator, step: Step) -> None:
    send, to, recv, from_, expected = _some(comm, step)
    plan = comm.plan_alltoallv(send, to, recv, from_)
    for i in range(3):
        plan.run(send + i, recv)
        _compare(recv, expected + i)


def on_several_communicators(comm: a2a.Communicator, step: Step) -> None:
    """Two operations are under way at the same time."""
    with comm.split(0) as one, comm.split(0) as other:  # type: ignore[union-attr]
        under_way = []
        for each in (one, other):
            send, to, recv, from_, expected = _some(each, step)
            under_way.append((each.alltoallv(send, to, recv, from_, async_op=True), recv, expected))
        for work, recv, expected in reversed(under_way):
            work.wait()
            _compare(recv, expected)


def several_in_flight(comm: a2a.Communicator, step: Step) -> None:
    """Operations and messages, some of them on one tensor, waited for in an order of this rank's own."""
    rng = np.random.default_rng(step.seed)
    size, rank, seeds = comm.size, comm.rank, [int(seed) for seed in rng.integers(0, 1 << 30, 3)]
    under_way = []
    for seed, rows in zip(seeds, (step.rows, 600, 5), strict=True):
        send, to, recv, from_, expected = _some(comm, Step("alltoallv", seed, rows))
        under_way.append((comm.alltoallv(send, to, recv, from_, async_op=True), recv, expected))
    shared = [rng.integers(-9, 9, 3 * step.rows + 1) for _ in range(size)]
    mine, root = shared[rank].copy(), int(rng.integers(size))
    received = np.empty_like(mine)
    total = sum(shared)
    once = comm.allreduce(mine, async_op=True)
    twice = comm.allreduce(mine, async_op=True)
    there = comm.send(mine, (rank + 1) % size, tag=1, async_op=True)
    back = comm.recv(received, (rank - 1) % size, tag=1, async_op=True)
    last = comm.broadcast(received, root, async_op=True)
    under_way += [(once, mine, total * size), (twice, mine, total * size), (there, mine, total * size)]
    under_way += [(back, received, total * size), (last, received, total * size)]
    random.Random(step.seed * size + rank).shuffle(under_way)
    for work, _, _ in under_way:
        work.wait()
    for _, recv, expected in under_way:
        _compare(recv, expected)


def dropped(comm: a2a.Communicator, step: Step) -> None:
    """Nobody waits for the operation; the next one is in step all the same."""
    send, to, recv, from_, _ = _some(comm, step)
    comm.alltoallv(send, to, recv, from_, async_op=True)
    del send, recv
    alltoall(comm, Step("alltoall", step.seed, 10))


def forked(comm: a2a.Communicator, step: Step) -> None:
    """A child inherits the communicator amid an operation."""
    send, to, recv, from_, expected = _some(comm, step)
    work = comm.alltoallv(send, to, recv, from_, async_op=True)
    pid, reader = fork(lambda: attempt(comm.barrier))
    with os.fdopen(reader, "rb") as file:
        answer = pickle.loads(file.read())
    os.waitpid(pid, 0)
    if answer.error != "AbortedError":
        raise WrongBytes(f"a forked child met {answer}")
    assert work is not None
    work.wait()
    _compare(recv, expected)


def in_threads(comm: a2a.Communicator, step: Step) -> None:
    """Each thread has a communicator of its own."""
    groups = [comm.split(0) for _ in range(3)]
    errors: list[BaseException] = []

    def exchange(group: Any) -> None:
        try:
            alltoallv(group, step)
            alltoall(group, step)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=exchange, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for group in groups:
        group.close()  # type: ignore[union-attr]
    if errors:
        raise errors[0]


OPERATIONS: dict[str, Callable[..., None]] = {
    one.__name__: one
    for one in (
        alltoallv,
        alltoall,
        allgather,
        allgatherv,
        reduced,
        planned,
        in_shared_memory,
        on_several_communicators,
        several_in_flight,
        dropped,
        forked,
        in_threads,
    )
}

# ---- faults ----------------------------------------------------------------------------------------------------------

IN_CALL = ("wrong count", "read-only output")  # of an alltoallv


class Leaves(Exception):
    """This rank ends by an exception of its own."""


def strike(fault: Fault, comm: a2a.Communicator, helpers: list[Any]) -> None:
    me = os.getpid()
    if fault.kind in ("kill", "Ctrl-C"):
        timer = threading.Timer(fault.delay, os.kill, (me, signal.SIGKILL if fault.kind == "kill" else signal.SIGINT))
        timer.daemon = True
        timer.start()
        helpers.append(timer)
    elif fault.kind == "stop":
        script = f"sleep {fault.delay}; kill -STOP {me}; sleep 0.2; kill -CONT {me}"
        helpers.append(subprocess.Popen(["sh", "-c", script], stderr=subprocess.DEVNULL))
    elif fault.kind == "abort":
        comm.abort("chaos")
    elif fault.kind == "exit":
        os._exit(3)
    elif fault.kind == "exception":
        raise Leaves


def play(plan: Plan, rank: int, meet: Callable[[], a2a.Communicator]) -> list[Answer]:
    """An answer for the meeting, and one for each step up to the one that broke the communicator."""
    mine = {fault.step: fault for fault in plan.faults if fault.rank == rank}
    helpers: list[Any] = []
    if -1 in mine:
        if mine[-1].kind == "never comes":
            return []
        time.sleep(mine[-1].delay)
    comms: list[a2a.Communicator] = []
    answers = [attempt(lambda: comms.append(meet()))]
    try:
        for i, step in enumerate(plan.steps if comms else []):
            answers.append(_take(step, comms[0], mine.get(i), helpers))
            if answers[-1].kind == "wrong" or answers[-1].error in (*BROKEN, "Leaves"):
                break
        if comms and plan.transport in ("shm", "tcp", "ucx") and answers[-1].error == "PeerLostError":
            answers.append(attempt(_shrink, comms[0]))
    finally:
        _let_go(helpers)
    for comm in comms:
        if not plan.has("dropped communicator"):
            with contextlib.suppress(a2a.Error):  # peers may have gone before
                comm.close()
    return answers


def _take(step: Step, comm: a2a.Communicator, fault: Fault | None, helpers: list[Any]) -> Answer:
    def call() -> None:
        if fault is not None:
            strike(fault, comm, helpers)
        if fault is not None and fault.kind in IN_CALL:
            alltoallv(comm, step, fault.kind)
        else:
            OPERATIONS[step.operation](comm, step)

    answer = attempt(call)
    if answer.error == "WrongBytes":
        answer.kind = "wrong"
    return answer


def _shrink(comm: a2a.Communicator) -> None:
    smaller = comm.shrink(timeout=TIMEOUT)
    if not works(smaller):
        raise WrongBytes("after shrink()")
    smaller.close()


def _let_go(helpers: list[Any]) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    for helper in helpers:
        if isinstance(helper, threading.Timer):
            helper.cancel()
        else:
            helper.wait()


# ---- started by mpiexec ----------------------------------------------------------------------------------------------


def main() -> None:
    plan, folder = Plan.from_json(os.environ["CHAOS_PLAN"]), Path(os.environ["CHAOS_FOLDER"])
    rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
    random.seed(rank)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    answers = play(plan, rank, lambda: a2a.init(timeout=plan.timeout))
    (folder / str(rank)).write_bytes(pickle.dumps(answers))
    sys.exit(answers[-1].error == "Leaves")


if __name__ == "__main__":
    main()
