"""Ranks that are started wrongly: each learns the cause at once."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import a2a

from ..harness import Answer, Board, Report, attempt, connect, job_name, judge, run, works, worse
from ..rows import row

WRONG = ("InvalidArgumentError",)


def join(rank: int, facts: list[tuple[int, int]], job: str, timeout: float) -> Answer:
    def meet() -> None:
        comm = connect(*facts[rank], job, timeout)
        comm.barrier()
        comm.close()

    return attempt(meet)


@row("two ranks claim one number", "InvalidArgumentError naming it, p99 <= 1 s", 3, 400, within=1.0)
def twins(chance: random.Random) -> Report:
    n = chance.choice([2, 3, 4])
    number = chance.randrange(1, n)
    facts = [(rank, n) for rank in range(n)] + [(number, n)]
    chance.shuffle(facts)
    begin = time.monotonic()
    ends = run(n + 1, join, facts, job_name(), 0.6)
    # A twin that comes when all are there already finds nobody, or is told; the others had what they wanted.
    report = judge(ends, (*WRONG, "TimeoutError"), ["rank"], since=begin, must_raise=False)
    caused = [end for end in ends if isinstance(end.value, Answer) and "joined twice" in end.value.text]
    late = [end for end in ends if isinstance(end.value, Answer) and end.value.error == "TimeoutError"]
    if late:
        report.seconds = 0.0
        return worse(report, Report("clear" if len(late) == 1 and not caused else "unclear", text=str(late)))
    return report


@row("two ranks claim number 0", "InvalidArgumentError naming it, p99 <= 1 s", 2, 200, within=1.0)
def twin_zeros(chance: random.Random) -> Report:
    job, begin = job_name(), time.monotonic()
    ends = run(2, join, [(0, 3), (0, 3)], job, 0.5)
    answers = {end.value.error: end.value for end in ends if isinstance(end.value, Answer)}
    second = answers.get("InvalidArgumentError")
    if second is None:
        return Report("unclear", text=str(ends))
    clear = "rank 0 is already there (pid" in second.text and job in second.text
    report = Report("clear" if clear else "unclear", second.time - begin, second.text)
    return worse(report, judge(ends, (*WRONG, "TimeoutError")))


@row("sizes differ", "InvalidArgumentError naming both, p99 <= 1 s", 4, 400, within=1.0)
def sizes(chance: random.Random) -> Report:
    begin = time.monotonic()
    ends = run(3, join, [(0, 3), (1, 3), (2, 4)], job_name(), 5)
    return judge(ends, WRONG, ["rank 2 was started with size 4, rank 0 with size 3"], since=begin)


def miss(rank: int, job: str, begins: list[float], timeouts: list[float]) -> Answer:
    time.sleep(begins[rank])
    return attempt(connect, rank, 3, job, timeouts[rank])


@row("a rank never comes, deadlines pass in any order", "TimeoutError naming it", 3, 200)
def never_comes(chance: random.Random) -> Report:
    begins = [chance.random() * 0.1 for _ in range(2)]
    timeouts = [0.3 + chance.random() * 0.3 for _ in range(2)]
    return judge(run(2, miss, job_name(), begins, timeouts), ["TimeoutError"], ["waiting for rank 2"])


def try_again(rank: int, n: int, job: str, late: float, timeout: float) -> Answer:
    time.sleep(late * rank)
    patience = time.monotonic() + 10

    def meet() -> None:
        while True:
            try:
                comm = connect(rank, n, job, timeout)
                comm.barrier(timeout=20)
                return
            except (a2a.TimeoutError, a2a.PeerLostError):
                if time.monotonic() > patience:
                    raise

    return attempt(meet)


@row("ranks out of step that try again", "they meet", 3, 100)
def out_of_step(chance: random.Random) -> Report:
    n, timeout = chance.choice([2, 3, 4]), 0.1 + 0.2 * chance.random()
    late = timeout * chance.uniform(0.5, 3)
    return judge(run(n, try_again, n, job_name(), late, timeout), (), must_raise=False)


def hold(rank: int, job: str, board: Board) -> None:
    """Rank 0 of an earlier run, which waits for a rank that never came."""
    board.words[0] = 1
    connect(0, 2, job)


def meet(rank: int, n: int, job: str) -> Answer:
    return attempt(lambda: works(connect(rank, n, job, 5)))


@row("rendezvous of an earlier run that was killed", "the right result, p99 <= 1 s", 4, 300, within=1.0)
def stale(chance: random.Random) -> Report:
    """Its name is free again at once."""
    board, job = Board(1), job_name()

    def during(pids: list[int]) -> None:
        board.await_all(1)
        time.sleep(chance.random() * 0.02)
        os.kill(pids[0], signal.SIGKILL)

    run(1, hold, job, board, during=during)
    begin = time.monotonic()
    return judge(run(3, meet, 3, job), (), since=begin, must_raise=False)


def await_listener(job: str, seconds: float = 30.0) -> None:
    """Until somebody listens there, as the kernel's list of sockets says by a flag."""
    deadline = time.monotonic() + seconds
    while not any(job in line and " 00010000 " in line for line in Path("/proc/net/unix").read_text().splitlines()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"nobody listens for {job}")
        time.sleep(0.0005)


def meet_at_stale(rank: int, job: str, board: Board) -> Answer | None:
    if rank == 0:
        board.words[0] = 1
        connect(0, 2, job)
        return None
    board.await_all(2)
    return attempt(connect, rank - 1, 2, job, 0.5)


@row("rendezvous of an earlier run that is stopped", "named by its pid", 2, 100)
def stopped(chance: random.Random) -> Report:
    """Rank 0 hears at once who holds the name; rank 1 cannot know that it is the wrong one until its time is up."""
    board, job = Board(1), job_name()
    holder = [0]

    def during(pids: list[int]) -> None:
        holder[0] = pids[0]
        board.await_all(1)
        await_listener(job)
        os.kill(pids[0], signal.SIGSTOP)
        board.words[0] = 2
        time.sleep(0.9)
        os.kill(pids[0], signal.SIGKILL)

    ends = run(3, meet_at_stale, job, board, during=during)
    pid = f"(pid {holder[0]}"
    first = judge(ends, WRONG, ["rank 0 is already there", pid, job], but=[0, 2])
    return worse(first, judge(ends, ["TimeoutError"], ["rank 0", pid, "stopped"], but=[0, 1]))
