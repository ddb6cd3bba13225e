"""Pictures, by matplotlib if it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core import InvalidArgumentError, UnsupportedError


def check(file: str) -> None:
    """Raises before the work begins what would otherwise come up after it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError("--plot needs matplotlib: pip install 'a2a-comm[plot]'")
    if not Path(file).resolve().parent.is_dir():
        raise InvalidArgumentError(f"--plot {file}: there is no directory {Path(file).resolve().parent}")
    from matplotlib.figure import Figure

    known = Figure().canvas.get_supported_filetypes()
    if Path(file).suffix[1:].lower() not in known:
        raise InvalidArgumentError(f"--plot {file}: the name has to end in one of {', '.join(sorted(known))}")


def heat_map(matrix: npt.NDArray[np.float64], file: str, title: str, frameworks: Sequence[str]) -> None:
    """A square of numbers: rows send, columns receive."""
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
    """Lines over message sizes, both axes logarithmic."""
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
