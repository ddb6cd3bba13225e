"""Chaos of generations: a pool of processes, whose endpoints meet in one group after the other."""

from __future__ import annotations

import collections
import random
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from .member import Call, steps_of
from .pool import Pool
from .rounds import HOSTS, PATIENCE, TRANSPORTS, Group, Numbers, Round, draw
from .verdicts import Answers, findings, slack

__all__ = ["TRANSPORTS", "Played", "play"]

STEADY = 12  # generations of the same members at the end
WARM_UP = 3  # of them, in which everything that is kept is made


@dataclass
class Played:
    """What came of a plan."""

    faults: list[str] = field(default_factory=list)
    answers: collections.Counter[str] = field(default_factory=collections.Counter)
    findings: list[str] = field(default_factory=list)

    def add(self, where: str, transport: str, round_: Round, answers: Answers, said: list[str]) -> None:
        self.faults += [group.fault for group in round_.groups if group.fault]
        self.answers.update(answer.kind for told in answers.values() for label, answer in told if label != "done")
        self.findings += [f"{where}: {line}" for line in (*said, *findings(transport, round_, answers))]


def play(transport: str, seed: int) -> Played:
    """The same for the same seed, but for what depends on time."""
    chance, played = random.Random(f"generations {transport}:{seed}"), Played()
    network = transport in ("tcp", "mixed")
    pool = Pool("127.0.0.1" if network else None, secrets.token_hex(16) if network else "")
    numbers = Numbers(random.Random(f"numbers {transport}:{seed}"))
    wanted = chance.randint(1, 2) if transport == "threads" else chance.randint(3, 6)
    try:
        for _ in range(wanted):
            _start(pool, transport, chance)
        for i in range(chance.randint(3, 9)):
            # What one round draws does not depend on how the former ended.
            _round(f"round {i}", random.Random(f"{transport}:{seed}:{i}"), pool, transport, numbers, played)
            if len(pool.processes) < wanted and chance.random() < 0.6:
                _start(pool, transport, chance)
            if any(" hangs" in line for line in played.findings):
                break
        else:
            _steady(random.Random(f"{transport}:{seed}:end"), pool, transport, numbers, played)
    finally:
        played.findings += pool.end()
    return played


def _start(pool: Pool, transport: str, chance: random.Random) -> None:
    several = {"threads": chance.randint(2, 4), "mixed": chance.choice([1, 1, 2])}
    host = f"host{chance.randrange(HOSTS[transport])}" if HOSTS[transport] else ""
    if transport == "tcp":
        host = f"host{pool.started}"
    pool.start(host, several.get(transport, 1))


def _round(where: str, chance: random.Random, pool: Pool, transport: str, numbers: Numbers, played: Played) -> None:
    round_ = draw(chance, pool, transport, numbers)
    calls = {member: call for group in round_.groups for member, call in group.calls.items()}
    answers, said = pool.play(calls, round_.strikes, round_.seconds * slack())
    played.add(where, transport, round_, answers, said)
    for group in round_.groups:
        _remember(group, answers, numbers)


def _remember(group: Group, answers: Answers, numbers: Numbers) -> None:
    done = [m for m in group.calls if any(label == "connect" and not a.error for label, a in answers.get(m, []))]
    for member in done:
        member.used.add(group.generation)
        member.group = (group.generation, group.number)
    for member in set(group.calls) - set(done):
        member.failed.add(group.calls[member].generation)
    if not done:
        numbers.failed.append(group.generation)


def _steady(chance: random.Random, pool: Pool, transport: str, numbers: Numbers, played: Played) -> None:
    """All living ones meet, whatever has been before; and what they have does not grow with the generations."""
    before: list[dict[str, int]] = []
    for i in range(STEADY):
        members, numbers.groups = pool.members, numbers.groups + 1
        chance.shuffle(members)
        group = Group(members, numbers.new(), numbers.groups, handles=[member.handle for member in members])
        steps = steps_of(chance, ["alltoallv", "several_in_flight", "in_shared_memory", "planned"], 2)
        for member in members:
            group.calls[member] = Call(group.handles, group.generation, PATIENCE, steps=steps, forgets=True)
        round_ = Round([group], [], {member: member.group for member in members}, PATIENCE + 30)
        answers, said = pool.play(group.calls, [], round_.seconds * slack())
        played.add(f"generation {i} of all", transport, round_, answers, said)
        _remember(group, answers, numbers)
        if said:
            return
        if i + 1 == WARM_UP:
            before = pool.measure()
    played.findings += list(_grown(pool, before))


def _grown(pool: Pool, before: list[dict[str, int]]) -> Iterator[str]:
    until = time.monotonic() + slack()
    while (after := pool.measure()) and time.monotonic() < until:
        if all(now[what] <= then.get(what, 0) for then, now in zip(before, after, strict=True) for what in now):
            return
        time.sleep(0.05)
    for process, then, now in zip(pool.processes, before, after, strict=True):
        for what in now:
            if now[what] > then.get(what, 0):
                text = f"{what} grew from {then.get(what, 0)} to {now[what]} in {STEADY - WARM_UP} generations"
                yield f"{process.name}: {text}"
