"""Endpoints that meet in one group after the other: who is told what, and who goes on."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..chaos_ranks import Step
from ..generations.member import Call
from ..generations.pool import Member, Pool, Strike
from ..harness import End, Report, judge, worse
from ..rows import row
from .death import LOST

UNIX, TCP = False, True
LIMIT = 10.0
SHORT = 0.5  # a deadline that passes
STAYING = 0.4  # whoever finds that arguments are wrong stays for 0.3 s, in order to tell those who come late
STEPS = [Step("alltoallv", 7, 500), Step("reduced", 8, 100), Step("several_in_flight", 9, 300)]


@contextlib.contextmanager
def pool_of(n: int, tcp: bool) -> Iterator[Pool]:
    """Processes with an endpoint each; between hosts they take turns to be on one of two."""
    pool = Pool("127.0.0.1" if tcp else None, secrets.token_hex(16) if tcp else "")
    try:
        for i in range(n):
            pool.start("ab"[i % 2] if tcp else "", 1)
        yield pool
    finally:
        pool.end()


def handles_of(members: Sequence[Member]) -> list[str]:
    return [member.handle for member in members]


def play(pool: Pool, calls: Mapping[Member, Call], strikes: Sequence[Strike] = ()) -> list[End]:
    """Plays the calls. Returns how they ended, by the order of the members."""
    answers, said = pool.play(calls, list(strikes), LIMIT + 5)
    ends = []
    for i, (member, told) in enumerate(answers.items()):
        value = [answer for label, answer in told if label not in ("former", "done")]
        ends.append(End(i, value, 0, any(line == f"{member.name} hangs" for line in said)))
    return ends


def meet(pool: Pool, members: Sequence[Member], generation: int, steps: Sequence[Step] = STEPS) -> Report:
    """They meet, and exchange: whether everything is right."""
    calls = {one: Call(handles_of(members), generation, LIMIT, steps=list(steps)) for one in members}
    return all_right(play(pool, calls))


def all_right(ends: Sequence[End]) -> Report:
    longest = max(len(end.answers) for end in ends)
    return worse(*(judge(ends, (), at=i, must_raise=False) for i in range(longest)))


def last_call(ends: Sequence[End]) -> float:
    return max(end.answers[0].time - end.answers[0].seconds for end in ends if end.answers)


def living_meet(pool: Pool, report: Report) -> Report:
    """As worse() of the report, and of a group of all that live: endpoints are as usable after an error as before."""
    return worse(report, meet(pool, pool.members, 1000, STEPS[:1]))


# ---- errors ----------------------------------------------------------------------------------------------------------


def dead(chance: random.Random, tcp: bool) -> Report:
    n = chance.choice([3, 4])
    with pool_of(n, tcp) as pool:
        victim, listed = chance.randrange(n), pool.members
        if chance.random() < 0.5:
            meet(pool, listed, 0, [])
        chance.shuffle(listed)
        handles, gone = handles_of(listed), listed[victim]
        pool.kill(gone.process)
        ends = play(pool, {one: Call(handles, 1, LIMIT) for one in listed if one is not gone})
        return living_meet(pool, judge(ends, LOST, [f"rank {victim} (pid"], since=last_call(ends)))


@row("a dead member is listed", "raise by name, p99 <= 100 ms", 4, 300, within=0.1)
def dead_member(chance: random.Random) -> Report:
    return dead(chance, UNIX)


@row("over TCP: a dead member is listed", "raise by name, p99 <= 1 s", 4, 300, within=1.0)
def dead_member_over_tcp(chance: random.Random) -> Report:
    return dead(chance, TCP)


def absent(chance: random.Random, tcp: bool) -> Report:
    n = chance.choice([2, 3, 4])
    with pool_of(n, tcp) as pool:
        missing, listed = chance.randrange(n), pool.members
        handles = handles_of(listed)
        ends = play(pool, {one: Call(handles, 0, SHORT) for one in listed if one is not listed[missing]})
        begin = min(end.answers[0].time - end.answers[0].seconds for end in ends)
        return living_meet(pool, judge(ends, ["TimeoutError"], [f"waiting for rank {missing} ("], since=begin))


@row("a listed member does not come", "TimeoutError naming it, at the deadline +-10 %", 2, 100, exactly=SHORT)
def absent_member(chance: random.Random) -> Report:
    return absent(chance, UNIX)


@row("over TCP: a listed member does not come", "TimeoutError naming it, at the deadline +-10 %", 2, 100, exactly=SHORT)
def absent_member_over_tcp(chance: random.Random) -> Report:
    return absent(chance, TCP)


def disagree(chance: random.Random, tcp: bool) -> Report:
    n = chance.choice([3, 4])
    with pool_of(n, tcp) as pool:
        listed = pool.members
        odd, handles = chance.choice(listed), handles_of(listed)
        other = handles[1:] + handles[:1]
        if chance.random() < 0.5:
            other = [handle for handle in handles if handle == odd.handle or chance.random() < 0.6]
        if len(other) < 2:
            other = handles[::-1]
        number = chance.choice([0, 0, 1]) if other != handles else 1
        calls = {one: Call(other if one is odd else handles, number if one is odd else 0, LIMIT) for one in listed}
        ends = play(pool, calls)
        return living_meet(
            pool, judge(ends, ["MismatchError"], ["generation 0"] * (number == 0), since=last_call(ends))
        )


@row("lists of members disagree", "MismatchError on all, p99 <= 400 ms", 4, 300, within=STAYING)
def lists_disagree(chance: random.Random) -> Report:
    return disagree(chance, UNIX)


@row("over TCP: lists of members disagree", "MismatchError on all, p99 <= 1 s", 4, 300, within=1.0)
def lists_disagree_over_tcp(chance: random.Random) -> Report:
    return disagree(chance, TCP)


def used(chance: random.Random, tcp: bool) -> Report:
    n = chance.choice([3, 4])
    with pool_of(n, tcp) as pool:
        listed = pool.members
        chance.shuffle(listed)
        before = chance.randint(1, n)
        first = meet(pool, listed[:before], 3, [])
        ends = play(pool, {one: Call(handles_of(listed), 3, LIMIT) for one in listed})
        refused = judge(ends, ["InvalidArgumentError"], ["generation 3 was already used"], but=range(before, n))
        since = last_call(ends)
        told = (
            judge(ends, ["MismatchError"], ["already used"], since=since, but=range(before)) if before < n else refused
        )
        report = worse(refused, told)
        report.seconds = told.seconds
        return living_meet(pool, worse(first, report))


@row(
    "a generation that some have used",
    "InvalidArgumentError; peers MismatchError, p99 <= 400 ms",
    4,
    300,
    within=STAYING,
)
def used_generation(chance: random.Random) -> Report:
    return used(chance, UNIX)


@row("over TCP: a generation that some have used", "the same, p99 <= 1 s", 4, 300, within=1.0)
def used_generation_over_tcp(chance: random.Random) -> Report:
    return used(chance, TCP)


# ---- deaths ----------------------------------------------------------------------------------------------------------


def killed_meeting(chance: random.Random, tcp: bool) -> Report:
    """Those who finish the meeting learn it by their first operation."""
    n = chance.choice([3, 4, 5])
    with pool_of(n, tcp) as pool:
        listed = pool.members
        chance.shuffle(listed)
        rank = chance.randrange(n)
        process = listed[rank].process
        ends = play(
            pool,
            {one: Call(handles_of(listed), 0, LIMIT, until_lost=True, late=chance.random() * 0.003) for one in listed},
            [Strike("kill", process, "connect", chance.random() * 0.01)],
        )
        if process.died is None:
            return Report("crash", text="the victim was not killed")
        last = [End(end.rank, end.answers[-1:], end.status, end.hung) for end in ends]
        since = max(process.died, last_call([end for end in ends if end.rank != rank]))
        return living_meet(pool, judge(last, LOST, [f"rank {rank} ("], since=since, but=[rank]))


@row("killed while members meet", "raise by name, p99 <= 100 ms", 6, 500, within=0.1)
def killed_while_they_meet(chance: random.Random) -> Report:
    return killed_meeting(chance, UNIX)


@row("over TCP: killed while members meet", "raise by name, p99 <= 1 s", 6, 500, within=1.0)
def killed_while_they_meet_over_tcp(chance: random.Random) -> Report:
    return killed_meeting(chance, TCP)


def replace(chance: random.Random, tcp: bool) -> Report:
    """The time is from the death of a member to the last byte of the first exchanges with the new one."""
    n = chance.choice([2, 3, 4])
    with pool_of(n, tcp) as pool:
        first = meet(pool, pool.members, 0)
        victim = chance.choice(pool.processes)
        calls = {one: Call(handles_of(pool.members), 1, LIMIT, until_lost=True) for one in pool.members}
        rank = pool.members.index(victim.members[0])
        ends = play(pool, calls, [Strike("kill", victim, "operation", chance.random() * 0.01)])
        lost = judge([End(end.rank, end.answers[-1:], 0) for end in ends], LOST, [f"rank {rank} ("], but=[rank])
        pool.start(victim.host, 1)
        again = meet(pool, pool.members, 2)
        report = worse(first, lost, again)
        report.seconds = time.monotonic() - victim.died if victim.died is not None else None
        return report


@row("a member is killed, and replaced", "right, p99 <= 1 s", 4, 300, within=1.0)
def replaced(chance: random.Random) -> Report:
    return replace(chance, UNIX)


@row("over TCP: a member is killed, and replaced", "right, p99 <= 1 s", 4, 300, within=1.0)
def replaced_over_tcp(chance: random.Random) -> Report:
    return replace(chance, TCP)


# ---- groups ----------------------------------------------------------------------------------------------------------


def merge_and_split(chance: random.Random, tcp: bool) -> Report:
    reports = []
    with pool_of(chance.choice([4, 5, 6]), tcp) as pool:
        members = pool.members
        for round_ in range(4):
            chance.shuffle(members)
            cut = chance.randint(1, len(members) - 1)
            lists = [members] if round_ % 2 else [members[:cut], members[cut:]]
            calls = {
                one: Call(handles_of(part), 10 * round_ + i, LIMIT, steps=STEPS)
                for i, part in enumerate(lists)
                for one in part
            }
            reports.append(all_right(play(pool, calls)))
    return worse(*reports)


@row("groups split and merge", "the right result", 3, 200)
def split_and_merge(chance: random.Random) -> Report:
    return merge_and_split(chance, UNIX)


@row("over TCP: groups split and merge", "the right result", 3, 200)
def split_and_merge_over_tcp(chance: random.Random) -> Report:
    return merge_and_split(chance, TCP)


# ---- started again ---------------------------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys, threading, time
import numpy as np
import a2a
victim, delay, folder = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
again = "A2A_RESTART" in os.environ
comm = a2a.init(timeout=30, elastic=True)
if comm.rank == victim and not again:
    def end():
        time.sleep(delay)
        with open(folder + "/died", "w") as file:
            file.write(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=end, daemon=True).start()
generations = 0 if not again else 1
while generations < 1:
    try:
        while True:
            recv = np.empty(comm.size, int)
            comm.alltoall(np.arange(comm.size) + 10 * comm.rank, recv)
            assert (recv == 10 * np.arange(comm.size) + comm.rank).all()
    except a2a.PeerLostError as error:
        assert f"rank {victim} " in str(error), error
        comm = comm.recover()
        generations += 1
assert comm.joined == [victim], comm.joined
comm.barrier()
with open(f"{folder}/{comm.rank}", "w") as file:
    file.write(str(time.monotonic()))
comm.close()
"""


