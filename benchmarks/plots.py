"""Latency and busbw against size, all contenders and the floor in one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cases import Case
from report import size_text
from results import BARRIER, FLOOR, Results


def save_plot(results: Results, path: Path) -> None:
    """One row of two axes per operation and number of ranks. Raises ModuleNotFoundError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = list(dict.fromkeys((case.op, case.ranks) for case in results.cases()))
    figure, axes = pyplot.subplots(len(rows), 2, figsize=(13, 4.2 * len(rows)), squeeze=False, layout="constrained")
    for (op, ranks), (latency, busbw) in zip(rows, axes, strict=True):
        for name in results.contenders():
            cases = [case for case in results.cases() if (case.op, case.ranks) == (op, ranks)]
            _draw(results, cases, name, latency, busbw)
        latency.set_ylabel("microseconds per call")
        latency.set_yscale("log")
        busbw.set_ylabel("busbw, GB/s")
        for axis in (latency, busbw):
            _label(axis, f"{op}, {ranks} ranks on {results.host['cpus']} CPUs", sorted({case.size for case in cases}))
        if results.line_us is not None:
            latency.axhline(results.line_us, color="black", linewidth=0.8, linestyle=":", label="cache line round trip")
        latency.legend(fontsize=8)
    figure.suptitle(f"{results.host['cpu']}, Linux {results.host['kernel']}")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw(results: Results, cases: list[Case], name: str, latency: Any, busbw: Any) -> None:
    points = [point for case in cases if (point := results.point(case, name))]
    if not points:
        return
    own = name in results.own
    references = {FLOOR: {"color": "black", "linestyle": "--"}, BARRIER: {"color": "grey", "linestyle": ":"}}
    style = references.get(name, {"linewidth": 2.2 if own else 1.2})
    sizes = [point.size for point in points]
    times = [point.time_us for point in points]
    spread = [
        [time - min(point.times_us) for time, point in zip(times, points, strict=True)],
        [max(point.times_us) - time for time, point in zip(times, points, strict=True)],
    ]
    latency.errorbar(sizes, times, yerr=spread, marker=".", capsize=2, label=name, **style)
    if name == BARRIER:
        return
    rates = [point.case.busbw(point.time_us) for point in points]
    busbw.plot(sizes, rates, marker=".", label=name, **style)


def _label(axis: Any, title: str, sizes: list[int]) -> None:
    ticks = sizes[:: max(1, len(sizes) // 8)]
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [size_text(size) for size in ticks], fontsize=8)
    axis.set_xlabel("bytes per ordered pair of ranks")
    axis.set_title(title, fontsize=10)
    axis.grid(alpha=0.3)
