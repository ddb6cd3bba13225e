"""Ranks that die: the others learn it in time, by name, and go on without them."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import a2a

from ..harness import (
    KILLED,
    Answer,
    Board,
    NotRun,
    Report,
    arm,
    attempt,
    between_hosts,
    connect,
    job_name,
    judge,
    run,
    works,
    worse,
)
from ..rows import row

LOST = ("PeerLostError",)
# How the bytes travel: environment, bytes for each pair of ranks, whether the sends lie in shared memory.
WAYS: list[tuple[dict[str, str], int, bool]] = [
    ({}, 8, False),
    ({"A2A_SHM_CMA": "0"}, 1 << 20, False),
    ({"A2A_SHM_CMA_MIN": "1"}, 1 << 20, False),
    ({}, 1 << 20, True),
]
Way = tuple[dict[str, str], int, bool]


def buffers(comm: a2a.Communicator, way: Way) -> tuple[Any, Any]:
    send, recv = empty_buffers(comm, way, (comm.size * way[1],), "uint8")
    send[:], recv[:] = comm.rank, 0
    return send, recv


def empty_buffers(comm: a2a.Communicator, way: Way, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
    send = np.asarray(comm.empty(shape, dtype)) if way[2] else np.empty(shape, dtype)
    return send, np.empty(shape, dtype)


def exchange_for_ever(rank: int, n: int, job: str, board: Board, way: Way) -> Answer:
    os.environ.update(way[0])
    comm = connect(rank, n, job)
    send, recv = buffers(comm, way)

    def go_on() -> None:
        while True:
            board.words[rank] += 1
            comm.alltoall(send, recv)

    return attempt(go_on)


def kill_at_random(victim: int, board: Board, chance: random.Random, when: list[float]) -> Callable[[list[int]], None]:
    def during(pids: list[int]) -> None:
        board.await_all(2)
        time.sleep(chance.random() * 0.01)
        when.append(time.monotonic())
        os.kill(pids[victim], signal.SIGKILL)

    return during


@row("killed at a random moment of an exchange", "raise by name, p99 <= 50 ms", 12, 1000, within=0.05)
def killed(chance: random.Random) -> Report:
    return killed_in(job_name(), WAYS, chance)


def killed_in(job: str, ways: Sequence[Way], chance: random.Random) -> Report:
    n, way, when = chance.choice([2, 3, 4, 8]), chance.choice(ways), list[float]()
    victim, board = chance.randrange(n), Board(n)
    during = kill_at_random(victim, board, chance, when)
    ends = run(n, exchange_for_ever, n, job, board, way, during=during)
    return judge(ends, LOST, [named(victim, job)], since=when[0], but=[victim])


def named(rank: int, job: str) -> str:
    """How an error names a rank that is missed."""
    return f"rank {rank} (" if between_hosts(job) else f"rank {rank} (pid"


# ---- in each phase ---------------------------------------------------------------------------------------------------


def meet(rank: int, n: int, job: str, victim: int, point: str, count: int, number: int, timeout: float) -> Answer:
    if rank == victim:
        arm(point, count, number)
    return attempt(lambda: connect(rank, n, job, timeout).barrier())


def take_part(rank: int, n: int, job: str, victim: int, plan: tuple[str, int, int], way: Way, timeout: float) -> Answer:
    """Exchanges until somebody is missed; the victim is struck at the point of its plan."""
    os.environ.update(way[0])
    comm = connect(rank, n, job)
    send, recv = buffers(comm, way)
    comm.alltoall(send, recv)
    if rank == victim:
        arm(*plan)

    def go_on() -> None:
        while True:
            if plan[0] == "sleep" and rank != victim:
                time.sleep(0.003)  # so that it has to wait
            comm.alltoall(send, recv, timeout=timeout)

    return attempt(go_on)


def pick(phase: str, n: int, chance: random.Random) -> tuple[str, int, Way]:
    """A point of that phase, at which of its passes, and a way of the bytes that leads past it."""
    way = chance.choice(WAYS)
    points = {"publish": ["publish"], "acknowledge": ["acknowledge", "acknowledged"], "sleep": ["sleep"]}
    if phase == "copy":
        # The ring's sender copies, too.
        return (chance.choice(["copy", "stage"]) if "A2A_SHM_CMA" in way[0] else "copy"), chance.randint(1, 3 * n), way
    return chance.choice(points[phase]), chance.randint(1, 2 * n), way


def struck(end: Any) -> Report | None:
    """Nothing was tested unless the victim ended at its point."""
    return None if end.status == KILLED else Report("crash", text=f"the victim was not struck: {end}")


def die_in(phase: str, chance: random.Random) -> Report:
    n = chance.choice([2, 3, 4])
    victim = chance.randrange(n)
    point, count, way = pick(phase, n, chance)
    plan = (point, count, int(signal.SIGKILL))
    ends = run(n, take_part, n, job_name(), victim, plan, way, 30.0)
    report = judge(ends, LOST, [f"rank {victim} (pid"], since=ends[victim].died, but=[victim])
    return struck(ends[victim]) or report


def meeting_point(n: int, victim: int, chance: random.Random) -> tuple[str, int]:
    """A point of the meeting that this rank passes so often."""
    point = chance.choice(["joined", "addresses", "hello", "mapped"])
    return point, chance.randint(1, n - 1) if point in ("hello", "mapped") else 1


@row("killed in bootstrap", "raise by name, p99 <= 50 ms", 6, 500, within=0.05, faultpoints=True)
def killed_in_bootstrap(chance: random.Random) -> Report:
    n = chance.choice([2, 3, 4])
    victim = chance.randrange(n)
    point, count = meeting_point(n, victim, chance)
    ends = run(n, meet, n, job_name(), victim, point, count, signal.SIGKILL, 30.0)
    report = judge(ends, LOST, [f"rank {victim}"], since=ends[victim].died, but=[victim])
    return struck(ends[victim]) or report


@row("killed in publish", "raise by name, p99 <= 50 ms", 6, 500, within=0.05, faultpoints=True)
def killed_in_publish(chance: random.Random) -> Report:
    return die_in("publish", chance)


@row("killed in copy", "raise by name, p99 <= 50 ms", 6, 500, within=0.05, faultpoints=True)
def killed_in_copy(chance: random.Random) -> Report:
    return die_in("copy", chance)


@row("killed in acknowledge", "raise by name, p99 <= 50 ms", 6, 500, within=0.05, faultpoints=True)
def killed_in_acknowledge(chance: random.Random) -> Report:
    return die_in("acknowledge", chance)


@row("killed asleep", "raise by name, p99 <= 50 ms", 4, 200, within=0.05, faultpoints=True)
def killed_asleep(chance: random.Random) -> Report:
    return die_in("sleep", chance)


SHRINKING = ["propose", "commit", "committed"]

# ---- going on --------------------------------------------------------------------------------------------------------


def shrink_after_loss(
    rank: int, n: int, job: str, board: Board, way: Way, expected: int, second: tuple[int, str]
) -> Answer:
    """The time is that of shrink() and a first exchange with each size; ``second`` dies in its shrink()."""
    os.environ.update(way[0])
    comm = connect(rank, n, job)
    send, recv = buffers(comm, way)
    try:
        while True:
            board.words[rank] += 1
            comm.alltoall(send, recv)
    except a2a.PeerLostError:
        pass
    if rank == second[0]:
        arm(second[1], 1)
    begin = time.monotonic()
    smaller = comm.shrink(timeout=20)
    right = smaller.size == expected and works(smaller)
    end = time.monotonic()
    smaller.close()
    return Answer("right" if right else "wrong", end, seconds=end - begin)


def shrink_in(job: str, ways: Sequence[Way], chance: random.Random, point: str = "") -> Report:
    n, way, when = chance.choice([3, 4, 5]), chance.choice(ways), list[float]()
    victim, *others = chance.sample(range(n), n)
    board, second = Board(n), others[0] if point else -1
    dead = [victim, second] if point else [victim]
    during = kill_at_random(victim, board, chance, when)
    program = (shrink_after_loss, n, job, board, way, n - len(dead), (second, point))
    ends = run(n, *program, during=during)
    report = judge(ends, (), but=dead, must_raise=False)
    taken = [end.value.seconds for end in ends if isinstance(end.value, Answer)]
    report.seconds = max(taken, default=None)
    if point and ends[second].status != KILLED:
        return Report("crash", text=f"the second victim was not struck: {ends[second]}")
    return report


@row("survivors go on with shrink()", "right, p99 <= 500 ms", 8, 1000, within=0.5)
def shrinks(chance: random.Random) -> Report:
    return shrink_in(job_name(), WAYS, chance)


@row("another death during shrink()", "right, p99 <= 500 ms", 6, 500, within=0.5, faultpoints=True)
def shrinks_again(chance: random.Random) -> Report:
    return shrink_in(job_name(), WAYS, chance, chance.choice(SHRINKING))


# ---- leaving in other ways -------------------------------------------------------------------------------------------


def leave(rank: int, n: int, job: str, leaver: int, how: str, left: Board) -> Answer | None:
    comm = connect(rank, n, job)
    comm.barrier()
    if rank == leaver:
        time.sleep(0.005)
        left.words[0] = time.monotonic_ns()
        if how == "exit":
            os._exit(3)
        if how == "exception":
            with comm:
                raise KeyError("a mistake")
        del comm
        time.sleep(0.5)  # goes on without it
        return None
    return attempt(comm.alltoall, np.zeros(n * 100), np.zeros(n * 100))


@row("ends by an exception, exits, or drops it", "raise by name, p99 <= 1 s", 6, 600, within=1.0)
def leaves(chance: random.Random) -> Report:
    return leaves_in(job_name(), chance)


def leaves_in(job: str, chance: random.Random) -> Report:
    n, how, left = chance.choice([2, 3, 4]), chance.choice(["exit", "exception", "dropped"]), Board(1)
    leaver = chance.randrange(n)
    ends = run(n, leave, n, job, leaver, how, left)
    report = judge(ends, LOST, [named(leaver, job)], since=left.words[0] / 1e9, but=[leaver])
    return worse(report, Report("clear" if ends[leaver].status in (0, 3) else "crash"))


def close_early(rank: int, n: int, job: str, leaver: int) -> list[Answer]:
    comm = connect(rank, n, job)
    comm.barrier()
    if rank == leaver:
        return [attempt(comm.close)]
    return [attempt(comm.barrier), attempt(comm.barrier)]


@row("closes while the others go on", "raise by name, p99 <= 1 s", 4, 500, within=1.0)
def closes(chance: random.Random) -> Report:
    return closes_in(job_name(), chance)


def closes_in(job: str, chance: random.Random) -> Report:
    n = chance.choice([2, 3, 4])
    leaver = chance.randrange(n)
    begin = time.monotonic()
    ends = run(n, close_early, n, job, leaver)
    # Whoever is late finds that another rank has broken the communicator already.
    late = [end for end in ends if end.rank != leaver and end.answers[0].error == "PeerLostError"]
    words = [f"rank {leaver} calls close", "calls barrier"]
    first = judge(ends, ["MismatchError"], words, since=begin, but=[end.rank for end in late])
    second = judge(ends, LOST, [named(leaver, job)], but=[leaver], at=1)
    return worse(first, second, *(judge([end], LOST, [named(leaver, job)]) for end in late))


# ---- leftovers -------------------------------------------------------------------------------------------------------

_PROGRAM = """
import a2a, numpy as np
comm = a2a.init()
send = comm.empty(comm.size << 16, "uint8")
comm.barrier()
print("met", flush=True)
while True:
    comm.alltoall(send, np.empty(comm.size << 16, "u1"))
