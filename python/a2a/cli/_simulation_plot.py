"""The picture of a simulated exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..simulator import Cluster, Outcome
from ..traffic import Matrix
from . import _plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOMENTS = 240


def draw(outcome: Outcome, cluster: Cluster, schedule: str, matrix: Matrix, file: str, title: str) -> Figure:
    """How busy each host's port is over time, outwards and inwards; beside it who sends to whom. Requires that the
    outcome has kept all messages."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 6.5), layout="constrained")
    halves: Any = figure.subfigures(1, 2, width_ratios=[3, 2])
    left, right = halves
    axes = left.subplots(2, 1, sharex=True)
    ranks = cluster.ranks_per_host if schedule != "hierarchical" else 1
    for at, ports in enumerate(("out", "in")):
        image = _ports(axes[at], outcome, cluster.link, ranks, ports)
    axes[1].set_xlabel("time, ms")
    axes[0].set_title(
        f"{schedule}: {outcome.seconds * 1e3:.3g} ms, {outcome.ratio:.3f} of the lower bound (dashed); "
        f"rank {outcome.critical_rank} is last"
    )
    left.colorbar(image, ax=axes, shrink=0.8, label="share of the link's rate", format="{x:.0%}")
    square = right.subplots()
    _plot.traffic(square, matrix.astype(np.float64), [str(rank) for rank in range(len(matrix))])
    square.set_title("bytes")
    figure.suptitle(_plot.plain(title))
    return _plot.saved(figure, file)


def _ports(axes: Any, outcome: Outcome, link: float, ranks: int, ports: str) -> Any:
    moments = np.linspace(0, outcome.seconds or 1.0, _MOMENTS + 1)
    shares = _use(outcome, moments, ranks, ports) / (link * moments[1])
    extent = (0, moments[-1] * 1e3, len(shares) - 0.5, -0.5)
    image = axes.imshow(shares, aspect="auto", cmap="YlGnBu", vmin=0, vmax=1, extent=extent, interpolation="nearest")
    axes.axvline(outcome.bound * 1e3, color="k", linestyle="--", linewidth=1)
    axes.set_ylabel(f"host, {ports}")
    axes.set_yticks(range(0, len(shares), -(-len(shares) // 8)))
    return image


def _use(outcome: Outcome, moments: npt.NDArray[np.float64], ranks: int, ports: str) -> npt.NDArray[np.float64]:
    """Return [hosts, moments]: the bytes that a port carries until the next moment. A message's are spread evenly."""
    hosts = len(outcome.out_ports)
    facts = np.array([message[:5] for message in outcome.messages], float).reshape(-1, 5)
    host = (facts[:, 0 if ports == "out" else 1] // ranks).astype(int)
    nbytes, begin, end = facts[:, 2], facts[:, 3], facts[:, 4]
    lasting = np.maximum(end - begin, 1e-12)
    until = [
        np.bincount(host, nbytes * np.clip((moment - begin) / lasting, 0, 1), minlength=hosts) for moment in moments
    ]
    carried = np.array(until, np.float64)
    used: npt.NDArray[np.float64] = (carried[1:] - carried[:-1]).T
    return used
