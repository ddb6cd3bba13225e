"""Pictures of a run: latency and busbw against size, or latency against ranks, with all contenders and the floor."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cases import Case
from report import size_text
from results import BARE, BARE_SHARED, FLOOR, Point, Results

_MIN_RANKS = 3  # So many numbers of ranks make a curve.
# The same for a contender in all pictures; a2a's own stand out.
_STYLES: dict[str, dict[str, Any]] = {
    "a2a": {"color": "#c1121f", "linewidth": 2.2, "marker": "o"},
    "a2a-plan": {"color": "#f3722c", "linewidth": 2.2, "marker": "s"},
    "a2a-shared": {"color": "#7b2cbf", "linewidth": 2.2, "marker": "D"},
    "openmpi": {"color": "#1f77b4", "marker": "^"},
    "mpich": {"color": "#2a9d8f", "marker": "v"},
    "impi": {"color": "#4c956c", "marker": "<"},
    "gloo": {"color": "#8d6e63", "marker": ">"},
    FLOOR: {"color": "black", "linestyle": "--"},
    BARE: {"color": "grey", "linestyle": ":"},
    BARE_SHARED: {"color": "#b39ddb", "linestyle": ":"},
}


def check(path: Path) -> None:
    """Raises ValueError for what would otherwise come up after the measuring."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("matplotlib is missing: pip install matplotlib")
    if not path.resolve().parent.is_dir():
        raise ValueError(f"there is no directory {path.resolve().parent}")
    from matplotlib.figure import Figure

    known = Figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise ValueError(f"{path} has to end in one of {', '.join(sorted(known))}")


def save_plots(results: Results, path: Path) -> list[Path]:
    """One picture per operation and number of ranks; of a run with one size and several numbers of ranks, one per
    operation. Returns the files: ``path`` itself if it is one, otherwise each with what it shows in its name."""
    pictures = _against_ranks(results) or _against_size(results)
    files = []
    for name, draw in pictures.items():
        files.append(path if len(pictures) == 1 else path.with_name(f"{path.stem}-{name}{path.suffix}"))
        _save(files[-1], draw, results)
    return files


Draw = Callable[[Any], None]


def _against_size(results: Results) -> dict[str, Draw]:
    groups: dict[tuple[str, int], list[Case]] = {}
    for case in results.cases():
        groups.setdefault((case.op, case.ranks), []).append(case)
    return {
        f"{op.replace(':', '-')}-{ranks}": partial(_draw_sizes, results, cases) for (op, ranks), cases in groups.items()
    }


def _against_ranks(results: Results) -> dict[str, Draw]:
    groups: dict[str, list[Case]] = {}
    for case in results.cases():
        groups.setdefault(case.op, []).append(case)
    one_size = len({case.size for case in results.cases()}) == 1
    if not one_size or min(map(len, groups.values())) < _MIN_RANKS:
        return {}
    return {op.replace(":", "-"): partial(_draw_ranks, results, cases) for op, cases in groups.items()}


def _save(path: Path, draw: Draw, results: Results) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # A fixed salt and no date: the same results make the same SVG.
    with rc_context({"svg.hashsalt": "a2a", "font.size": 9}):
        figure = Figure(figsize=(11, 4.6), layout="constrained")
        draw(figure)
        lines, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside right center", frameon=False)
        host = f"{results.host['cpu']}, {results.host['cpus']} CPUs, Linux {results.host['kernel']}"
        figure.supxlabel(host, fontsize=7, color="grey")
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def _draw_sizes(results: Results, cases: list[Case], figure: Any) -> None:
    latency, busbw = figure.subplots(1, 2)
    sizes = [case.size for case in cases]
    for name, points in _lines(results, cases):
        _latency(latency, [point.size for point in points], points, name)
        rates = [point.case.busbw(point.time_us) for point in points]
        busbw.plot([point.size for point in points], rates, label=name, markersize=4, **_style(name))
    if results.line_us is not None:
        latency.axhline(results.line_us, color="black", linewidth=0.8, linestyle=":", label="cache line round trip")
    latency.set(title=f"{cases[0].op}, {cases[0].ranks} ranks", ylabel="microseconds per call")
    busbw.set(title=f"{cases[0].op}, {cases[0].ranks} ranks", ylabel="busbw, GB/s")
    for axis in (latency, busbw):
        _ticks(axis, sizes, [size_text(size) for size in sizes], "bytes per ordered pair of ranks")


def _draw_ranks(results: Results, cases: list[Case], figure: Any) -> None:
    axis = figure.subplots()
    ranks = [case.ranks for case in cases]
    for name, points in _lines(results, cases):
        _latency(axis, [point.ranks for point in points], points, name)
    axis.set(title=f"{cases[0].op}, {size_text(cases[0].size)} per pair of ranks", ylabel="microseconds per call")
    _ticks(axis, ranks, [str(number) for number in ranks], "ranks")


def _lines(results: Results, cases: list[Case]) -> list[tuple[str, list[Point]]]:
    """The points that each contender has; contenders without any are left out."""
    found = [(name, [results.point(case, name) for case in cases]) for name in results.contenders()]
    return [(name, kept) for name, points in found if (kept := [point for point in points if point])]


def _latency(axis: Any, x: Sequence[int], points: Sequence[Point], name: str) -> None:
    """Median of the rounds, over a band from the lowest to the highest."""
    style = _style(name)
    axis.plot(x, [point.time_us for point in points], label=name, markersize=4, **style)
    low, high = [min(point.times_us) for point in points], [max(point.times_us) for point in points]
    axis.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _style(name: str) -> dict[str, Any]:
    return {"linewidth": 1.2} | _STYLES[name]


def _ticks(axis: Any, x: Sequence[int], labels: Sequence[str], title: str) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.minorticks_off()
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    step = -(-len(x) // 8)
    axis.set_xticks(x[::step], labels[::step], rotation=45, ha="right")
    axis.set_xlabel(title)
    axis.grid(alpha=0.3)
