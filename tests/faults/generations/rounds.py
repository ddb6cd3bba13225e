"""What happens in a round of a plan of generations: groups that meet at the same time, and what goes wrong in each."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from ..chaos_ranks import OPERATIONS
from .member import Call, steps_of
from .pool import Member, Pool, Process, Strike

TRANSPORTS = ("shm", "threads", "tcp", "mixed")
HOSTS = {"shm": 0, "threads": 0, "tcp": 99, "mixed": 2}  # as many names
PATIENCE = 10.0  # of a connect() that succeeds
SHORT = 3.0  # of one that fails, where an error is due before

# Faults of a group in which nobody dies. Those of LISTS are lists of one member that are not those of the others.
LISTS = ("order", "one is missing", "one too many", "a dead one too many")
INVALID = ("not itself", "one twice", "no handle", "negative generation")
FAULTS = (
    *LISTS,
    *INVALID,
    "generation",
    "used",
    "absent",
    "dead listed",
    "closed",
    "impatient",
    "drops",
    "aborts",
)


@dataclass
class Group:
    """Those of one list. ``who`` is the one that differs."""

    members: list[Member]
    generation: int
    number: int
    fault: str = ""
    who: Member | None = None
    calls: dict[Member, Call] = field(default_factory=dict)
    handles: list[str] = field(default_factory=list)

    def rank_of(self, member: Member) -> int:
        return self.members.index(member)


@dataclass
class Round:
    groups: list[Group]
    strikes: list[Strike]
    formers: dict[Member, tuple[int, int] | None]
    """The groups that they come from."""
    seconds: float
    """After which whoever is not done hangs."""

    def struck(self, *moments: str) -> set[Process]:
        return {s.process for s in self.strikes if s.kind == "kill" and (not moments or s.moment in moments)}


def draw(chance: random.Random, pool: Pool, transport: str, numbers: Numbers) -> Round:
    groups = _groups(chance, pool, numbers)
    strikes = _strikes(chance, pool, groups)
    deadly = {strike.process for strike in strikes if strike.kind == "kill"}
    for group in groups:
        _calls(chance, group, transport)
        if any(member.process in deadly for member in group.members):
            _die(chance, group, strikes)
        elif any(strike.process in _processes(group) for strike in strikes):
            group.fault = "stop"
        elif chance.random() < 0.5:
            # A stranger that is listed by mistake is in another generation, or in none.
            far = [one for other in groups if other.generation != group.generation for one in other.members]
            far += [one for one in pool.members if not any(one in other.members for other in groups)]
            kinds = [kind for kind in FAULTS if _fits(kind, group, pool, far)]
            if kinds:
                group.fault = chance.choice(kinds)
                group.who = chance.choice(group.members)
                _spoil(chance, group, pool, numbers, far)
    formers = {member: member.group for group in groups for member in group.members}
    return Round(groups, strikes, formers, 4 * PATIENCE + 30)


class Numbers:
    """Of generations: none of them twice, in no order."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.taken = chance, set[int]()
        self.failed: list[int] = []
        """Those in which nobody could meet: they may be used again."""
        self.groups = 0

    def new(self) -> int:
        while True:
            number = self.chance.choice([len(self.taken), self.chance.randrange(40), self.chance.randrange(2**63)])
            if number not in self.taken:
                self.taken.add(number)
                return number

    def again(self, members: list[Member]) -> int:
        """One that failed before, if there is one that none of them has used."""
        free = [number for number in self.failed if all(number not in member.used for member in members)]
        return self.chance.choice(free) if free and self.chance.random() < 0.4 else self.new()


def _processes(group: Group) -> set[Process]:
    return {member.process for member in group.members}


def _groups(chance: random.Random, pool: Pool, numbers: Numbers) -> list[Group]:
    living = pool.members
    chance.shuffle(living)
    if len(living) > 2 and chance.random() < 0.2:
        del living[chance.randint(2, len(living) - 1) :]
    parts = chance.choice([1, 1, 1, 2, 2, 3])
    cuts = sorted(chance.randint(1, len(living)) for _ in range(parts - 1))
    lists = [living[a:b] for a, b in zip([0, *cuts], [*cuts, len(living)], strict=True) if a < b]
    same = numbers.new() if chance.random() < 0.4 else None
    groups = []
    for members in lists:
        numbers.groups += 1
        groups.append(Group(members, numbers.again(members) if same is None else same, numbers.groups))
        groups[-1].handles = [member.handle for member in members]
    return groups


def _strikes(chance: random.Random, pool: Pool, groups: list[Group]) -> list[Strike]:
    called = [process for process in pool.processes if any(process in _processes(group) for group in groups)]
    if chance.random() < 0.2:
        moment = chance.choice(["connect", "operation"])
        return [Strike("stop", chance.choice(called), moment, round(chance.random() * 0.25, 4))]
    if len(pool.processes) < 3 or chance.random() > 0.35:
        return []
    victim = chance.choice(called)
    moment = chance.choice(["before", "connect", "connect", "operation", "operation"])
    strikes = [Strike("kill", victim, moment, round(chance.choice([0.002, 0.01, 0.05]) * chance.random(), 5))]
    near = [p for p in called if p is not victim and any({p, victim} <= _processes(group) for group in groups)]
    if moment == "operation" and len(pool.processes) > 3 and near and chance.random() < 0.5:
        strikes.append(Strike("kill", chance.choice(near), "shrink", round(0.003 * chance.random(), 5)))
    return strikes


