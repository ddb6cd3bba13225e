"""The options of commands that use the simulator, and what it says as text."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import _files, traffic
from .._core import InvalidArgumentError
from .._files import brief, read_json
from ..simulator import SCHEDULES, Cluster, Outcome, Schedule, simulate
from . import _terminal

_USUAL = Cluster()
_FIELDS = {field.name for field in dataclasses.fields(Cluster)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ranks-per-host", type=int, metavar="N", help=f"ranks that share a port (default {_USUAL.ranks_per_host})"
    )
    parser.add_argument(
        "--link",
        type=rate,
        metavar="RATE",
        help="of a host's port in each direction: 100G is bits, 12.5GB bytes a second",
    )
    parser.add_argument("--memory", type=rate, metavar="RATE", help="at which a rank receives within its host")
    parser.add_argument("--latency", type=seconds, metavar="TIME", help="of a message: 10us")
    parser.add_argument("--message", type=seconds, metavar="TIME", help="what a message costs a port beside its bytes")
    parser.add_argument("--start", type=seconds, metavar="TIME", help="what an exchange costs once")
    parser.add_argument(
        "--ports", choices=("single", "shared"), help="a port carries one message at a time, or many (default shared)"
    )
    parser.add_argument("--cluster", metavar="FILE", help=f"JSON with any of {', '.join(sorted(_FIELDS))}")
    parser.add_argument(
        "--schedule", choices=(*SCHEDULES, "all"), default="all", help="the order of sends (default all)"
    )


def described(options: argparse.Namespace) -> Cluster:
    """Return the cluster: the file's values, and the options' over them."""
    values: dict[str, Any] = {}
    if options.cluster:
        try:
            values = read_json(options.cluster)
        except OSError as error:
            raise InvalidArgumentError(f"--cluster {options.cluster}: {error.strerror}") from None
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"--cluster {error}") from None
        if not isinstance(values, dict) or not values.keys() <= _FIELDS:
            raise InvalidArgumentError(
                f"--cluster {options.cluster}: an object with any of {', '.join(sorted(_FIELDS))}"
            )
    values |= {name: getattr(options, name) for name in _FIELDS if getattr(options, name) is not None}
    return Cluster(**values)


def rate(text: str) -> float:
    """Bytes per second. "100G" is the name of a link: bits per second."""
    found = re.fullmatch(r"(\d{1,30}(?:\.\d+)?)\s*([KMG])(B?)", text, re.ASCII)
    if found is None or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(
            f"{brief(text)!r} is not a rate such as 100G, in bits, or 12.5GB, in bytes a second"
        )
    return float(found[1]) * {"K": 1e3, "M": 1e6, "G": 1e9}[found[2]] / (1 if found[3] else 8)


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d{1,30}(?:\.\d+)?)\s*(us|ms|s)", text, re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError(f"{brief(text)!r} is not a time such as 10us, 1.5ms or 2s")
    return float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[found[2]]


def chosen(options: argparse.Namespace) -> Sequence[Schedule]:
    return SCHEDULES if options.schedule == "all" else (options.schedule,)


@dataclasses.dataclass
class Total:
    """Several exchanges, one after another, by one schedule."""

    schedule: Schedule
    seconds: float
    bound: float
    worst: Outcome
    """of the exchange that takes the longest"""


def total(matrices: Sequence[traffic.Matrix], cluster: Cluster, schedule: Schedule, keep: int = 0) -> Total:
    known: dict[bytes, Outcome] = {}
    same: dict[int, Outcome] = {}
    time, bound, worst = 0.0, 0.0, None
    for matrix in matrices:
        if id(matrix) not in same:
            key = matrix.tobytes()
            if key not in known:
                known[key] = simulate(matrix, cluster, schedule, keep=keep)
            same[id(matrix)] = known[key]
        outcome = same[id(matrix)]
        time, bound = time + outcome.seconds, bound + outcome.bound
        if worst is None or outcome.seconds > worst.seconds:
            worst = outcome
    if worst is None:
        raise InvalidArgumentError("there is no exchange to simulate")
    return Total(schedule, time, bound, worst)


def show(totals: Sequence[Total], cluster: Cluster, ranks: int, what: str) -> None:
    hosts = -(-ranks // cluster.ranks_per_host)
    many = "" if hosts == 1 else "s"
    print(
        f"{ranks} ranks on {hosts} host{many}; ports of {cluster.link * 8 / 1e9:.4g} Gbit/s, {cluster.ports}; memory "
        f"{cluster.memory / 1e9:.4g} GB/s; latency {cluster.latency * 1e6:.4g} us, {cluster.message * 1e6:.4g} us a "
        f"message, {cluster.start * 1e6:.4g} us an exchange"
    )
    print(f"{what}; lower bound {_time(totals[0].bound)}: {_busiest(totals[0].worst)}\n")
    rows = []
    for one in totals:
        busy = (
            np.concatenate([one.worst.out_ports, one.worst.in_ports]) / one.worst.seconds
            if one.worst.seconds
            else [0.0]
        )
        rows.append(
            (
                one.schedule,
                _time(one.seconds),
                f"{one.seconds / one.bound:.3f}" if one.bound else "-",
                f"rank {one.worst.critical_rank}",
                f"{np.mean(busy):.0%}",
                f"{np.max(busy):.0%}",
            )
        )
    columns = ("schedule", "time", "/ bound", "last", "ports busy, mean", "most")
    _terminal.show(_terminal.Table("", rows, columns, right=[1, 2, 4, 5]))


def compare(totals: Sequence[Total], others: Sequence[Total], name: str) -> None:
    """Print how long another way takes, by its best schedule beside the best of these."""
    best, other = (min(one.seconds for one in way) for way in (totals, others))
    times = f", {other / best:.3g} times as long" if best else ""
    print(f"\n{name}: {_time(other)}{times}")


def check(cluster: Cluster) -> None:
    """Raise for a cluster that makes no sense."""
    simulate(np.zeros((1, 1), np.int64), cluster)


def write(
    file: Path,
    totals: Sequence[Total],
    cluster: Cluster,
    ranks: int,
    what: str,
    gathered: Sequence[Total] | None = None,
) -> None:
    results = {
        "ranks": ranks,
        "traffic": what,
        "cluster": vars(cluster),
        "results": [*map(_as_json, totals)],
    }
    if gathered is not None:
        results["gather_and_cut"] = [*map(_as_json, gathered)]
    _files.write(file, json.dumps(results, indent=1) + "\n")


def _as_json(one: Total) -> dict[str, Any]:
    return {
        "schedule": one.schedule,
        "seconds": one.seconds,
        "bound": one.bound,
        "critical_rank": one.worst.critical_rank,
        "ranks": one.worst.ranks.tolist(),
        "out_ports": one.worst.out_ports.tolist(),
        "in_ports": one.worst.in_ports.tolist(),
    }


def _busiest(outcome: Outcome) -> str:
    most_out, most_in = outcome.out_ports.max(initial=0.0), outcome.in_ports.max(initial=0.0)
    if max(most_out, most_in) < outcome.bound:
        return "the memory of one rank"
    if most_out >= most_in:
        return f"what host {outcome.out_ports.argmax()} sends"
    return f"what host {outcome.in_ports.argmax()} receives"


def _time(value: float) -> str:
    return f"{value:.3f} s" if value >= 1 else f"{value * 1e3:.3f} ms" if value >= 1e-3 else f"{value * 1e6:.1f} us"
