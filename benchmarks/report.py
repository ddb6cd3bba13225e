"""Results as text: rows while the run goes on, a summary at its end, and tables for the documentation."""

from __future__ import annotations

from cases import Case
from results import BARRIER, REFERENCES, Point, Results, ratio

_QUIET_PERCENT = 10.0
_UNITS = (("MiB", 1 << 20), ("KiB", 1 << 10))


def size_text(size: int) -> str:
    for unit, factor in _UNITS:
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def time_text(time_us: float) -> str:
    return f"{time_us:.2f}" if time_us < 100 else f"{time_us:.0f}"


def header(versions: dict[str, str], host: dict[str, object]) -> str:
    lines = [f"# {host['cpu']}, {host['cpus']} CPUs, Linux {host['kernel']}, Python {host['python']}, {host['date']}"]
    if float(str(host["busy_percent"])) > _QUIET_PERCENT:
        lines.append(f"# others keep the CPUs {host['busy_percent']} % busy: all figures are rough")
    lines += [f"# {name}: {version}" for name, version in versions.items()]
    lines.append("# size: bytes per ordered pair of ranks; time: slowest rank's median, median of the rounds")
    return "\n".join(lines)


def column_names() -> str:
    columns = f"{'op':>22} {'ranks':>5} {'size':>9} {'contender':>10} {'time(us)':>10} {'min..max':>19}"
    return f"# {columns} {'algbw':>8} {'busbw':>8} {'#wrong':>6} {'time/a2a':>18}"


def rows(results: Results, case: Case) -> str:
    """One line per contender, as nccl-tests prints them."""
    base = results.point(case, results.own[0]) if results.own else None
    lines = []
    for point in results.points:
        if point.case == case:
            lines.append(_row(point, base))
    return "\n".join(lines)


def _row(point: Point, base: Point | None) -> str:
    name = f"  {point.op:>22} {point.ranks:>5} {size_text(point.size):>9} {point.contender:>10}"
    if not point.samples:
        return f"{name}   failed: {point.failure.splitlines()[0] if point.failure else 'no sample'}"
    spread = f"{time_text(min(point.times_us))}..{time_text(max(point.times_us))}"
    case = point.case
    against = str(ratio(point, base)) if base and base.samples and base is not point else ""
    rates = f"{case.algbw(point.time_us):>8.2f} {case.busbw(point.time_us):>8.2f} {point.wrong:>6}"
    if point.contender == BARRIER:
        rates = f"{'-':>8} {'-':>8} {'-':>6}"
    return f"{name} {time_text(point.time_us):>10} {spread:>19} {rates} {against:>18}" + (
        f"  (then failed: {point.failure.splitlines()[0]})" if point.failure else ""
    )


def summary(results: Results) -> str:
    """The best peer against the own contenders, one line per case; below it what failed."""
    lines = ["", "# best peer / own time: median of the rounds [lowest, highest]; above 1 a2a is ahead"]
    for case in results.cases():
        best = results.best_peer(case)
        if not best:
            continue
        ratios = "   ".join(f"{ratio.fast} {ratio}" for ratio in results.ratios(case))
        name = f"{case.op:>22} {case.ranks:>3} ranks {size_text(case.size):>9}"
        lines.append(f"{name}   best peer {best.contender:>8} {time_text(best.time_us):>9} us   {ratios}")
    if results.line_us is not None:
        lines.append(f"# round trip of a cache line between two processes: {results.line_us:.2f} us")
    first = {(p.contender, p.ranks, p.failure): p for p in reversed(results.points) if p.failure}
    for point in reversed(first.values()):
        lines.append(f"# {point.contender} failed in {point.op} ranks {point.ranks} size {point.size}: {point.failure}")
    wrong = sum(point.wrong for point in results.points)
    lines.append(f"# wrong words: {wrong}")
    return "\n".join(lines)


def markdown(results: Results) -> str:
    """Microseconds per call, one table per operation and number of ranks, and the ratios."""
    host = results.host
    parts = [
        f"{host['cpu']}, {host['cpus']} CPUs, Linux {host['kernel']}, Python {host['python']}, NumPy {host['numpy']}.",
        "Time in microseconds of one call (slowest rank's median; median of the rounds). Ratio: best peer / a2a, median"
        " of the rounds [lowest, highest].",
        "\n".join(f"- {name}: {version}" for name, version in results.versions.items()),
    ]
    if results.line_us is not None:
        parts.append(f"Round trip of a cache line between two processes: {results.line_us:.2f} us.")
    tables = dict.fromkeys((case.op, case.ranks) for case in results.cases())
    parts += [_table(results, op, ranks) for op, ranks in tables]
    return "\n\n".join(parts) + "\n"


def _table(results: Results, op: str, ranks: int) -> str:
    names = sorted(results.contenders(), key=lambda name: name not in REFERENCES)
    columns = ["per pair", *names, *(f"ratio {name}" for name in results.own)]
    lines = [f"### {op}, {ranks} ranks", "", _cells(columns), _cells(["---:"] * len(columns))]
    for case in results.cases():
        if (case.op, case.ranks) != (op, ranks):
            continue
        points = [results.point(case, name) for name in names]
        times = [time_text(point.time_us) if point else "failed" for point in points]
        ratios = {ratio.fast: str(ratio) for ratio in results.ratios(case)}
        lines.append(_cells([size_text(case.size), *times, *(ratios.get(name, "") for name in results.own)]))
    return "\n".join(lines)


def _cells(values: list[str]) -> str:
    return f"| {' | '.join(values)} |"
