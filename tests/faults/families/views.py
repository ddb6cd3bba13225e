"""Tensors that others look at, and ranks that die meanwhile."""

from __future__ import annotations

import os
import random
import signal
import time

import numpy as np

import a2a

from ..harness import Answer, Board, Report, attempt, connect, job_name, judge, run, worse
from ..rows import row
from .death import LOST, kill_at_random

ELEMS = 1 << 16


def show(comm: a2a.Communicator, turn: int) -> a2a.Views:
    mine = comm.empty(ELEMS, "int64")
    mine[:] = 100 * turn + comm.rank
    return comm.allgather_views(mine)


def look_for_ever(rank: int, n: int, job: str, board: Board) -> list[Answer]:
    """Looks at everybody's tensors until a rank is lost. The second answer is of the views that it had then."""
    comm = connect(rank, n, job)
    views, wrong = show(comm, 0), 0

    def go_on() -> None:
        nonlocal views, wrong
        for turn in range(1, 1 << 30):
            board.words[rank] += 1
            now = show(comm, turn)
            wrong += sum(not (np.asarray(view) == 100 * turn + peer).all() for peer, view in enumerate(now))
            views.release()
            views = now

    lost = attempt(go_on)
    last = [int(view[0]) for view in views]
    right = wrong == 0 and last == [100 * (last[0] // 100) + peer for peer in range(n)]
    return [lost, Answer("right" if right else "wrong", time.monotonic())]


@row("killed while ranks look at its tensors", "raise by name, p99 <= 50 ms; views stay right", 8, 500, within=0.05)
def killed(chance: random.Random) -> Report:
    n, when = chance.choice([2, 3, 4]), list[float]()
    victim, board = chance.randrange(n), Board(n)
    ends = run(n, look_for_ever, n, job_name(), board, during=kill_at_random(victim, board, chance, when))
    lost = judge(ends, LOST, [f"rank {victim} (pid"], since=when[0], but=[victim])
    kept = judge(ends, (), but=[victim], at=1, must_raise=False)
    return lost if kept.outcome == "right" else kept


def keep_views(rank: int, n: int, job: str, keeper: int, board: Board) -> Answer:
    """The keeper never releases. The time is that of wait_released(), from the keeper's death on."""
    comm = connect(rank, n, job)
    views = show(comm, 1)
    board.words[rank] = 1
    while rank == keeper:
        time.sleep(1)
    return attempt(views.wait_released, 20)


@row("killed before it releases its views", "the owners may write again, p99 <= 100 ms", 6, 300, within=0.1)
def keeper_killed(chance: random.Random) -> Report:
    n, when = chance.choice([2, 3, 4]), [0.0]
    keeper, board = chance.randrange(n), Board(n)

    def during(pids: list[int]) -> None:
        board.await_all(1)
        time.sleep(chance.random() * 0.03)
        when[0] = time.monotonic()
        os.kill(pids[keeper], signal.SIGKILL)

    ends = run(n, keep_views, n, job_name(), keeper, board, during=during)
    early = [end for end in ends if isinstance(end.value, Answer) and end.value.time < when[0]]
    report = judge(ends, (), since=when[0], but=[keeper], must_raise=False)
    return worse(report, Report("silent", text=f"released too early: {early}")) if early else report
