"""Which failed ranks of ``a2a run`` are started again, and when."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass

from ._verdict import End

# How long a rank waits before it is started again: the first time, and at most. Each wait is twice the one before.
_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 10.0
# A rank that ran for so long begins with the first wait again.
_SETTLED_SECONDS = 60.0


@dataclass
class _Rank:
    restarts: int = 0
    started: float = 0.0
    wait: float = 0.0


class Restarts:
    """The restarts of a job, ``most`` of all its ranks together."""

    def __init__(self, most: int) -> None:
        self._most, self._made = most, 0
        self._ranks: defaultdict[int, _Rank] = defaultdict(_Rank)
        self._waiting: dict[int, tuple[float, End]] = {}  # when each is started again, and how it ended

    def started(self, rank: int) -> None:
        """Note that the rank's process runs from now on."""
        self._ranks[rank].started = time.monotonic()

    def of(self, rank: int) -> int:
        """Return how often the rank was started again."""
        return self._ranks[rank].restarts

    def plan(self, end: End) -> str:
        """Plan to start a failed rank again. Returns the number of this restart in words; "" if none is left."""
        if self._made == self._most:
            return ""
        self._made += 1
        rank, now = self._ranks[end.rank], time.monotonic()
        settled = now - rank.started >= _SETTLED_SECONDS
        rank.wait = _FIRST_SECONDS if settled or rank.restarts == 0 else min(2 * rank.wait, _LONGEST_SECONDS)
        rank.restarts += 1
        self._waiting[end.rank] = (now + rank.wait, end)
        return f"{self._made} of {self._most} restarts"

    @property
    def next_at(self) -> float:
        """When the next rank is to be started again, in the seconds of time.monotonic(); infinity if none is."""
        return min((when for when, _ in self._waiting.values()), default=float("inf"))

    def due(self) -> list[int]:
        """Return the ranks whose wait is over. They no longer wait."""
        ranks = [rank for rank, (when, _) in self._waiting.items() if when <= time.monotonic()]
        for rank in ranks:
            del self._waiting[rank]
        return ranks

    def cancel(self) -> list[End]:
        """Start none of the ranks that wait. Returns their ends, in the order in which they ended."""
        ends = [end for _, end in self._waiting.values()]
        self._waiting.clear()
        return ends
