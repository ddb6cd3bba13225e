"""The same faults where TCP or UCX connects the ranks, which take turns to be on one of two hosts of this machine."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import a2a

from ..harness import Answer, Board, End, Report, attempt, connect, judge, network_job, run, worse
from ..rows import row
from . import death, disagreement, joining, stop

# Few bytes go in one message for each pair of hosts, more in one for each pair of ranks, and long segments apart.
WAYS: list[death.Way] = [
    ({}, 8, False),
    ({"A2A_AGGREGATE_MAX": "0"}, 8, False),
    ({}, 20_000, False),
    ({}, 1 << 20, False),
]
JOINING = 1.5
NETWORKS = {"tcp": "TCP", "ucx": "UCX"}


def on_each(
    name: str, target: str, quick: int, full: int, networks: Sequence[str] = tuple(NETWORKS), **limits: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes ``trial(chance, job)`` a row of each network, with a job over it."""

    def enter(trial: Callable[..., Any]) -> Callable[..., Any]:
        for network in networks:

            def over(chance: random.Random, network: str = network) -> list[Report] | Report:
                return trial(chance, network_job(network))  # type: ignore[no-any-return]

            over.__module__ = trial.__module__  # its family
            row(f"over {NETWORKS[network]}: {name}", target, quick, full, **limits)(over)
        return trial

    return enter


# ---- death, and leaving ----------------------------------------------------------------------------------------------


# UCX cannot take back a send that has begun: a rank that gives up waits for it for 0.1 s, and keeps its memory so long.
@on_each("killed at a random moment", "raise by name, p99 <= 100 ms", 8, 500, ["tcp"], within=0.1)
@on_each("killed at a random moment", "raise by name, p99 <= 200 ms", 8, 500, ["ucx"], within=0.2)
def killed(chance: random.Random, job: str) -> Report:
    return death.killed_in(job, WAYS, chance)


def meet(rank: int, n: int, job: str, victim: int, board: Board) -> Answer:
    """Nobody leaves before all know: it would be missed itself."""
    comm: list[a2a.Communicator] = []
    board.words[rank] = 1
    answer = attempt(lambda: comm.append(connect(rank, n, job, JOINING)))
    while rank == victim:
        time.sleep(1)
    board.words[rank] = 2
    board.await_all(2)
    return answer


@on_each("killed while joining", "raise by name within the deadline", 3, 100, within=1.1 * JOINING)
def killed_joining(chance: random.Random, job: str) -> Report:
    """Before it has said who it is only the deadline tells that it is missing."""
    n = chance.choice([2, 3, 4])
    victim, board, when = chance.randrange(n), Board(n), [0.0]

    def during(pids: list[int]) -> None:
        board.await_all(1)
        time.sleep(chance.random() * 0.004)
        when[0] = time.monotonic()
        os.kill(pids[victim], signal.SIGKILL)
        os.waitid(os.P_PID, pids[victim], os.WEXITED | os.WNOWAIT)
        board.words[victim] = 2

    ends = run(n, meet, n, job, victim, board, during=during)
    survivors = [end for end in ends if end.rank != victim]
    if all(isinstance(end.value, Answer) and end.value.kind == "right" for end in survivors):
        return Report("right")  # they had all that they need of it
    in_time = [end for end in survivors if not late(end)]
    reports = [judge([end], ("PeerLostError", "TimeoutError"), [f"rank {victim}"], since=when[0]) for end in in_time]
    return worse(*reports, Report("clear"))


@on_each("ends by an exception, exits, or drops it", "raise by name, p99 <= 1 s", 4, 150, within=1.0)
def leaves(chance: random.Random, job: str) -> Report:
    return death.leaves_in(job, chance)


@on_each("closes while the others go on", "raise by name, p99 <= 1 s", 4, 250, within=1.0)
def closes(chance: random.Random, job: str) -> Report:
    return death.closes_in(job, chance)


