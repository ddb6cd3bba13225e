"""``a2a simulate``: how long an exchange takes on a cluster that is not here."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import traffic
from .._files import printable
from ..workloads import ROUTINGS, WORKLOADS
from . import _cluster, _plot, _resharding, _simulation_plot
from ._parser import Parser, add_command, add_ranks, offer, seed, size, warn, writable

_DESCRIPTION = """\
Compute how long an exchange takes between many ranks, by a model of hosts, ports and links, without running it. The
order of sends is that of the transports between hosts. Prints for each schedule the time, how far it is above the lower
bound, the rank that is last, and for how much of the time ports carry bytes.

schedules:
  rotation      rank r sends to r + 1, r + 2 and so on
  longest       what a2a does
  hierarchical  hosts send each other one message, what a2a does with few bytes"""

_EXAMPLES = (
    ("a2a simulate -n 64", "64 ranks on 8 hosts, every pair sends as much"),
    ("a2a simulate -n 256 --traffic log-normal --link 400G", "uneven traffic, faster links"),
    ("a2a simulate -n 64 --traffic dsv3-train --plot out.png", "the layer of a published model, with a picture"),
    ("a2a simulate --traffic bytes.csv --ranks-per-host 1", "a matrix of bytes from a file"),
    ("a2a simulate --reshard model.json --link 400G", "tensors go to other shardings, beside gather and cut"),
    ("a2a simulate --traffic recording -n 512", "a recorded program (A2A_RECORD), with more ranks"),
)


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = add_command(commands, "simulate", "how long an exchange takes on a cluster", _DESCRIPTION, _EXAMPLES)
    add_ranks(parser, "ranks (default 64, or as many as the traffic has)")
    action = parser.add_argument(
        "--traffic",
        default="uniform",
        metavar="WHAT",
        help=f"{', '.join(traffic.NAMES)}; a workload: {', '.join(WORKLOADS)}, also ID/16; a file or folder: a matrix "
        "of bytes, a recording, traces of PARAM (default uniform)",
    )
    offer(action, [*traffic.NAMES, *WORKLOADS])
    parser.add_argument(
        "--reshard",
        metavar="FILE",
        help='tensors that go to other shardings: JSON with {"tensors": [{"shape": [4096, 4096], "dtype": "bfloat16", '
        '"count": 32, "src": {"mesh": [0, 1], "placements": ["shard(0)"]}, "dst": ...}]}; what all tensors share may '
        "stand outside",
    )
    parser.add_argument(
        "-b", "--bytes", type=size, default=64 << 20, metavar="SIZE", help="that a rank sends in the mean (default 64M)"
    )
    parser.add_argument("--routing", choices=[name for name in ROUTINGS if name != "loads"], default="zipf")
    parser.add_argument("--alpha", type=float, default=1.2, help="of zipf (default 1.2)")
    parser.add_argument("--sigma", type=float, default=1.0, help="of log-normal (default 1)")
    parser.add_argument("--ratio", type=float, default=4.0, help="of hot-rank (default 4)")
    parser.add_argument("--seed", type=seed, default=0, help="of the random numbers (default 0)")
    _cluster.add_options(parser)
    parser.add_argument("--plot", metavar="FILE", help="draw how busy ports are, and the traffic (needs matplotlib)")
    parser.add_argument("-J", "--json", type=writable, metavar="FILE", help="write the results to a file too")
    parser.set_defaults(function=_simulate)


def _simulate(options: argparse.Namespace) -> int:
    if options.plot:
        _plot.check(options.plot)
    cluster = _cluster.described(options)
    spec = None
    if options.reshard:
        spec, what = _resharding.read(options.reshard, options.ranks)
        _cluster.check(cluster)
        matrices = spec.exchanges(cluster.ranks_per_host)
    else:
        matrices, what = _traffic(options)
    ranks, what = len(matrices[0]), printable(what)
    keep = ranks * ranks if options.plot else 0
    totals = [_cluster.total(matrices, cluster, schedule, keep) for schedule in _cluster.chosen(options)]
    _cluster.show(totals, cluster, ranks, what)
    gathered = None
    if spec is not None:
        gathered = [_cluster.total(spec.gather_and_cut(), cluster, one.schedule) for one in totals]
        _cluster.compare(totals, gathered, "gather and cut")
    if options.json:
        _cluster.write(options.json, totals, cluster, ranks, what, gathered)
    if options.plot:
        best = min(totals, key=lambda one: one.seconds)
        heaviest = max(matrices, key=traffic.lower_bound)
        _simulation_plot.draw(best.worst, cluster, best.schedule, heaviest, options.plot, f"{ranks} ranks, {what}")
        print(f"\npicture: {printable(options.plot)}")
    return 0


def _traffic(options: argparse.Namespace) -> tuple[list[traffic.Matrix], str]:
    if Path(options.traffic).exists():
        steps = traffic.read(options.traffic, warn(options.parser))
        ranks = options.ranks or len(steps[0].matrix)
        steps = [step for step in steps if len(step.matrix) == len(steps[0].matrix)]
        matrices = traffic.all_resized(steps, ranks)
        scaled = "" if ranks == len(steps[0].matrix) else f" of {len(steps[0].matrix)} ranks"
        return matrices, f"{options.traffic}{scaled}, {len(matrices)} exchange{'s' if len(matrices) > 1 else ''}"
    matrix = traffic.made(
        options.traffic,
        options.ranks or 64,
        bytes_per_rank=options.bytes,
        seed=options.seed,
        alpha=options.alpha,
        sigma=options.sigma,
        ratio=options.ratio,
        routing=options.routing,
    )
    return [
        matrix
    ], f"{options.traffic}, {_plot.size_text(float(matrix.sum()) / len(matrix))} from each rank in the mean"
