"""Pictures, by matplotlib if it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import trace
from .._core import InvalidArgumentError, UnsupportedError


def check(file: str) -> None:
    """Raise now the errors that would otherwise come after the work."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError("--plot needs matplotlib: pip install 'a2a-comm[plot]'")
    if not Path(file).resolve().parent.is_dir():
        raise InvalidArgumentError(f"--plot {file}: there is no directory {Path(file).resolve().parent}")
    from matplotlib.figure import Figure

    known = Figure().canvas.get_supported_filetypes()
    if Path(file).suffix[1:].lower() not in known:
        raise InvalidArgumentError(f"--plot {file}: the name has to end in one of {', '.join(sorted(known))}")


def heat_map(matrix: npt.NDArray[np.float64], file: str, title: str, frameworks: Sequence[str]) -> None:
    """Draw a matrix of numbers: rows send, columns receive."""
    from matplotlib.figure import Figure

    ranks = len(matrix)
    side = min(12.0, 3 + 0.7 * ranks)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes: Any = figure.subplots()
    image = axes.imshow(matrix, cmap="viridis", vmin=0)
    figure.colorbar(image, ax=axes, shrink=0.8)
    labels = [f"{rank} {name}" for rank, name in enumerate(frameworks)]
    axes.set_xticks(range(ranks), labels, rotation=30)
    axes.set_yticks(range(ranks), labels)
    axes.set(title=title, xlabel="receiving rank", ylabel="sending rank")
    if ranks <= 16:
        for (row, column), value in np.ndenumerate(matrix):
            shade = "black" if value > matrix.max() * 0.6 else "white"
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=shade)
    figure.savefig(file, dpi=150)


def curves(sizes: Sequence[int], lines: dict[str, Sequence[float]], file: str, title: str, unit: str) -> None:
    """Draw lines over message sizes, with logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes: Any = figure.subplots()
    for label, values in lines.items():
        axes.plot(sizes, values, marker="o", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set(title=title, xlabel="bytes", ylabel=unit)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=150)


def timeline(group: trace.Group, file: str) -> None:
    """A row for each rank with its operations, grey while it waited for the last peer; beside it who sent to whom."""
    from matplotlib.figure import Figure

    colours = [f"C{i}" for i in range(10) if i != 7]  # C7 is grey
    names = sorted({one.op for ranks in group.ranks for one in ranks.operations.values()})
    colour = {name: colours[i % len(colours)] for i, name in enumerate(names)}
    waits = {(wait.rank, wait.number): wait.seconds for wait in group.waits}
    begin = min((one.started for ranks in group.ranks for one in group.operations(ranks.rank)), default=0.0)
    figure = Figure(figsize=(13, 2.5 + 0.35 * group.size), layout="constrained")
    rows, square = figure.subplots(1, 2, width_ratios=[3, 1])
    for ranks in group.ranks:
        operations = group.operations(ranks.rank)
        bars = [((one.started - begin) * 1e3, (one.ended - one.started) * 1e3) for one in operations]
        waited = [((one.started - begin) * 1e3, waits[ranks.rank, one.number] * 1e3) for one in operations]
        rows.broken_barh(bars, (ranks.rank - 0.4, 0.8), color=[colour[one.op] for one in operations])
        rows.broken_barh(waited, (ranks.rank - 0.4, 0.8), color="C7")
    for name in names:
        rows.barh(0, 0, color=colour[name], label=name)
    rows.barh(0, 0, color="C7", label="waits for the last peer")
    rows.set(title=f"{group.label}: operations of each rank", xlabel="ms", ylabel="rank")
    rows.set_yticks(range(group.size))
    rows.invert_yaxis()
    rows.legend(loc="upper right", fontsize="small")
    image = square.imshow(group.traffic() / 2**20, cmap="viridis", vmin=0)
    figure.colorbar(image, ax=square, shrink=0.8, label="MiB")
    square.set(title="bytes sent", xlabel="receiving rank", ylabel="sending rank")
    figure.savefig(file, dpi=150)