@on_each("survivors go on with shrink()", "right, p99 <= 500 ms", 4, 300, ["tcp"], within=0.5)
@on_each("survivors go on with shrink()", "right, p99 <= 1 s", 4, 300, ["ucx"], within=1.0)
def shrinks(chance: random.Random, job: str) -> Report:
    return death.shrink_in(job, WAYS, chance)


@on_each("another death during shrink()", "right, p99 <= 500 ms", 4, 300, within=0.5, faultpoints=True)
def shrinks_again(chance: random.Random, job: str) -> Report:
    return death.shrink_in(job, WAYS, chance, chance.choice(death.SHRINKING))


# ---- deadlines -------------------------------------------------------------------------------------------------------


@on_each("stopped before an exchange", "raise by name at the deadline +-10 %", 2, 60, exactly=stop.DEADLINE)
def stopped(chance: random.Random, job: str) -> Report:
    return stop.stopped_in(job, WAYS, [], chance)


@on_each("a call is missing", "TimeoutError naming each last operation", 2, 60, exactly=0.3)
def never_called(chance: random.Random, job: str) -> Report:
    return disagreement.missing(chance, other_group=False, job=job)


# ---- disagreement ----------------------------------------------------------------------------------------------------


@on_each("counts differ", "MismatchError naming both, nothing silent", 100, 2500)
def counts(chance: random.Random, job: str) -> list[Report]:
    return disagreement.counts_in(job, WAYS, chance)


@on_each("dtype differs", "MismatchError naming both, nothing silent", 50, 2500)
def dtypes(chance: random.Random, job: str) -> list[Report]:
    return disagreement.whole_calls("dtype", chance, job)


@on_each("operation differs", "MismatchError naming both, nothing silent", 50, 2500)
def operations(chance: random.Random, job: str) -> list[Report]:
    return disagreement.whole_calls("operation", chance, job)


@on_each("order of calls differs", "MismatchError naming both, p99 <= 100 ms", 20, 1000, within=0.1)
def orders(chance: random.Random, job: str) -> list[Report]:
    return disagreement.orders_in(job, chance)


@on_each("arguments refused on one rank", "every peer raises, naming it", 50, 2500)
def refused(chance: random.Random, job: str) -> list[Report]:
    return disagreement.refused_in(job, chance)


# ---- joining ---------------------------------------------------------------------------------------------------------


def late(end: End) -> bool:
    """Whether this rank came, or was not done with coming, when rank 0 gave up: its error says that rank 0 is gone, and
    it cannot know why."""
    text = end.value.text if isinstance(end.value, Answer) else ""
    nobody = "timed out waiting for rank 0 at" in text and "(Connection refused)" in text
    return nobody or text.endswith("rank 0 was lost while the ranks met")


@on_each("sizes differ", "InvalidArgumentError naming both, p99 <= 1 s", 3, 150, within=1.0)
def sizes(chance: random.Random, job: str) -> Report:
    begin = time.monotonic()
    ends = run(3, joining.join, [(0, 3), (1, 3), (2, 4)], job, 1.0)
    names = ["rank 2 was started with size 4, rank 0 with size 3"]
    return judge(ends, joining.WRONG, names, since=begin, but=[1] if late(ends[1]) else [])


def join_with(rank: int, n: int, job: str, odd: int) -> Answer:
    return attempt(connect, rank, n, job, 1.0, secret="another secret that is long enough" if rank == odd else "")


@on_each("a rank with another secret", "TimeoutError on all, naming the rank, or the secret", 2, 60)
def secrets_differ(chance: random.Random, job: str) -> Report:
    """It gets no reply, and is missed."""
    n = chance.choice([2, 3, 4])
    odd = chance.randrange(1, n)
    ends = run(n, join_with, n, job, odd)
    first, others = [f"timed out waiting for rank {odd}", "without the job's secret"], [rank for rank in range(1, n)]
    said = judge(ends, stop.LATE, first, but=others)
    told = [judge([end], stop.LATE, first[:1]) for end in ends[1:] if end.rank != odd and not late(end)]
    return worse(said, *told, judge([ends[odd]], stop.LATE, ["timed out waiting for rank 0"]))