"""


@row("the launcher, or everybody, is killed", "nothing left", 1, 40)
def launcher_killed(chance: random.Random) -> Report:
    """The guard adopts whoever is left behind, and counts them."""
    command = [sys.executable, "-m", "a2a", "run", "-n", "3", sys.executable, "-c", _PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0) as launcher:
        assert launcher.stdout is not None
        for _ in range(3):
            launcher.stdout.readline()
        time.sleep(chance.random() * 0.01)
        begin = time.monotonic()
        if chance.random() < 0.5:
            os.killpg(launcher.pid, signal.SIGKILL)
        launcher.kill()
        launcher.wait()
        launcher.stdout.read()  # ends when no rank holds its end any more
    return Report("clear", time.monotonic() - begin)


SHRINK_OVER_MPI = """
import a2a
comm = a2a.init(timeout=20)
try:
    comm.shrink()
    said = ""
except a2a.UnsupportedError as error:
    said = str(error)
comm.barrier()
comm.close()
raise SystemExit("does not go on after the death of a rank" not in said)
"""


@row("shrink() between hosts, over MPI", "UnsupportedError, and the group goes on", 1, 50)
def shrink_over_mpi(chance: random.Random) -> Report:
    launcher = shutil.which("mpiexec", path=os.pathsep.join([f"{sys.prefix}/bin", os.environ.get("PATH", "")]))
    if launcher is None:
        raise NotRun("no mpiexec here; the extra mpi brings one")
    n = chance.choice([2, 3, 4])
    hosts = ["a", "b"] + [chance.choice("ab") for _ in range(n - 2)]
    done = subprocess.run(
        [launcher, "-n", str(n), sys.executable, "-c", SHRINK_OVER_MPI],
        env=os.environ | {"A2A_HOSTS": ",".join(hosts)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Report("clear" if done.returncode == 0 else "unclear", text=done.stdout + done.stderr)
