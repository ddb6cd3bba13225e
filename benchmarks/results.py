"""What was measured, and the statistics that are reported of it."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from cases import Case

FLOOR = "floor"
BARE, BARE_SHARED = "bare", "bare-shared"
GLOO = "gloo"
SHARED = "a2a-shared"
ABOVE_FLOOR_US = 2.0
"""What an exchange on shared tensors is granted beyond the floor's copies: telling each other that they are there."""
REFERENCES = (FLOOR, BARE, BARE_SHARED)
"""What is measured for orientation and is no library."""


@dataclass(frozen=True)
class Sample:
    """One round of one contender, in microseconds: the slowest rank's median, and the median times from the first
    rank's start of a call to the last rank's end, and to the first rank's start of the next call, 0 where that was not
    taken."""

    time_us: float
    span_us: float
    wrong: int
    iterations: int
    step_us: float = 0.0

    @staticmethod
    def of_replies(replies: Sequence[dict[str, Any]]) -> Sample:
        starts = np.array([reply["starts"] for reply in replies])
        ends = np.array([reply["ends"] for reply in replies])
        slowest = float(np.median(ends - starts, axis=1).max())
        span = float(np.median(ends.max(axis=0) - starts.min(axis=0)))
        step = float(np.median(np.diff(starts.min(axis=0))))
        wrong, iterations = sum(r["wrong"] for r in replies), starts.shape[1]
        return Sample(slowest / 1e3, span / 1e3, wrong, iterations, step / 1e3)


@dataclass
class Point:
    """All rounds of one contender in one case. ``failure`` says why rounds are missing."""

    contender: str
    op: str
    ranks: int
    size: int
    samples: list[Sample] = field(default_factory=list)
    failure: str = ""

    @property
    def case(self) -> Case:
        return Case(self.op, self.ranks, self.size)

    @property
    def times_us(self) -> list[float]:
        return [sample.time_us for sample in self.samples]

    @property
    def time_us(self) -> float:
        return median(self.times_us)

    @property
    def wrong(self) -> int:
        return sum(sample.wrong for sample in self.samples)


@dataclass(frozen=True)
class Ratio:
    """How many times longer ``slow`` takes than ``fast``: round by round, so that both saw the same machine."""

    fast: str
    slow: str
    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def ratio(slow: Point, fast: Point, extra_us: float = 0.0) -> Ratio:
    """``extra_us`` is added to the time of ``fast``."""
    rounds = [a / (b + extra_us) for a, b in zip(slow.times_us, fast.times_us, strict=False)]
    return Ratio(fast.contender, slow.contender, median(rounds), min(rounds), max(rounds))


@dataclass
class Results:
    """One run of the harness."""

    host: dict[str, Any]
    options: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    own: list[str] = field(default_factory=list)
    line_us: float | None = None
    points: list[Point] = field(default_factory=list)

    def cases(self) -> list[Case]:
        return list(dict.fromkeys(point.case for point in self.points))

    def contenders(self) -> list[str]:
        return list(dict.fromkeys(point.contender for point in self.points))

    def point(self, case: Case, contender: str) -> Point | None:
        """None unless it has at least one sample."""
        for point in self.points:
            if point.contender == contender and point.case == case and point.samples:
                return point
        return None

    def best_mpi(self, case: Case) -> Point | None:
        """The fastest of the MPIs that deliver what was sent."""
        names = [name for name in self.contenders() if name not in (*REFERENCES, GLOO, *self.own)]
        peers = [self.point(case, name) for name in names]
        return min((peer for peer in peers if peer and not peer.wrong), key=lambda peer: peer.time_us, default=None)

    def ratios(self, case: Case) -> list[Ratio]:
        """The best MPI against each of the own contenders, and Gloo against the first of them."""
        best, gloo = self.best_mpi(case), self.point(case, GLOO)
        mine = [self.point(case, name) for name in self.own]
        against = [(best, point) for point in mine] + [(gloo, point) for point in mine[:1]]
        return [ratio(peer, point) for peer, point in against if peer and point]

    def above_floor(self, case: Case) -> Ratio | None:
        """a2a on shared tensors against the floor and ABOVE_FLOOR_US."""
        floor, shared = self.point(case, FLOOR), self.point(case, SHARED)
        return ratio(shared, floor, ABOVE_FLOOR_US) if floor and shared else None

    def behind(self) -> list[tuple[Case, Ratio]]:
        """Where a2a is slower than the best MPI or Gloo in every round."""
        return [(case, ratio) for case in self.cases() for ratio in self.ratios(case) if ratio.high < 1]

    def save(self, path: Path) -> None:
        report = asdict(self)
        report["ratios"] = [asdict(case) | asdict(ratio) for case in self.cases() for ratio in self.ratios(case)]
        path.write_text(json.dumps(report, indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> Results:
        report = json.loads(path.read_text())
        report.pop("ratios")
        points = [Point(**point | {"samples": [Sample(**s) for s in point["samples"]]}) for point in report["points"]]
        return Results(**report | {"points": points})


def host_facts() -> dict[str, Any]:
    """The machine, as far as figures depend on it."""
    return {
        "cpu": next(_cpu_lines("model name"), platform.processor() or platform.machine()),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "busy_percent": busy_percent(),
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def busy_percent(seconds: float = 0.5) -> float:
    """How busy all CPUs of the machine are just now. Anything above a few per cent makes figures rough."""
    before = _cpu_ticks()
    time.sleep(seconds)
    ticks = _cpu_ticks() - before
    idle = ticks[3] + ticks[4]  # Idle, and idle while a disk works.
    return round(100 * float(1 - idle / max(1, ticks.sum())), 1)


def _cpu_ticks() -> npt.NDArray[np.int64]:
    line = Path("/proc/stat").read_text().partition("\n")[0]
    return np.array(line.split()[1:9], dtype=np.int64)


def _cpu_lines(key: str) -> Iterator[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(key):
            yield line.partition(":")[2].strip()
