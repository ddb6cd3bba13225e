"""The same faults where TCP connects the ranks, which take turns to be on one of two hosts of this machine."""

from __future__ import annotations

import os
import random
import signal
import time

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


# ---- death, and leaving ----------------------------------------------------------------------------------------------


@row("over TCP: killed at a random moment", "raise by name, p99 <= 100 ms", 8, 500, within=0.1)
def killed(chance: random.Random) -> Report:
    return death.killed_in(network_job(), WAYS, chance)


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


@row("over TCP: killed while joining", "raise by name within the deadline", 3, 100, within=1.1 * JOINING)
def killed_joining(chance: random.Random) -> Report:
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

    ends = run(n, meet, n, network_job(), victim, board, during=during)
    survivors = [end for end in ends if end.rank != victim]
    if all(isinstance(end.value, Answer) and end.value.kind == "right" for end in survivors):
        return Report("right")  # they had all that they need of it
    in_time = [end for end in survivors if not late(end)]
    reports = [judge([end], ("PeerLostError", "TimeoutError"), [f"rank {victim}"], since=when[0]) for end in in_time]
    return worse(*reports, Report("clear"))


@row("over TCP: ends by an exception, exits, or drops it", "raise by name, p99 <= 1 s", 4, 150, within=1.0)
def leaves(chance: random.Random) -> Report:
    return death.leaves_in(network_job(), chance)


@row("over TCP: closes while the others go on", "raise by name, p99 <= 1 s", 4, 250, within=1.0)
def closes(chance: random.Random) -> Report:
    return death.closes_in(network_job(), chance)


@row("over TCP: survivors go on with shrink()", "right, p99 <= 500 ms", 4, 300, within=0.5)
def shrinks(chance: random.Random) -> Report:
    return death.shrink_in(network_job(), WAYS, chance)


@row("over TCP: another death during shrink()", "right, p99 <= 500 ms", 4, 300, within=0.5, faultpoints=True)
def shrinks_again(chance: random.Random) -> Report:
    return death.shrink_in(network_job(), WAYS, chance, chance.choice(death.SHRINKING))


# ---- deadlines -------------------------------------------------------------------------------------------------------


@row("over TCP: stopped before an exchange", "raise by name at the deadline +-10 %", 2, 60, exactly=stop.DEADLINE)
def stopped(chance: random.Random) -> Report:
    return stop.stopped_in(network_job(), WAYS, [], chance)


@row("over TCP: a call is missing", "TimeoutError naming each last operation", 2, 60, exactly=0.3)
def never_called(chance: random.Random) -> Report:
    return disagreement.missing(chance, other_group=False, job=network_job())


# ---- disagreement ----------------------------------------------------------------------------------------------------


@row("over TCP: counts differ", "MismatchError naming both, nothing silent", 100, 2500)
def counts(chance: random.Random) -> list[Report]:
    return disagreement.counts_in(network_job(), WAYS, chance)


@row("over TCP: dtype differs", "MismatchError naming both, nothing silent", 50, 2500)
def dtypes(chance: random.Random) -> list[Report]:
    return disagreement.whole_calls("dtype", chance, network_job())


@row("over TCP: operation differs", "MismatchError naming both, nothing silent", 50, 2500)
def operations(chance: random.Random) -> list[Report]:
    return disagreement.whole_calls("operation", chance, network_job())


@row("over TCP: order of calls differs", "MismatchError naming both, p99 <= 100 ms", 20, 1000, within=0.1)
def orders(chance: random.Random) -> list[Report]:
    return disagreement.orders_in(network_job(), chance)


@row("over TCP: arguments refused on one rank", "every peer raises, naming it", 50, 2500)
def refused(chance: random.Random) -> list[Report]:
    return disagreement.refused_in(network_job(), chance)


# ---- joining ---------------------------------------------------------------------------------------------------------


def late(end: End) -> bool:
    """Whether this rank came, or was not done with coming, when rank 0 gave up: its error says that rank 0 is gone, and
    it cannot know why."""
    text = end.value.text if isinstance(end.value, Answer) else ""
    nobody = "timed out waiting for rank 0 at" in text and "(Connection refused)" in text
    return nobody or text.endswith("rank 0 was lost while the ranks met")


@row("over TCP: sizes differ", "InvalidArgumentError naming both, p99 <= 1 s", 3, 150, within=1.0)
def sizes(chance: random.Random) -> Report:
    begin = time.monotonic()
    ends = run(3, joining.join, [(0, 3), (1, 3), (2, 4)], network_job(), 1.0)
    names = ["rank 2 was started with size 4, rank 0 with size 3"]
    return judge(ends, joining.WRONG, names, since=begin, but=[1] if late(ends[1]) else [])


def join_with(rank: int, n: int, job: str, odd: int) -> Answer:
    return attempt(connect, rank, n, job, 1.0, secret="another secret that is long enough" if rank == odd else "")


@row("over TCP: a rank with another secret", "TimeoutError on all, naming the rank, or the secret", 2, 60)
def secrets_differ(chance: random.Random) -> Report:
    """It gets no reply, and is missed."""
    n = chance.choice([2, 3, 4])
    odd = chance.randrange(1, n)
    ends = run(n, join_with, n, network_job(), odd)
    first, others = [f"timed out waiting for rank {odd}", "without the job's secret"], [rank for rank in range(1, n)]
    said = judge(ends, stop.LATE, first, but=others)
    told = [judge([end], stop.LATE, first[:1]) for end in ends[1:] if end.rank != odd and not late(end)]
    return worse(said, *told, judge([ends[odd]], stop.LATE, ["timed out waiting for rank 0"]))
