"""What stands in the scorecard: each row is a fault, injected many times."""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from .harness import OUTCOMES, Belongings, NotRun, Report

FAMILIES = (
    "death",
    "stop",
    "disagreement",
    "operations",
    "arguments",
    "limits",
    "signals",
    "forks",
    "lifetime",
    "joining",
    "threads",
    "network",
    "cables",
    "mpi",
    "generations",
    "views",
    "soak",
)
_MOST_FAILURES = 5  # shown of a row


@dataclass(frozen=True)
class Row:
    """A fault. ``trial(chance)`` injects it once, or a few times, and says how each ended."""

    name: str
    family: str
    target: str
    quick: int
    full: int
    trial: Callable[..., list[Report] | Report]
    within: float | None
    """Seconds in which all ranks have to know: 99 of 100 times."""
    exactly: float | None
    """Seconds after which they have to know, give or take a tenth."""
    faultpoints: bool
    """Whether it needs a library with fault points."""
    long: bool
    """Whether one trial injects all that are wanted, within so many seconds: ``trial(chance, n, seconds)``."""


ROWS: dict[str, Row] = {}


def row(
    name: str,
    target: str,
    quick: int,
    full: int,
    within: float | None = None,
    exactly: float | None = None,
    faultpoints: bool = False,
    long: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function a row. N in a quick and in a full run are ``quick`` and ``full``; 0 leaves it out."""

    def enter(trial: Callable[..., Any]) -> Callable[..., Any]:
        family = trial.__module__.rpartition(".")[2]
        ROWS[name] = Row(name, family, target, quick, full, trial, within, exactly, faultpoints, long)
        return trial

    return enter


def load() -> dict[str, Row]:
    for family in FAMILIES:
        importlib.import_module(f"tests.faults.families.{family}")
    return ROWS


@dataclass
class Result:
    """What came of a row."""

    row: str
    family: str
    target: str
    library: str = "a2a"
    n: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    ms: dict[str, float] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    passed: bool = False
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    not_run: str = ""
    note: str = ""

    @property
    def share(self) -> float:
        """Of the faults that ended in a clear error or the right result."""
        return (self.outcomes.get("clear", 0) + self.outcomes.get("right", 0)) / self.n if self.n else 0.0


def run_row(row: Row, n: int, seed: int, strict: bool, seconds: float) -> Result:
    """Injects the fault until it has ended n times, or for so many seconds. Trial i has the seed ``seed + i``, so a
    failure can be repeated alone. ``strict`` holds the delays to the 99th percentile, otherwise to the median."""
    result = Result(row.name, row.family, row.target, left={"files": 0, "descriptors": 0, "processes": 0})
    begin = time.monotonic()
    delays: list[float] = []
    trial = seed
    while result.n < n and time.monotonic() - begin < seconds:
        before = Belongings.now()
        try:
            chance = random.Random(f"{row.name}:{trial}")
            reports = row.trial(chance, n, seconds) if row.long else row.trial(chance)
        except NotRun as reason:
            result.not_run = str(reason)
            return result
        except Exception as error:
            reports = Report("crash", text=f"the harness failed: {error!r}")
        for report in reports if isinstance(reports, list) else [reports]:
            _count(result, report, trial, delays)
        left = left_since(before)
        if any(left.values()):
            result.failures.append({"seed": trial, "outcome": "leftovers", "text": str(left)})
            result.left = {kind: result.left[kind] + count for kind, count in left.items()}
        trial += 1
    result.seconds = time.monotonic() - begin
    if delays:
        delays.sort()
        quantiles = {"p50": 0.5, "p99": 0.99, "max": 1.0}
        result.ms = {name: round(1000 * _quantile(delays, q), 2) for name, q in quantiles.items()}
    result.passed = not result.failures and _in_time(row, delays, strict)
    del result.failures[_MOST_FAILURES:]
    return result


def left_since(before: Belongings, grace_seconds: float = 1.0) -> dict[str, int]:
    """Whoever is just leaving, like the helper processes of multiprocessing, has a moment to do so."""
    deadline = time.monotonic() + grace_seconds
    while (now := Belongings.now()).has_more_than(before) and time.monotonic() < deadline:
        time.sleep(0.005)
    return now.left_since(before)


def _count(result: Result, report: Report, trial: int, delays: list[float]) -> None:
    result.n += 1
    result.note = report.note or result.note
    result.outcomes[report.outcome] = result.outcomes.get(report.outcome, 0) + 1
    if report.seconds is not None:
        delays.append(report.seconds)
    if OUTCOMES.index(report.outcome) > OUTCOMES.index("clear"):
        result.failures.append({"seed": trial, "outcome": report.outcome, "text": report.text[:600]})


def _quantile(ordered: list[float], q: float) -> float:
    return ordered[min(int(q * len(ordered)), len(ordered) - 1)]


def _in_time(row: Row, delays: list[float], strict: bool) -> bool:
    if not delays:
        return True
    late = _quantile(delays, 0.99 if strict else 0.5)
    # A few trials on a machine with other work tell whether somebody waits for a limit that he should not wait for.
    allowance, slack = (1.0, 0.0) if strict else (3.0, 0.25)
    if row.within is not None and late > allowance * row.within:
        return False
    return row.exactly is None or (delays[0] >= 0.9 * row.exactly and late <= 1.1 * row.exactly + slack)


def as_json(result: Result) -> dict[str, Any]:
    return asdict(result)