def _calls(chance: random.Random, group: Group, transport: str) -> None:
    members = group.members
    alone = all(len(member.process.members) == 1 for member in members)
    steps = steps_of(chance, [name for name in OPERATIONS if name != "forked" or alone], 4)
    leaves = chance.choice(["kept", "kept", "each", "closed", "in flight", "views"])
    if leaves == "views" and transport not in ("shm", "threads"):
        leaves = "in flight"
    idle = chance.choice(members)
    for member in members:
        own = chance.choice(["kept", "dropped"]) if leaves == "each" else leaves
        late = chance.random() * chance.choice([0, 0, 0.002, 0.01, 0.3])
        group.calls[member] = Call(
            group.handles,
            group.generation,
            PATIENCE,
            late=round(late, 4),
            steps=steps,
            leaves=own,
            idle=member is idle,
            forgets=chance.random() < 0.4,
        )


def _all(group: Group, **what: object) -> None:
    for member, call in group.calls.items():
        group.calls[member] = replace(call, **what)  # type: ignore[arg-type]


def _die(chance: random.Random, group: Group, strikes: list[Strike]) -> None:
    moments = [strike.moment for strike in strikes if strike.process in _processes(group)]
    group.fault = f"killed, {' and '.join(moments)}"
    # Where all that are left have made the communicator.
    victims = [member for member in group.members if any(strike.process is member.process for strike in strikes)]
    whole = all(len(strike.process.members) == 1 for strike in strikes) and len(victims) == len(strikes)
    shrinks = whole and set(moments) <= {"operation", "shrink"} and ("shrink" in moments or chance.random() < 0.7)
    _all(group, until_lost=True, shrinks=shrinks, leaves=chance.choice(["kept", "dropped"]))


def _fits(kind: str, group: Group, pool: Pool, far: list[Member]) -> bool:
    if kind in ("a dead one too many", "dead listed"):
        return bool(pool.dead)
    if kind == "one is missing":
        return len(group.members) > 2
    if kind == "one too many":
        return len(group.members) > 1 and bool(far)
    if kind == "used":
        return any(member.used for member in group.members)
    return len(group.members) > 1


def _spoil(chance: random.Random, group: Group, pool: Pool, numbers: Numbers, far: list[Member]) -> None:
    who, handles = group.who, list(group.handles)
    assert who is not None
    own = group.calls[who]
    if group.fault in (*LISTS, *INVALID, "generation"):
        _all(group, timeout=SHORT)
        late = {member: call.late * 0.6 for member, call in group.calls.items()}
        group.calls = {member: replace(call, late=late[member]) for member, call in group.calls.items()}
        group.calls[who] = replace(group.calls[who], **_wrong(chance, group, pool, numbers, far))
    elif group.fault == "used":
        numbers_used = sorted(set().union(*(member.used for member in group.members)))
        group.generation = chance.choice(numbers_used)
        _all(group, timeout=SHORT, generation=group.generation)
    elif group.fault == "absent":
        _all(group, timeout=round(0.4 + 0.5 * chance.random(), 3))
        del group.calls[who]
    elif group.fault == "closed":
        pool.renew(who)
        del group.calls[who]
    elif group.fault == "dead listed":
        handles.insert(chance.randrange(len(handles) + 1), chance.choice(pool.dead))
        group.handles = handles
        _all(group, timeout=PATIENCE, handles=handles)
    elif group.fault == "impatient":
        _all(group, timeout=1.5)
        group.calls[who] = replace(own, timeout=round(0.02 * chance.random(), 5))
    elif group.fault in ("drops", "aborts"):
        _all(group, until_lost=True, shrinks=group.fault == "drops" and chance.random() < 0.5)
        group.calls[who] = replace(own, first=group.fault, until_lost=False, steps=[])


def _wrong(chance: random.Random, group: Group, pool: Pool, numbers: Numbers, far: list[Member]) -> dict[str, object]:
    """What the call of the one that differs has in place of what the others have."""
    who, handles = group.who, list(group.handles)
    assert who is not None
    others = [handle for handle in handles if handle != who.handle]
    at = chance.randrange(len(handles) + 1)
    if group.fault == "order":
        handles = handles[1:] + handles[:1]
    elif group.fault == "one is missing":
        handles.remove(chance.choice(others))
    elif group.fault == "one too many":
        handles.insert(at, chance.choice(far).handle)
    elif group.fault == "a dead one too many":
        handles.insert(at, chance.choice(pool.dead))
    elif group.fault == "not itself":
        handles = others
    elif group.fault == "one twice":
        handles.insert(at, chance.choice(others))
    elif group.fault == "no handle":
        handles[handles.index(chance.choice(others))] = chance.choice(["", "nonsense", who.handle[:-2] + "zz"])
    elif group.fault == "negative generation":
        return {"generation": -1 - chance.randrange(2**62)}
    else:
        return {"generation": numbers.new()}
    return {"handles": handles}
