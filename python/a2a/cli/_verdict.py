"""Finds the rank that made a job of ``a2a run`` fail: it raised, it died, or it never came. It need not have ended
first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .._ended import FOLLOWED


@dataclass(frozen=True)
class End:
    """The end of a rank."""

    rank: int
    code: int
    """its exit code, 128 + number for a signal"""
    how: str
    """as its parent saw it"""
    told: str
    """the rank's own message, or nothing"""

    @property
    def reason(self) -> str:
        """Why it ended: in its own words, if there are any."""
        return self.told or self.how

    @property
    def follows(self) -> bool:
        """Whether it failed because of another rank."""
        return self.told.startswith(FOLLOWED)


def cause(ends: Sequence[End]) -> End:
    """Return the first rank that failed by itself; if each blames another one, the first that failed."""
    failures = [end for end in ends if end.code != 0]
    return next((end for end in failures if not end.follows), failures[0])


def verdict(ends: Sequence[End], ended: Sequence[int]) -> str:
    """Return why the job failed. ``ended`` are the ranks that had not failed, and were ended because of that."""
    first = cause(ends)
    followers = [end for end in ends if end.follows]
    ending = f"; ended {_ranks(ended)}" if ended else ""
    if not first.follows:
        others = [end.rank for end in followers if end is not first]
        followed = f"; {_ranks(others)} failed because of it" if others else ""
        return f"rank {first.rank} {first.reason}{followed}{ending}"
    who, said = _ranks([end.rank for end in followers]), first.told.removeprefix(FOLLOWED).strip()
    if "MismatchError" in said:
        return f"{who} do not agree: {said}{ending}"
    said = f"{who} gave up: {said}"
    named = re.sub(r"; ranks? [\d, ]+(and \d+ more )?ha(s|ve) come", "", first.told)
    late = [rank for rank in ended if re.search(rf"\brank {rank}\b", named)]
    if "TimeoutError" in first.told and late == list(ended) != []:
        return f"{_ranks(ended)} did not come: {said}"
    return said + ending


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, sorted(ranks)))
