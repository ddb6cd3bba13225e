"""Orders what failed on the ranks of a test, and puts ranks with the same failure together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Fault", "Group", "grouped", "in_words"]


@dataclass
class Fault:
    """What a rank failed with."""

    rank: int
    time: float
    follows: bool
    where: str
    message: str


@dataclass
class Group:
    """Ranks with the same failure."""

    first: Fault
    ranks: list[int]
    seen: bool
    """whether a group before this one failed at the same line, so that its traceback would say the same"""

    def header(self, of: int, *, culprit: bool, alone: bool) -> str:
        names = in_words(self.ranks)
        if self.first.follows and not culprit:
            return f"{names} followed:"
        if len(self.ranks) == of:
            return f"all {of} ranks failed alike:" if of > 1 else f"{names} failed:"
        if culprit and not alone:
            return f"{names} failed first:"
        return f"{names} of {of} failed:" if culprit else f"{names} failed:"


def grouped(faults: Iterable[Fault]) -> list[Group]:
    """Return the groups, the one with the rank that failed first, and not because of another, first."""
    found: dict[tuple[str, str], Group] = {}
    lines: set[str] = set()
    first, *others = sorted(faults, key=lambda fault: (fault.follows, fault.time))
    for fault in [first, *sorted(others, key=lambda fault: (fault.follows, fault.rank))]:
        # The same words about this rank, or about whichever rank has told the others.
        number = r"\d+" if fault.follows else str(fault.rank)
        key = (fault.where, re.sub(rf"\brank {number}\b", "rank", fault.message))
        if key in found:
            found[key].ranks.append(fault.rank)
            continue
        found[key] = Group(fault, [fault.rank], fault.where in lines)
        lines.add(fault.where)
    for group in found.values():
        group.ranks.sort()
    return list(found.values())


def in_words(ranks: Sequence[int]) -> str:
    """Return "rank 3" or "ranks 0-2, 5"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"
