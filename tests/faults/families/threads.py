"""Many Python threads of a rank: on communicators of their own, and on a common one."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..harness import Answer, Report, connect, exchange, job_name, judge, run
from ..rows import row

THREADS, ROUNDS = 6, 30


def in_threads(body: Callable[[int], Any]) -> list[Any]:
    results: list[Any] = [None] * THREADS

    def one(i: int) -> None:
        try:
            results[i] = body(i)
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=one, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def answer(results: list[Any]) -> Answer:
    bad = [repr(result) for result in results if result is not True]
    if not bad:
        return Answer("right", time.monotonic())
    return Answer("wrong" if "False" in bad else "error", time.monotonic(), "Exception", "; ".join(bad)[:500])


def one_each(rank: int, n: int, job: str) -> Answer:
    comm = connect(rank, n, job)
    groups = [comm.split(0) for _ in range(THREADS)]

    def body(i: int) -> bool:
        return all(exchange(groups[i], 100 * (i + 1), k) for k in range(ROUNDS))  # type: ignore[arg-type]

    return answer(in_threads(body))


@row("a communicator for each of 6 threads", "the right result", 4, 400)
def own_communicators(chance: random.Random) -> Report:
    n = chance.choice([2, 3])
    return judge(run(n, one_each, n, job_name()), (), must_raise=False)


def in_turns(rank: int, n: int, job: str) -> Answer:
    """The threads start their operations in an agreed order and wait for them at once."""
    comm, turn, changed = connect(rank, n, job), [0], threading.Condition()

    def body(i: int) -> bool:
        good = True
        for k in range(ROUNDS):
            send, recv = np.arange(n) + 10 * rank + i + k, np.full(n, -1)
            with changed:
                changed.wait_for(lambda k=k: turn[0] == k * THREADS + i)  # type: ignore[misc]
                work = comm.alltoall(send, recv, async_op=True)
                turn[0] += 1
                changed.notify_all()
            work.wait()  # type: ignore[union-attr]
            good &= bool((recv == 10 * np.arange(n) + rank + i + k).all())
        return good

    return answer(in_threads(body))


@row("6 threads take turns on one communicator", "the right result", 4, 400)
def turns(chance: random.Random) -> Report:
    n = chance.choice([2, 3])
    return judge(run(n, in_turns, n, job_name()), (), must_raise=False)


def at_will(rank: int, n: int, job: str) -> list[Answer]:
    """The threads call whenever they like: refused where two do at once, MismatchError at the peers, or right."""
    import a2a

    comm = connect(rank, n, job)

    def body(i: int) -> bool:
        good, send = True, np.full(n * (i + 1), 100 * rank + i)
        for _ in range(ROUNDS):
            recv = np.full_like(send, -1)
            try:
                comm.alltoall(send, recv)
            except (a2a.MismatchError, a2a.InvalidArgumentError) as error:
                refused = isinstance(error, a2a.MismatchError) or "another thread is inside a call" in str(error)
                good &= refused and bool(((recv == -1) | (recv % 100 == i)).all())
                continue
            good &= bool((recv.reshape(n, -1) == 100 * np.arange(n)[:, None] + i).all())
        return good

    return [answer(in_threads(body)), Answer("right" if exchange(comm, 50) else "wrong", time.monotonic())]


@row("6 threads on one communicator in any order", "refused, MismatchError, or the right result", 4, 400)
def disorder(chance: random.Random) -> Report:
    n = chance.choice([2, 3])
    ends = run(n, at_will, n, job_name())
    return judge([*ends], (), must_raise=False)
