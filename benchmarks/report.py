"""Results as text: rows while the run goes on, a summary at its end, and tables for the documentation."""

from __future__ import annotations

from cases import Case
from results import ABOVE_FLOOR_US, BARE, BARE_SHARED, FLOOR, GLOO, SHARED, Point, Results, ratio

_QUIET_PERCENT = 10.0
_LEGEND = (
    "MPI / a2a, gloo / a2a: the peer's time over that of a2a, median of the rounds [lowest, highest]; above 1 a2a is"
    " ahead"
)
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
    columns = f"{'op':>30} {'ranks':>5} {'size':>9} {'contender':>10} {'time(us)':>10} {'min..max':>19}"
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
    name = f"  {point.op:>30} {point.ranks:>5} {size_text(point.size):>9} {point.contender:>10}"
    if not point.samples:
        return f"{name}   failed: {point.failure.splitlines()[0] if point.failure else 'no sample'}"
    spread = f"{time_text(min(point.times_us))}..{time_text(max(point.times_us))}"
    case = point.case
    against = str(ratio(point, base)) if base and base.samples and base is not point else ""
    rates = f"{case.algbw(point.time_us):>8.2f} {case.busbw(point.time_us):>8.2f} {point.wrong:>6}"
    return f"{name} {time_text(point.time_us):>10} {spread:>19} {rates} {against:>18}" + (
        f"  (then failed: {point.failure.splitlines()[0]})" if point.failure else ""
    )


def summary(results: Results) -> str:
    """The peers and the floor against the own contenders, one line per case; below it where they are ahead, and what
    failed."""
    cases = results.cases()
    names = [["# op", "ranks", "size"], *([case.op, str(case.ranks), size_text(case.size)] for case in cases)]
    lines = ["", f"# times in us; {_LEGEND}"]
    lines += _aligned([name + cells for name, cells in zip(names, _comparisons(results, cases), strict=True)])
    lines += [f"# {line}" for line in _behind(results)]
    if results.line_us is not None:
        lines.append(f"# round trip of a cache line between two processes: {results.line_us:.2f} us")
    first = {(p.contender, p.ranks, p.failure): p for p in reversed(results.points) if p.failure}
    for point in reversed(first.values()):
        lines.append(f"# {point.contender} failed in {point.op} ranks {point.ranks} size {point.size}: {point.failure}")
    wrong = sum(point.wrong for point in results.points)
    lines.append(f"# wrong words: {wrong}")
    return "\n".join(lines)


def _comparisons(results: Results, cases: list[Case]) -> list[list[str]]:
    """A line of column names, and a line of cells for each case."""
    lines = [_comparison(results, case) for case in cases]
    names = list(dict.fromkeys(name for line in lines for name in line))
    return [names, *([line.get(name, "") for name in names] for line in lines)]


def _comparison(results: Results, case: Case) -> dict[str, str]:
    """By column: which MPI is the best, its and Gloo's time over a2a's, its time over a bare exchange's,
    and how near a2a comes to the floor."""
    cells = {}
    if best := results.best_mpi(case):
        cells["best MPI"] = f"{best.contender} {time_text(best.time_us)}"
    for against in results.ratios(case):
        cells[f"{GLOO if against.slow == GLOO else 'MPI'} / {against.fast}"] = str(against)
    for reference in (BARE, BARE_SHARED):
        if best and (bare := results.point(case, reference)):
            cells[f"MPI / {reference}"] = str(ratio(best, bare))
    if floor := results.point(case, FLOOR):
        cells[FLOOR] = time_text(floor.time_us)
    if above := results.above_floor(case):
        cells[f"{SHARED} / (floor + {ABOVE_FLOOR_US:g} us)"] = str(above)
    return cells


def _behind(results: Results) -> list[str]:
    """Every point where a2a is slower than a peer in all rounds, under a line that says so."""
    points = [
        f"- {case.op}, {case.ranks} ranks, {size_text(case.size)}: {against.slow} / {against.fast} {against}"
        for case, against in results.behind()
    ]
    return [f"Where a2a is behind in all rounds:{'' if points else ' nowhere.'}", *points]


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in table]


def markdown(results: Results) -> str:
    """Microseconds per call, one table per operation and number of ranks, and the ratios."""
    host = results.host
    parts = [
        f"{host['cpu']}, {host['cpus']} CPUs, Linux {host['kernel']}, Python {host['python']}, NumPy {host['numpy']}.",
        f"Time in microseconds of one call (slowest rank's median; median of the rounds). {_LEGEND}.",
        "\n".join(f"- {name}: {version}" for name, version in results.versions.items()),
    ]
    if results.line_us is not None:
        parts.append(f"Round trip of a cache line between two processes: {results.line_us:.2f} us.")
    tables = dict.fromkeys((case.op, case.ranks) for case in results.cases())
    parts += [_table(results, op, ranks) for op, ranks in tables]
    head, *points = _behind(results)
    parts += [head, "\n".join(points)] if points else [head]
    return "\n\n".join(parts) + "\n"


def _table(results: Results, op: str, ranks: int) -> str:
    cases = [case for case in results.cases() if (case.op, case.ranks) == (op, ranks)]
    # The floor stands among the comparisons.
    names = sorted((name for name in results.contenders() if name != FLOOR), key=lambda name: name != BARE)
    heads, *comparisons = _comparisons(results, cases)
    lines = [["per pair", *names, *heads]]
    lines.append(["---:"] * len(lines[0]))
    for case, cells in zip(cases, comparisons, strict=True):
        points = [results.point(case, name) for name in names]
        times = [time_text(point.time_us) if point else "failed" for point in points]
        lines.append([size_text(case.size), *times, *cells])
    return "\n".join([f"### {op}, {ranks} ranks", "", *map(_cells, lines)])


def _cells(values: list[str]) -> str:
    return f"| {' | '.join(values)} |"
