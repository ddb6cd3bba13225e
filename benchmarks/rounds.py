"""The measuring itself: all contenders alive, one of them running at a time, in turn, for several rounds."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cases import REDUCTIONS, Case
from contenders import Contender
from floor import Floor
from group import Group, GroupError
from results import FLOOR, Point, Sample

MIN_ROUNDS = 2
MAX_FAILURES = 2
_LIMIT_BYTES_PER_S = 5e7  # Large cases may take longer before they count as hung.


@dataclass(frozen=True)
class Effort:
    """How long one case is measured."""

    rounds: int
    budget_s: float
    """Of iterations, for a contender in a round."""
    limit_s: float
    """After which a contender counts as hung."""
    case_s: float
    """After which no further round begins, if there are enough."""


class Seat:
    """A contender's place in the run: its group is started again after a failure, until it has failed too often."""

    def __init__(self, contender: Contender, ranks: int, scratch: Path, barrier_library: Path) -> None:
        self.name = contender.name
        self.version = ""
        self.failure = ""
        self._contender = contender
        self._start = (ranks, scratch, barrier_library)
        self._failures = 0
        self._group: Group | None = None
        self._stack = contextlib.ExitStack()

    @property
    def given_up(self) -> bool:
        return self._failures >= MAX_FAILURES

    def open(self) -> None:
        """Starts the ranks unless they run. After a failure ``failure`` says why there are none."""
        if self._group or self.given_up:
            return
        try:
            self._group = self._stack.enter_context(Group(self._contender, *self._start))
            self._group.connect()
            self.version = self._group.version
            self.failure = ""
        except (GroupError, OSError) as error:
            self._fail(str(error))

    def measure(self, case: Case, effort: Effort) -> Sample | None:
        """None after a failure."""
        if not self._group:
            return None
        command = {"do": "run", "op": case.op, "size": case.size, "budget_s": effort.budget_s}
        try:
            replies = self._group.run(command, effort.limit_s + case.memory_bytes / _LIMIT_BYTES_PER_S)
            return Sample.of_replies(replies)
        except GroupError as error:
            self._fail(str(error))
            return None

    def close(self) -> None:
        self._group = None
        self._stack.close()

    def _fail(self, reason: str) -> None:
        self._failures += 1
        self.failure = reason
        self._group = None
        stack, self._stack = self._stack, contextlib.ExitStack()
        # Told of an error, the group is killed instead of asked to quit.
        with contextlib.suppress(GroupError), stack:
            raise GroupError(reason)


def run_case(case: Case, seats: Sequence[Seat], floor: Floor | None, effort: Effort) -> list[Point]:
    """One point per contender."""
    end = time.monotonic() + effort.case_s
    # Bare copies add nothing up.
    seats = [seat for seat in seats if case.op not in REDUCTIONS or not seat.name.startswith("bare")]
    points = {seat.name: Point(seat.name, case.op, case.ranks, case.size) for seat in seats}
    for seat in seats:
        seat.open()
    floor_point = Point(FLOOR, case.op, case.ranks, case.size)
    turn = random.Random(case.size)
    for number in range(effort.rounds):
        if number >= MIN_ROUNDS and time.monotonic() > end:
            break
        if floor and not floor_point.failure:
            try:
                floor_point.samples.append(floor.copy(case, effort.budget_s))
            except GroupError as error:
                floor_point.failure = str(error)
        # A new order in each round, so that no contender always follows the same neighbour.
        for seat in turn.sample(list(seats), len(seats)):
            sample = seat.measure(case, effort)
            if sample:
                points[seat.name].samples.append(sample)
    for seat in seats:
        points[seat.name].failure = seat.failure
    return [*points.values(), *([floor_point] if floor else [])]


def available_bytes() -> int:
    """Memory that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62
