"""One report of the reports of all ranks: each failure once, the rank that failed first at the top."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from _pytest._code.code import ExceptionChainRepr, ReprEntryNative, ReprFileLocation, ReprTracebackNative

from a2a.testing.ranks.run import End
from a2a.testing.ranks.verdict import Fault, Group, grouped, in_words

__all__ = ["merge", "of_a_text"]

Phase = Literal["setup", "call", "teardown"]
_MOST_OUTPUT = 20_000


@dataclass
class _Result:
    """One rank in one phase."""

    end: End
    report: pytest.TestReport | None
    """None of a rank that did not live to make one"""

    @property
    def rank(self) -> int:
        """That of the process, or of a thread of it."""
        return getattr(self.report, "a2a_rank", self.end.rank)

    @property
    def failed(self) -> bool:
        return self.report is None or (self.report.failed and not self.passed_unexpectedly)

    @property
    def passed_unexpectedly(self) -> bool:
        return self.report is not None and str(self.report.longrepr).startswith("[XPASS(strict)]")


def of_a_text(item: pytest.Item, text: str, outcome: str = "failed") -> list[pytest.TestReport]:
    """Return the reports of a test that no rank has run."""
    path, line, _ = item.location
    longrepr = text if outcome == "failed" else (path, (line or 0) + 1, f"Skipped: {text}")
    return [_report(item, "setup", outcome, longrepr), _report(item, "teardown", "passed", None)]


def merge(
    item: pytest.Item, ends: Sequence[End], size: int, config: pytest.Config
) -> tuple[list[pytest.TestReport], bool]:
    """Return the reports of the test, and whether the ranks are fit for the next one."""
    received = [_received(end, config) for end in ends]
    results = {phase: [*_results(ends, received, phase)] for phase in ("setup", "call", "teardown")}
    if any(result.failed for result in results["setup"]):
        results["setup"] += [result for result in results["call"] if result.report is None]
        results["call"] = []
    reports = [_merged(item, cast("Phase", phase), found, size) for phase, found in results.items() if found]
    if not reports:  # every rank died, as the test asked
        reports.append(_report(item, "call", "passed", None))
    if reports[-1].when != "teardown":  # no rank lived to see it
        reports.append(_report(item, "teardown", "passed", None))
    fit = not any(end.died or (end.tested and end.tested.failure and not end.tested.failure.skipped) for end in ends)
    return reports, fit and not any(report.failed for report in reports)


def _received(end: End, config: pytest.Config) -> list[pytest.TestReport]:
    data = [*(end.tested.content if end.tested else ()), *(end.done[0]["reports"] if end.done else ())]
    return [config.hook.pytest_report_from_serializable(config=config, data=one) for one in data]


def _results(ends: Sequence[End], received: Sequence[list[pytest.TestReport]], phase: str) -> Iterator[_Result]:
    for end, reports in zip(ends, received, strict=True):
        yield from (_Result(end, report) for report in reports if report.when == phase)
        if end.died and not end.planned and phase == ("teardown" if end.tested else "call"):
            yield _Result(end, None)


def _merged(item: pytest.Item, phase: Phase, results: list[_Result], size: int) -> pytest.TestReport:
    reports = [result.report for result in results if result.report is not None]
    failed = [result for result in results if result.failed]
    extra: dict[str, Any] = {}
    outcome: Literal["passed", "failed", "skipped"] = "passed"
    longrepr: Any = None
    expected = [report for report in reports if hasattr(report, "wasxfail")]
    skipped = [report for report in reports if report.skipped and report not in expected]
    if failed:
        outcome, longrepr = "failed", _why(item, failed, size)
    elif any(report.skipped for report in expected):
        first = next(report for report in expected if report.skipped)
        outcome, longrepr, extra = "skipped", first.longrepr, {"wasxfail": first.wasxfail}
    elif skipped and len(skipped) < len(reports):
        ranks = in_words([r.rank for r in results if r.report in skipped])
        reason = skipped[0].longrepr[2] if isinstance(skipped[0].longrepr, tuple) else skipped[0].longrepr
        others = in_words([r.rank for r in results if r.report not in skipped])
        outcome, longrepr = "failed", f"{ranks} skipped the test ({reason}), and {others} did not: skip on all ranks"
    elif reports:
        outcome, longrepr = reports[0].outcome, reports[0].longrepr
        if expected:
            extra = {"wasxfail": expected[0].wasxfail}
    report = _report(item, phase, outcome, longrepr, extra)
    report.sections = _sections(results)
    report.duration = max(
        [one.duration for one in reports] + [r.end.seconds for r in failed if r.report is None], default=0
    )
    report.start = min((one.start for one in reports), default=0)
    report.stop = max((one.stop for one in reports), default=0)
    for one in reports:
        report.user_properties += [pair for pair in one.user_properties if pair not in report.user_properties]
    return report


def _report(
    item: pytest.Item, phase: Phase, outcome: Any, longrepr: Any, extra: dict[str, Any] | None = None
) -> pytest.TestReport:
    return pytest.TestReport(
        item.nodeid, item.location, dict.fromkeys(item.keywords, 1), outcome, longrepr, phase, **(extra or {})
    )


# ---- why a test failed -----------------------------------------------------------------------------------------------


def _why(item: pytest.Item, failed: Sequence[_Result], size: int) -> ExceptionChainRepr | str:
    by_rank = {result.rank: result for result in failed}
    groups = grouped(_fault(item, result) for result in failed)
    chain: list[tuple[Any, Any, None]] = []
    crash = _crash(item, by_rank[groups[0].first.rank])
    for at, group in enumerate(groups):
        header = group.header(size, culprit=at == 0, alone=len(groups) == 1)
        result = by_rank[group.first.rank]
        if result.report is None and len(by_rank) == 1 and result.end.threads:
            group.ranks = [*range(size)]
        parts = _parts(item, result, group, header, brief=at > 0 and (group.seen or group.first.follows))
        chain += [(part, crash, None) for part in parts]
    return ExceptionChainRepr(chain)


def _fault(item: pytest.Item, result: _Result) -> Fault:
    end, report = result.end, result.report
    if report is None:
        return Fault(end.rank, end.time, end.follows, "", end.died + end.stack)
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash else str(report.longrepr)
    time, follows = getattr(report, "a2a_failure", (end.time, False))
    return Fault(result.rank, time, follows, _line_of(item, report.longrepr), message)


def _line_of(item: pytest.Item, longrepr: Any) -> str:
    """Return the last line of the test's file in the traceback; without one, where the error was raised."""
    if not isinstance(longrepr, ExceptionChainRepr):
        return ""
    places = [entry.reprfileloc for entry in longrepr.chain[-1][0].reprentries if hasattr(entry, "reprfileloc")]
    of_test = [place for place in places if place is not None and Path(place.path).name == item.path.name]
    place = of_test[-1] if of_test else longrepr.reprcrash
    return f"{place.path}:{place.lineno}" if place is not None else ""


