"""fork() while an exchange is under way: the child gets an error at once, the parent goes on."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np

import a2a

from ..harness import Answer, Report, attempt, connect, exchange, fork, job_name, judge, run, worse
from ..rows import row

CALLS: dict[str, Callable[[a2a.Communicator], Any]] = {
    "alltoall": lambda c: c.alltoall(np.zeros(c.size), np.zeros(c.size)),
    "barrier": lambda c: c.barrier(),
    "split": lambda c: c.split(0),
    "shrink": lambda c: c.shrink(timeout=5),
    "empty": lambda c: c.empty(10),
    "allgather_bytes": lambda c: c.allgather_bytes(b"x"),
}


def fork_in_flight(rank: int, n: int, job: str, name: str, forks: int) -> list[Answer]:
    """The children of rank 0 answer first, then the parent; the parent's exchange is what they interrupt."""
    comm = connect(rank, n, job)
    send, recv = np.repeat(np.arange(n) + 10 * rank, 50_000), np.full(n * 50_000, -1)
    work = comm.alltoall(send, recv, async_op=True)
    assert work is not None
    children = []
    for i in range(forks if rank == 0 else 0):
        call = CALLS[name] if i % 2 == 0 else (lambda _: work.wait())
        pid, reader = fork(lambda call=call: attempt(call, comm))  # type: ignore[misc]
        with os.fdopen(reader, "rb") as file:
            children.append(pickle.loads(file.read()))
        os.waitpid(pid, 0)
    own = attempt(work.wait, right=lambda: bool((recv.reshape(n, -1).T == 10 * np.arange(n) + rank).all()))
    if not exchange(comm, 10):
        own.kind = "wrong"
    comm.close()
    return [own, *children]


@row("forked in mid-flight", "child: AbortedError, p99 <= 10 ms; parent right", 4, 300, within=0.01)
def forked(chance: random.Random) -> Report:
    n, name = chance.choice([2, 3]), chance.choice(sorted(CALLS))
    ends = run(n, fork_in_flight, n, job_name(), name, 2)
    others = list(range(1, n))
    children = [judge(ends, ["AbortedError"], ["fork"], but=others, at=i) for i in (1, 2)]
    report = worse(judge(ends, (), must_raise=False), *children)
    report.seconds = max((answer.seconds for answer in ends[0].answers[1:]), default=None)
    return report


def square(x: int) -> int:
    return x * x


def use_multiprocessing(rank: int, n: int, job: str, method: str) -> Answer:
    comm = connect(rank, n, job)
    comm.barrier()

    def work() -> None:
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(square, range(20)) == [x * x for x in range(20)]

    answer = attempt(work)
    if not exchange(comm, 1000):
        answer.kind = "wrong"
    comm.close()
    return answer


@row("multiprocessing beside it (fork, spawn)", "the right result", 1, 40)
def pools(chance: random.Random) -> Report:
    ends = run(2, use_multiprocessing, 2, job_name(), chance.choice(["fork", "spawn"]))
    return judge(ends, (), must_raise=False)
