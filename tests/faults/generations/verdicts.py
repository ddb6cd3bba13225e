"""What is due in a round of a plan of generations, and what was not so."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..harness import Answer
from .pool import Member
from .rounds import INVALID, LISTS, Group, Round

LOST = ("PeerLostError", "AbortedError")  # whoever has lost somebody first aborts the group when it shrinks
WITHIN = {"shm": 0.1, "threads": 0.1, "tcp": 1.0, "mixed": 1.0}
DROPPED_SECONDS = 1.0
LINGERING = 0.25  # so much later a member still hears why there is no group

Answers = dict[Member, list[tuple[str, Answer]]]


def slack() -> float:
    """How much longer everything may take on this machine now."""
    return 1 + 2 * os.getloadavg()[0] / len(os.sched_getaffinity(0))


@dataclass
class Due:
    """How a connect() may end; "" is success."""

    outcomes: tuple[str, ...] = ("",)
    names: set[int] = field(default_factory=set)
    """Ranks of which the text of a PeerLostError or a TimeoutError names one."""
    since: float | None = None
    within: float = 0.0

    def or_success(self) -> Due:
        return Due((*self.outcomes, ""), self.names, self.since, self.within)


def findings(transport: str, round_: Round, answers: Answers) -> Iterator[str]:
    for group in round_.groups:
        for line in _Judge(transport, round_, group, answers).findings():
            yield f"[{group.fault or 'no fault'}, generation {group.generation}] {line}"


class _Judge:
    def __init__(self, transport: str, round_: Round, group: Group, answers: Answers) -> None:
        self.transport, self.round, self.group = transport, round_, group
        self.told = {member: answers.get(member, []) for member in group.calls}
        self.connects = {m: answer for m, told in self.told.items() for label, answer in told if label == "connect"}
        self.begins = {member: answer.time - answer.seconds for member, answer in self.connects.items()}
        self.dead = {member for member in group.members if member.process.died is not None}
        self.died = max((m.process.died for m in self.dead if m.process.died is not None), default=0.0)
        self.bound = WITHIN[transport] * slack() + 0.1

    def findings(self) -> Iterator[str]:
        for member, answer in self.connects.items():
            if member.process.died is None:
                yield from (f"{self._name(member)} connect: {line}" for line in self._connect(member, answer))
        for member in [one for one in self.told if one.process.died is None]:
            for label, answer in self.told[member]:
                if line := self._later(member, label, answer):
                    yield f"{self._name(member)} {label}: {line}: {answer.kind} {answer.error}: {answer.text}"

    def _name(self, member: Member) -> str:
        who = " (who)" if member is self.group.who else ""
        return f"{member.name}, rank {self.group.rank_of(member)} of {len(self.group.members)}{who}"

    # ---- connect() --------------------------------------------------------------------------------------------------

    def _connect(self, member: Member, answer: Answer) -> Iterator[str]:
        call, due = self.group.calls[member], self._due(member)
        said = f"{answer.error or 'success'} after {answer.seconds:.3f} s: {answer.text}"
        if answer.seconds > call.timeout + slack():
            yield f"waits beyond its deadline of {call.timeout} s: {said}"
        if answer.error not in due.outcomes:
            yield f"due was {' or '.join(o or 'success' for o in due.outcomes)}: {said}"
        elif answer.error and answer.error == due.outcomes[0]:
            if due.names and not due.names & {int(rank) for rank in re.findall(r"rank (\d+)", answer.text)}:
                yield f"names none of ranks {sorted(due.names)}: {said}"
            if due.since is not None and answer.time - due.since > due.within:
                yield f"{answer.time - due.since:.3f} s late, due within {due.within:.3f} s: {said}"
        elif not answer.error:
            yield from self._facts(member, answer)

    def _facts(self, member: Member, answer: Answer) -> Iterator[str]:
        group = self.group
        expected = (group.rank_of(member), len(group.members), group.generation, True, self._joined())
        if answer.note != expected:
            yield f"(rank, size, generation, handles, joined) are {answer.note}, due were {expected}"

    def _joined(self) -> list[int]:
        formers = [self.round.formers[member] for member in self.group.members]
        first = next((former for former in formers if former is not None), None)
        return [i for i, former in enumerate(formers) if first is not None and former != first]

    def _due(self, member: Member) -> Due:
        group, fault, begin = self.group, self.group.fault, self.begins[member]
        calls = [self.begins[one] for one in self.begins if one is not member]
        if fault.startswith("killed"):
            return self._due_of_death(member)
        if fault in ("dead listed", "closed"):
            return Due(("PeerLostError",), self._gone(), begin, self.bound)
        if fault == "absent":
            assert group.who is not None
            due = begin + group.calls[member].timeout
            # Whoever began first passes its deadline first, and tells the others.
            due = min([due, *(self.begins[one] + group.calls[one].timeout for one in self.begins)])
            if len(group.calls) == 1:
                return Due(("TimeoutError",), {group.rank_of(group.who)}, due, 0.1 + 0.1 * slack())
            return Due(("TimeoutError",), {group.rank_of(group.who)})
        if fault == "impatient":
            return Due(("", "TimeoutError"))
        if fault in (*LISTS, *INVALID, "generation", "used"):
            return self._due_of_disagreement(member, calls)
        return Due()

    def _gone(self) -> set[int]:
        handles, living = self.group.handles, {one.handle for one in self.group.members}
        return {i for i, handle in enumerate(handles) if handle not in living}

    def _due_of_death(self, member: Member) -> Due:
        group = self.group
        ranks = {group.rank_of(one) for one in self.dead}
        since = max(self.died, self.begins[member])
        if self.round.struck("before") & {one.process for one in self.dead}:
            return Due(("PeerLostError",), ranks, since, self.bound)
        # They have all that they need of those who have finished.
        whole = all(one in self.connects and not self.connects[one].error for one in self.dead)
        return Due(() if whole else ("PeerLostError",), ranks, since, self.bound).or_success()

    def _due_of_disagreement(self, member: Member, calls: list[float]) -> Due:
        group, begin = self.group, self.begins[member]
        refused = group.generation in member.used if group.fault == "used" else member is group.who
        if refused and group.fault in (*INVALID, "used"):
            return Due(("InvalidArgumentError",))
        outcomes = ["MismatchError"]
        # One of another group that is too many may have been killed.
        gone = self.round.struck() or any(other.fault == "closed" for other in self.round.groups)
        if group.fault == "a dead one too many" or (group.fault == "one too many" and gone):
            outcomes += ["PeerLostError", "TimeoutError"]  # nobody else lists it, so nobody else is told
        listed = {member for other in self.round.groups for member in other.members}
        if group.fault in ("generation", *LISTS) and any(group.generation in one.failed for one in listed):
            # Whoever has failed in it before tells the others of that, and waits for them itself.
            outcomes += ["PeerLostError", "TimeoutError"]
        # Whoever comes when the others have gone waits for them.
        alone = group.fault == "no handle" and len(group.members) == 2
        if alone or not calls or begin - min(calls) > LINGERING:
            outcomes.append("TimeoutError")
        last = self.begins[group.who] if group.who in self.begins else max(calls, default=begin)
        if group.fault == "used":
            last = max(calls, default=begin)
        return Due(tuple(outcomes), set(), max(begin, last), self.bound)

    # ---- what comes then --------------------------------------------------------------------------------------------

    def _later(self, member: Member, label: str, answer: Answer) -> str:
        """What is wrong with it; nothing if nothing is."""
        fault = self.group.fault
        if answer.kind == "wrong":
            return "wrong bytes"
        if label in ("connect", "done"):
            return ""
        if label in ("former", "work in flight"):
            return "" if answer.error in LOST else "its group is over"
        if label in ("former view", "shrink"):
            return "" if answer.kind == "right" else "due was success"
        if label == "loss":
            return self._loss(member, answer)
        if answer.kind == "right":
            return ""
        if (fault.startswith("killed") and self.dead) or fault in ("drops", "aborts"):
            return self._loss(member, answer)
        if fault == "impatient" and any(one.error for one in self.connects.values()):
            return "" if answer.error in LOST else "somebody did not come"
        return "an error without a fault"

    def _loss(self, member: Member, answer: Answer) -> str:
        group, fault = self.group, self.group.fault
        if fault.startswith("killed") and answer.kind == "right" and not 0 < self.died < answer.time:
            return ""  # who was to die in another group did not come so far there
        if answer.error not in LOST:
            return f"due was {' or '.join(LOST)}"
        if fault.startswith("killed"):
            since, within = self.died, self.bound
            if len(self.round.struck()) > 1:
                return ""  # the first death was earlier than the last
        else:
            assert group.who is not None
            since, within = self.connects[group.who].time, self.bound
            if fault == "drops":
                within = DROPPED_SECONDS * slack() + 0.1
        since = max(since, self.connects[member].time)
        late = answer.time - since
        # An earlier step may have been long; it ends when it notices.
        return f"{late:.3f} s late, due within {within:.3f} s" if late > within + self._busy(member, answer) else ""

    def _busy(self, member: Member, answer: Answer) -> float:
        """Time of steps that ended well after the fault: they did not need whoever is missed."""
        times = [other.time for label, other in self.told[member] if label.startswith("step") and other.kind == "right"]
        return max(0.0, max(times, default=0.0) - self.connects[member].time)
