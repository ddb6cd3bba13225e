"""The picture of a simulated exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..simulator import Outcome
from ..traffic import Matrix
from . import _plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_ROWS = 64


def draw(outcome: Outcome, schedule: str, matrix: Matrix, file: str, title: str) -> Figure:
    """A row for each sender with its messages, coloured by their receivers; beside it who sends to whom."""
    from matplotlib.figure import Figure

    senders = 1 + max((message.sender for message in outcome.messages), default=0)
    figure = Figure(figsize=(14, 4.5 + 0.1 * min(senders, _MOST_ROWS)), layout="constrained")
    rows, square = figure.subplots(1, 2, width_ratios=[5, 2])
    _messages(rows, outcome, schedule, senders)
    _plot.traffic(square, matrix.astype(np.float64), [str(rank) for rank in range(len(matrix))])
    square.set_title("bytes")
    figure.suptitle(title)
    return _plot.saved(figure, file)


def _messages(axes: Any, outcome: Outcome, schedule: str, senders: int) -> None:
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection

    step = -(-senders // _MOST_ROWS)  # of more senders every step-th is drawn
    shown = [message for message in outcome.messages if message.sender % step == 0]
    lanes: dict[int, list[float]] = {}
    lines, colours, most = [], [], 1
    for message in sorted(shown, key=lambda one: one.begin):
        ends = lanes.setdefault(message.sender, [])
        free = next((lane for lane, end in enumerate(ends) if end <= message.begin + 1e-15), len(ends))
        ends[free:] = [message.end, *ends[free + 1 :]]
        most = max(most, free + 1)
        lines.append((message, free))
        colours.append(message.receiver / max(1, senders - 1))
    height = 0.8 / most
    segments = [
        [
            (message.begin * 1e3, message.sender - 0.4 + (lane + 0.5) * height),
            (message.end * 1e3, message.sender - 0.4 + (lane + 0.5) * height),
        ]
        for message, lane in lines
    ]
    collection = LineCollection(segments, linewidths=max(0.6, 220 * height / min(senders, _MOST_ROWS)))
    collection.set(array=np.array(colours) * max(1, senders - 1), cmap=colormaps["turbo"])
    axes.add_collection(collection)
    axes.axvline(outcome.bound * 1e3, color="k", linestyle="--", linewidth=1, label="lower bound")
    axes.set(xlim=(0, outcome.seconds * 1.02e3), ylim=(senders - 0.4, -0.6), xlabel="time, ms", ylabel="sender")
    axes.set_title(
        f"{schedule}: {outcome.seconds * 1e3:.3g} ms, {outcome.ratio:.3f} of the bound; "
        f"rank {outcome.critical_rank} is last"
    )
    axes.legend(loc="lower right", frameon=False)
    axes.figure.colorbar(collection, ax=axes, shrink=0.8, label="receiver")
