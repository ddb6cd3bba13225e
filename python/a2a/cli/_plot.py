"""Pictures, by matplotlib if it is installed. A function writes one to a file and returns its Figure."""

from __future__ import annotations

import importlib.util
import io
import platform
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import trace
from .._core import InvalidArgumentError, UnsupportedError, core_version
from .._files import write
from ._machine import allowed_cpus

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_TICKS = 12
_MOST_DRAWN = 2048  # ranks
_MOST_INCHES = 60.0  # matplotlib refuses pictures of more than 2**16 dots
_MOST_CELLS = 16  # ranks whose cells have room for a number
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_TIME, _RATE = "time of a call, us", "size / time, GB/s"
_WAITING = "0.75"
_PALE = "0.95"


@dataclass(frozen=True)
class Curve:
    """Times over sizes."""

    label: str
    times: Sequence[float]
    """microseconds for each size"""
    highest: Sequence[float] | None = None
    """the upper edge of a band"""
    floor: bool = False
    """no library, but the least that the machine needs"""


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


def curves(sizes: Sequence[int], lines: Sequence[Curve], file: str, title: str, what: str) -> Figure:
    """Draw time and bandwidth over message sizes, or as bars if there is one. ``what`` says what a size is."""
    from matplotlib.figure import Figure

    several = len(sizes) > 1
    figure = Figure(figsize=(11, 4.8 if several else 1.8 + 0.4 * len(lines)), layout="constrained")
    slow, fast = figure.subplots(1, 2, sharey=not several)
    rates = [[size / us / 1e3 for size, us in zip(sizes, line.times, strict=True)] for line in lines]
    if several:
        _times(slow, sizes, lines)
        for line, rate in zip(lines, rates, strict=True):
            fast.plot(sizes, rate, **_style(line))
        fast.set(ylabel=_RATE)
        fast.set_ylim(bottom=0)
        for axes in (slow, fast):
            _size_ticks(axes, sizes)
            axes.set_xlabel(what)
        figure.legend(loc="outside upper left", ncols=4, frameon=False)
    else:
        _bars(slow, lines, [line.times[0] for line in lines], _TIME)
        _bars(fast, lines, [rate for (rate,) in rates], _RATE)
        slow.invert_yaxis()
        for axes in (slow, fast):
            axes.set_ylabel(size_text(sizes[0]))
    for axes in (slow, fast):
        axes.set_title(title)
        axes.grid(alpha=0.3, axis="both" if several else "x")
    return saved(figure, file)


def heat_map(matrix: npt.NDArray[Any], file: str, title: str, labels: Sequence[str]) -> Figure:
    """Draw the bytes from each rank (row) to each rank (column), with totals."""
    from matplotlib.figure import Figure

    side = min(12.0, 3 + 0.8 * len(matrix))
    figure = Figure(figsize=(side + 1.2, side), layout="constrained")
    axes = figure.subplots()
    traffic(axes, matrix, labels)
    axes.set_title(title)
    return saved(figure, file)


def timeline(group: trace.Group, file: str) -> Figure:
    """A row for each rank with its operations, grey while it waited for the last peer; beside it who sent to whom."""
    from matplotlib.figure import Figure

    if group.size > _MOST_DRAWN:
        raise InvalidArgumentError(f"--plot: {group.label} has {group.size} ranks; {_MOST_DRAWN} are the most")
    figure = Figure(figsize=(14, min(_MOST_INCHES, 3.6 + 0.4 * group.size)), layout="constrained")
    rows, square = figure.subplots(1, 2, width_ratios=[5, 2])
    _operations(rows, group)
    figure.legend(loc="outside upper left", ncols=8, fontsize="small", frameon=False)
    traffic(square, group.traffic(), [str(rank) for rank in range(group.size)])
    square.set_title("bytes sent")
    return saved(figure, file)


def size_text(nbytes: float) -> str:
    """Return a number of bytes as people write it: 4 KiB, 1.5 MiB."""
    power = _power(nbytes)
    return f"{_digits(nbytes / 1024**power)} {_UNITS[power]}"


def _power(nbytes: float) -> int:
    """Return the power of 1024 in whose unit a number of bytes is easy to read."""
    return next((power for power in range(len(_UNITS)) if nbytes < 1024 ** (power + 1)), len(_UNITS) - 1)