@row("a2a run --restarts: a rank is killed", "all go on, p99 <= 3 s", 2, 60, within=3.0)
def started_again(chance: random.Random) -> Report:
    return restart(chance, {})


@row("over TCP: a2a run --restarts: a rank is killed", "all go on, p99 <= 3 s", 1, 60, within=3.0)
def started_again_over_tcp(chance: random.Random) -> Report:
    return restart(chance, {"A2A_HOSTS": "a,b,a,b", "A2A_SECRET": secrets.token_hex(16)})


def restart(chance: random.Random, variables: dict[str, str]) -> Report:
    n = 4 if variables else chance.choice([2, 3, 4])
    victim, delay = chance.randrange(n), chance.random() * 0.05
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "program.py"
        script.write_text(PROGRAM)
        command = [sys.executable, "-m", "a2a", "run", "-n", str(n), "--restarts", "2", str(script)]
        done = _run([*command, str(victim), str(delay), folder], variables)
        if done is None:
            return Report("hang")
        if done.returncode != 0:
            return Report("unclear", text=done.stderr[-1000:])
        script.unlink()
        times = {path.name: float(path.read_text()) for path in Path(folder).iterdir()}
    died = times.pop("died")
    return Report("right" if len(times) == n else "unclear", max(times.values()) - died, done.stderr)


def _run(command: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str] | None:
    env: dict[str, Any] = os.environ | variables
    try:
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return None