def _parts(item: pytest.Item, result: _Result, group: Group, header: str, brief: bool) -> list[Any]:
    """Return the pieces of text of one group: lines, or a traceback of pytest's."""
    report = result.report
    if report is None:
        first, _, rest = result.end.died.partition("\n")
        return [_lines(f"{in_words(group.ranks)} {first}", rest, result.end.stack, "")]
    if brief:
        message = [f"E   {line}" for line in group.first.message.splitlines()]
        return [_lines(header, *message, f"    at {_short(group.first.where)}" if group.first.where else "")]
    longrepr = report.longrepr
    if isinstance(longrepr, ExceptionChainRepr):
        return [_lines(header), *(traceback for traceback, _, _ in longrepr.chain)]
    return [_lines(header, str(longrepr))]


def _short(where: str) -> str:
    try:
        return str(Path(where).relative_to(Path.cwd()))
    except ValueError:
        return where


def _lines(*lines: str) -> ReprTracebackNative:
    made = ReprTracebackNative([])
    made.reprentries = [ReprEntryNative([f"{line}\n" for line in lines if line])]
    return made


def _crash(item: pytest.Item, result: _Result) -> ReprFileLocation:
    if result.report is not None:
        crash = getattr(result.report.longrepr, "reprcrash", None)
        if crash is not None:
            return ReprFileLocation(crash.path, crash.lineno, f"{in_words([result.rank])}: {crash.message}")
    path, line, _ = item.location
    text = str(result.report.longrepr) if result.report is not None else result.end.died
    return ReprFileLocation(path, (line or 0) + 1, f"{in_words([result.rank])} {text.splitlines()[0]}")


# ---- output ----------------------------------------------------------------------------------------------------------


def _sections(results: Sequence[_Result]) -> list[tuple[str, str]]:
    """Return what ranks have printed, the same text once."""
    found: dict[tuple[str, str], list[int]] = {}
    for result in results:
        printed = result.end.output.items() if result.report is None else ()
        sections = [(f"Captured {name} call", text[-_MOST_OUTPUT:]) for name, text in printed if text]
        for section in sections if result.report is None else result.report.sections:
            found.setdefault(section, []).append(result.rank)
    return [(f"{title} on {in_words(ranks)}", text) for (title, text), ranks in sorted(found.items(), key=_order)]


def _order(section: tuple[tuple[str, str], list[int]]) -> tuple[list[int], str]:
    return section[1], section[0][0]