def _digits(value: float) -> str:
    """Return three digits, or all of the whole ones."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def saved(figure: Figure, file: str) -> Figure:
    """Write the picture, with the machine and the versions in its lower right corner. Text in an SVG stays text."""
    from matplotlib import rc_context

    figure.supxlabel(_made_by(), x=0.995, ha="right", fontsize=7, color="0.4")
    picture = io.BytesIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(picture, dpi=150, format=Path(file).suffix[1:].lower())
    write(file, picture.getvalue())
    return figure


def plain(text: str) -> str:
    """Return a text that matplotlib does not take for a formula."""
    return text.replace("$", r"\$")


def _made_by() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
    machine = f"{found[1].strip() if found else platform.machine()}, {allowed_cpus()} CPUs, Linux {platform.release()}"
    versions = f"a2a {core_version}, NumPy {np.__version__}, Python {platform.python_version()}"
    return f"{machine}; {versions}; {time.strftime('%Y-%m-%d')}"


def _style(line: Curve) -> dict[str, Any]:
    return {"color": "0.3", "linestyle": "--"} if line.floor else {"marker": "o", "markersize": 4}


def _times(axes: Any, sizes: Sequence[int], lines: Sequence[Curve]) -> None:
    from matplotlib.ticker import LogLocator

    for line in lines:
        (drawn,) = axes.plot(sizes, line.times, label=line.label, **_style(line))
        if line.highest:
            axes.fill_between(sizes, line.times, line.highest, color=drawn.get_color(), alpha=0.15, linewidth=0)
    axes.set(yscale="log", ylabel=_TIME)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _size_ticks(axes: Any, sizes: Sequence[int]) -> None:
    """Mark sizes, as many as have room."""
    apart = (max(sizes) / min(sizes)) ** (1 / _MOST_TICKS)
    ticks: list[int] = []
    for size in sorted(sizes):
        if not ticks or size >= ticks[-1] * apart:
            ticks.append(size)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [size_text(size) for size in ticks], rotation=30, ha="right")
    axes.minorticks_off()


def _bars(axes: Any, lines: Sequence[Curve], values: Sequence[float], name: str) -> None:
    colours = ["0.6" if line.floor else f"C{at}" for at, line in enumerate(lines)]
    bars = axes.barh([line.label.partition(":")[0] for line in lines], values, color=colours, height=0.6)
    axes.bar_label(bars, [f"{value:.3g}" for value in values], padding=3)
    axes.margins(x=0.15)
    axes.set_xlabel(name)


def traffic(axes: Any, matrix: npt.NDArray[Any], labels: Sequence[str]) -> None:
    """Rows send and columns receive; behind the last are the totals."""
    ranks, power = len(matrix), _power(float(matrix.max()))
    matrix = matrix / 1024**power
    most = float(matrix.max()) or 1.0
    axes.imshow(matrix, cmap="Blues", vmin=0, vmax=most)
    with_totals = ranks <= _MOST_CELLS
    if with_totals:
        for (row, column), value in np.ndenumerate(_with_totals(matrix)):
            dark = row < ranks and column < ranks and value > 0.6 * most
            weight = "bold" if ranks in (row, column) else "normal"
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9, "weight": weight}
            axes.text(column, row, _digits(value), color="w" if dark else "k", **style)
        axes.axhspan(ranks - 0.5, ranks + 0.5, color=_PALE, zorder=0)
        axes.axvspan(ranks - 0.5, ranks + 0.5, color=_PALE, zorder=0)
    end = ranks + with_totals
    axes.set(xlim=(-0.5, end - 0.5), ylim=(end - 0.5, -0.5))
    step = -(-ranks // _MOST_CELLS)
    at = [*range(0, ranks, step), *([ranks] if with_totals else [])]
    names = [*labels[::step], *(["total"] if with_totals else [])]
    axes.set_xticks(at, [name.replace(" ", "\n") for name in names])
    axes.set_yticks(at, names)
    axes.set(xlabel="receiving rank", ylabel="sending rank")
    axes.tick_params(length=0)
    axes.figure.colorbar(axes.images[0], ax=axes, shrink=0.8, label=_UNITS[power])


def _with_totals(matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
    wide = np.hstack([matrix, matrix.sum(axis=1, keepdims=True)])
    return np.vstack([wide, wide.sum(axis=0)])


def _operations(axes: Any, group: trace.Group) -> None:
    """What is asynchronous is a thin bar at the bottom of its row: it overlaps with others."""
    colours = _colours(group)
    waits = {(wait.rank, wait.number): wait.seconds for wait in group.waits}
    begin = min((one.started for ranks in group.ranks for one in group.operations(ranks.rank)), default=0)
    for ranks in group.ranks:
        for thin in (False, True):
            some = [one for one in group.operations(ranks.rank) if one.asynchronous == thin]
            place = (ranks.rank + 0.25, 0.15) if thin else (ranks.rank - 0.4, 0.6)
            starts = [(one.started - begin) / 1e6 for one in some]
            lasting = [max(0, one.ended - one.started) / 1e6 for one in some]
            waited = [waits.get((ranks.rank, one.number), 0.0) * 1e3 for one in some]
            edges = [colours[one.op] for one in some]
            axes.broken_barh(list(zip(starts, lasting, strict=True)), place, color=edges, linewidth=0.8)
            if not thin:
                axes.broken_barh(list(zip(starts, waited, strict=True)), place, color=_WAITING, linewidth=0)
    for name, colour in [*colours.items(), ("waits for the last peer", _WAITING)]:
        axes.barh(0, 0, color=colour, label=plain(name) or "(no name)")
    if any(one.asynchronous for ranks in group.ranks for one in ranks.operations.values()):
        axes.barh(0, 0, color="none", label="thin: asynchronous")
    axes.set(
        title=f"{plain(group.label)}: operations of each rank{_straggler(group)}", xlabel="time, ms", ylabel="rank"
    )
    axes.set(ylim=(group.size - 0.4, -0.6), yticks=range(0, group.size, -(-group.size // 32)))
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def _straggler(group: trace.Group) -> str:
    caused = group.waited().sum(axis=0)
    return f"; rank {caused.argmax()} kept others waiting {_digits(caused.max() * 1e3)} ms" if caused.any() else ""


def _colours(group: trace.Group) -> Mapping[str, str]:
    """Return the colour of each operation; C7 is grey."""
    colours = [f"C{i}" for i in range(10) if i != 7]
    names = sorted({one.op for ranks in group.ranks for one in ranks.operations.values()})
    return {name: colours[i % len(colours)] for i, name in enumerate(names)}
