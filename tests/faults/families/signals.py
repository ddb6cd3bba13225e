"""Ctrl-C in a blocked call: KeyboardInterrupt at once, and the peers are not disturbed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import a2a

from ..harness import Answer, Board, Report, attempt, connect, exchange, job_name, judge, run, worse
from ..rows import row

INTERRUPTED = ("KeyboardInterrupt",)
X = np.zeros(60_000)
BLOCKED: dict[str, Callable[[a2a.Communicator], Any]] = {
    "barrier": lambda c: c.barrier(),
    "alltoall": lambda c: c.alltoall(X, X.copy()),
    "allgather": lambda c: c.allgather(X[:10], np.zeros(10 * c.size)),
    "exchange": lambda c: c.exchange(X[: c.size], [1] * c.size),
    "split": lambda c: c.split(0),
    "work": lambda c: c.alltoall(X, X.copy(), async_op=True).wait(),  # type: ignore[union-attr]
}


def block(rank: int, n: int, job: str, name: str, board: Board) -> list[Answer] | None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    comm = connect(rank, n, job)
    comm.barrier()
    board.words[rank] = 1
    if rank == 0:
        while board.words[0] != 2:
            time.sleep(0.001)
        second = attempt(BLOCKED[name], comm)
        return [second, Answer("right" if exchange(comm, 10) else "wrong", time.monotonic())]
    if rank != 1:
        return [attempt(BLOCKED[name], comm), Answer("right" if exchange(comm, 10) else "wrong", time.monotonic())]
    answer = attempt(BLOCKED[name], comm)
    # The interrupted operation goes on: it counts, and the next one is in step.
    return [answer, Answer("right" if exchange(comm, 10) else "wrong", time.monotonic())]


@row("Ctrl-C in a blocked call", "KeyboardInterrupt, p99 <= 100 ms; peers right", 6, 300, within=0.1)
def interrupted(chance: random.Random) -> Report:
    n, name, when = chance.choice([2, 3]), chance.choice(sorted(BLOCKED)), [0.0]
    board = Board(n)

    def during(pids: list[int]) -> None:
        board.await_all(1)
        time.sleep(0.01 + chance.random() * 0.05)  # spinning, or asleep already
        when[0] = time.monotonic()
        os.kill(pids[1], signal.SIGINT)
        time.sleep(0.12)
        board.words[0] = 2

    ends = run(n, block, n, job_name(), name, board, during=during)
    mine = judge(ends, INTERRUPTED, since=when[0], but=[r for r in range(n) if r != 1])
    # exchange() has two steps; its second one never comes after Ctrl-C in the first, and the peers are told.
    told = ["MismatchError"] if name == "exchange" else []
    peers = judge(ends, told, ["rank 1 does not take part", "KeyboardInterrupt"], but=[1], must_raise=False)
    return worse(mine, peers, judge(ends, (), at=1, must_raise=False))


def wait_for_rank_0(rank: int, job: str, board: Board) -> Answer:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    board.words[0] = 1
    return attempt(connect, 1, 2, job)


@row("Ctrl-C while joining", "KeyboardInterrupt, p99 <= 100 ms", 3, 200, within=0.1)
def interrupted_joining(chance: random.Random) -> Report:
    board, when = Board(1), [0.0]

    def during(pids: list[int]) -> None:
        board.await_all(1)
        time.sleep(0.01 + chance.random() * 0.05)
        when[0] = time.monotonic()
        os.kill(pids[0], signal.SIGINT)

    ends = run(1, wait_for_rank_0, job_name(), board, during=during)
    return judge(ends, INTERRUPTED, since=when[0])


INSIDE: dict[str, Callable[[a2a.Communicator], Any]] = {
    "barrier": lambda c: c.barrier(),
    "alltoall": lambda c: c.alltoall(X, X.copy()),
    "split": lambda c: c.split(0),
    "allgather_bytes": lambda c: c.allgather_bytes(b"x"),
    "group": lambda c: c.group(range(c.size)),
}


def call_inside(rank: int, n: int, job: str, outer: str, inner: str) -> Answer:
    comm = connect(rank, n, job)
    comm.barrier()
    if rank == 0:
        signal.signal(signal.SIGALRM, lambda *_: INSIDE[inner](comm))
        signal.setitimer(signal.ITIMER_REAL, 0.02)
    else:
        time.sleep(0.08)

    def calls() -> None:
        INSIDE[outer](comm)
        if rank != 0:
            INSIDE[inner](comm)

    return attempt(calls, right=lambda: exchange(comm, 10))


@row("a signal handler that calls inside a call", "the right result", 6, 300)
def inside(chance: random.Random) -> Report:
    n, outer, inner = chance.choice([2, 3]), chance.choice(sorted(INSIDE)), chance.choice(sorted(INSIDE))
    return judge(run(n, call_inside, n, job_name(), outer, inner), (), must_raise=False)
