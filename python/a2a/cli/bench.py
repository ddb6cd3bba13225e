"""``a2a bench``: time and bandwidth of one operation, with the flags and columns of nccl-tests."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _files, _spawn, frameworks
from .._core import Communicator, core_version
from ..launch import Launch, init
from ..workloads import ROUTINGS, WORKLOADS, workload
from . import _plot
from ._bench_rank import OPERATIONS, PEER_OPERATIONS, Row, Sweep, header, run_rank
from ._machine import allowed_cpus
from ._parser import Parser, add_command, offer, ranks, seed, size, writable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64")
_ALIASES = {"half": "float16", "float": "float32", "double": "float64"}

_MOST_SIZES = 10_000
_MOST_ITERATIONS = 1_000_000_000
_FIRST, _LAST = 4 << 10, 4 << 20  # bytes

_BUSIEST = "size: the most that a rank sends or receives"
_ROWS = "size: bytes of a rank's tokens times top-k"
_MEANING = {
    "alltoall": "size: bytes that a rank sends to all",
    "alltoallv": _BUSIEST,
    "allgather": "size: bytes that a rank receives",
    "global_scatter": _BUSIEST,
    "dispatch": _ROWS,
    "combine": _ROWS,
}

_DESCRIPTION = """\
Time one operation. Inputs are rewritten before every iteration, and ranks start together. The time of an iteration is
that of the slowest rank. The ranks are those of a launcher; without one, processes are started. Other flags are those
of nccl-tests. Exits with 1 when an element is wrong.

columns:
  size    bytes that one rank sends to all (alltoall), the most that a rank
          sends or receives (alltoallv, global_scatter), bytes that a rank
          receives (allgather), or of its tokens times top-k (dispatch, combine)
  count   elements of each pair of ranks, 0 where pairs differ
  copy    time in which every rank copies as many bytes as it receives out of
          another's shared memory, and does nothing else
  algbw   size / time in GB/s
  busbw   algbw * (ranks - 1) / ranks
  #wrong  elements that differ from the oracle in the -c extra iterations, whose
          outputs are poisoned before

alltoallv sends more to more distant ranks: from 0 to twice the average, in steps of 16 bytes."""

_EXAMPLES = (
    ("a2a bench -n 4", "four ranks; sizes from 4 KiB to 4 MiB, each twice the last"),
    ("a2a bench -n 4 -b 1K -e 16M -f 4 --plot bench.png", "other sizes, each four times the last; and a picture"),
    ("a2a bench -n 2 --peer gloo -b 64K", "one size, beside torch.distributed on Gloo"),
    ("a2a bench -n 4 --op alltoallv -J out.json", "another operation; the figures as JSON, too"),
    ("a2a bench -n 4 --workload dsv3-decode", "the layer of a published model"),
    ("mpiexec -n 4 a2a bench --iters 100", "the ranks of a launcher"),
)


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = add_command(commands, "bench", "time and bandwidth of an operation", _DESCRIPTION, _EXAMPLES)
    parser.add_argument(
        "-n",
        dest="number",
        type=int,
        metavar="N",
        help="ranks to start (default: CPUs, at least 2). Where -r, --ranks or a launcher says how many there are, it "
        "is --iters, as in nccl-tests",
    )
    parser.add_argument("-r", "-np", "--ranks", dest="ranks", type=ranks, metavar="N", help="ranks to start")
    parser.add_argument("--op", choices=OPERATIONS, help="default alltoall, with --workload global_scatter")
    parser.add_argument("-b", "--minbytes", type=size, metavar="SIZE", help="first size (default 4K)")
    parser.add_argument(
        "-e", "--maxbytes", type=size, metavar="SIZE", help="last size (default: that of -b; without -b 4M)"
    )
    parser.add_argument("-i", "--stepbytes", type=size, metavar="SIZE", help="add this from size to size")
    parser.add_argument(
        "-f", "--stepfactor", type=float, metavar="F", help="multiply by this from size to size (default 2)"
    )
    parser.add_argument("--iters", type=int, metavar="N", help="timed iterations (default 20)")
    parser.add_argument(
        "-w", "--warmup_iters", type=int, default=5, metavar="N", help="iterations before them (default 5)"
    )
    parser.add_argument(
        "-c", "--check", type=int, default=1, metavar="N", help="checked iterations after them (default 1)"
    )
    parser.add_argument("-d", "--datatype", default="float32", metavar="TYPE", help=", ".join((*_DTYPES, "all")))
    action = parser.add_argument(
        "--workload", metavar="ID", help=f"a model's layer instead of sizes: {', '.join(WORKLOADS)}; ID/16"
    )
    offer(action, WORKLOADS)
    parser.add_argument(
        "--routing",
        choices=[name for name in ROUTINGS if name != "loads"],
        default="zipf",
        help="how a workload's tokens choose experts (default zipf)",
    )
    parser.add_argument("--seed", type=seed, default=0, help="of the random numbers (default 0)")
    parser.add_argument("-J", "--json", type=writable, metavar="FILE", help="write the results to a file too")
    parser.add_argument(
        "--plot", metavar="FILE", help="write time and bandwidth over size as a picture (needs matplotlib)"
    )
    parser.add_argument(
        "--peer", choices=("gloo",), help="measure torch.distributed, too: alltoall, alltoallv, allgather"
    )
    parser.set_defaults(function=lambda options: _bench(parser, options))


def _bench(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    launch = Launch.from_environ()
    _settle_number(parser, options, launch.size)
    sweep = _sweep(parser, options)
    if options.peer:
        _check_peer(parser, sweep, launch)
    if options.plot:
        _plot.check(options.plot)
    count = launch.size if launch.size > 1 else options.ranks or max(2, allowed_cpus())
    if sweep.layer and sweep.layer.experts % count:
        parser.error(f"--workload {sweep.layer.id}: {count} ranks do not divide {sweep.layer.experts} experts")
    if launch.size > 1:
        if options.ranks not in (None, launch.size):
            parser.error(f"-r {options.ranks}: {launch.launcher} has started {launch.size} ranks")
        with init() as comm:
            rows = run_rank(comm, sweep)
    else:
        with tempfile.TemporaryDirectory() as folder:
            store = f"{folder}/store" if options.peer else ""
            sweep = replace(sweep, peer_store=store)
            rows = _spawn.spawn(_spawned_rank, count, sweep)[0]
    if launch.rank == 0:
        _write(options, sweep, count, rows)
    return 1 if any(row.wrong for row in rows) else 0


def _settle_number(parser: argparse.ArgumentParser, options: argparse.Namespace, launched: int) -> None:
    """Decide the meaning of -n: ranks, as in all commands and in mpiexec, or iterations, as in nccl-tests."""
    if options.number is not None and options.number < 1:
        parser.error(f"-n {options.number}: at least 1")
    if options.ranks is None and launched == 1:
        options.ranks = options.number
    elif options.iters is None:
        options.iters = options.number
    elif options.number is not None:
        parser.error(f"-n {options.number} is what, when --iters and the number of ranks are given already?")
    if options.iters is None:
        options.iters = 20


def _check_peer(parser: argparse.ArgumentParser, sweep: Sweep, launch: Launch) -> None:
    if launch.size > 1:
        parser.error(f"--peer: not with the ranks of {launch.launcher}; a2a bench has to start them")
    if sweep.operation not in PEER_OPERATIONS:
        parser.error(f"--peer: for {', '.join(PEER_OPERATIONS)}, not for {sweep.operation}")
    if not frameworks.load("torch").is_installed():
        parser.error("--peer gloo: Torch is not installed; pip install torch")


def _spawned_rank(comm: Communicator, sweep: Sweep) -> list[Row]:
    return run_rank(comm, sweep)


def _sweep(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Sweep:
    names = _DTYPES if options.datatype == "all" else [_ALIASES.get(options.datatype, options.datatype)]
    for name in names:
        if name not in _DTYPES:
            parser.error(f"-d {name}: there are {', '.join(_DTYPES)} and all")
    for flag, value, least in (
        ("--iters", options.iters, 1),
        ("-w", options.warmup_iters, 0),
        ("-c", options.check, 0),
    ):
        if not least <= value <= _MOST_ITERATIONS:
            parser.error(f"{flag} {value}: at least {least}, at most {_MOST_ITERATIONS}")
    try:
        layer = workload(options.workload) if options.workload else None
    except ValueError as error:
        parser.error(str(error))
    operation = options.op or ("global_scatter" if layer else "alltoall")
    if layer and operation not in ("global_scatter", "alltoallv", "dispatch", "combine"):
        parser.error(f"--op {operation}: a workload runs as global_scatter, alltoallv, dispatch or combine")
    if operation == "combine":
        for name in names:
            if "float" not in name and not layer:
                parser.error(f"-d {name}: combine sums floating-point rows")
    return Sweep(
        operation, _sizes(parser, options), list(names), options.iters, options.warmup_iters, options.check,
        options.seed, layer, options.routing,
    )  # fmt: skip


def _sizes(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[int]:
    size = _FIRST if options.minbytes is None else options.minbytes
    last = options.maxbytes or (_LAST if options.minbytes is None else size)
    if options.stepbytes is not None and options.stepfactor is not None:
        parser.error("-i and -f: give one of them")
    if last < size or options.stepbytes == 0 or not 1 < (options.stepfactor or 2) < float("inf"):
        parser.error("sizes grow from -b to -e by -i bytes, or by a factor -f above 1")
    sizes: list[int] = []
    while size <= last:
        if len(sizes) == _MOST_SIZES:
            parser.error(f"there are more than {_MOST_SIZES} sizes from -b {sizes[0]} to -e {last}")
        sizes.append(size)
        size = size + options.stepbytes if options.stepbytes else max(size + 1, int(size * (options.stepfactor or 2)))
    return sizes


def _write(options: argparse.Namespace, sweep: Sweep, ranks: int, rows: list[Row]) -> None:
    if options.json:
        content: dict[str, Any] = {
            "version": core_version,
            "arguments": sys.argv[1:],
            "ranks": ranks,
            "cpus": allowed_cpus(),
            "numpy": np.__version__,
            "columns": header(),
            "results": [vars(row) for row in rows],
        }
        _files.write(options.json, json.dumps(content, indent=2) + "\n")
    if options.plot:
        picture(options.plot, sweep, ranks, rows)


def picture(file: str, sweep: Sweep, ranks: int, rows: list[Row]) -> Figure:
    """Write the plot of the rows: a curve for each dtype, for Gloo if measured, and for one copy."""
    first = [row for row in rows if row.type == rows[0].type]
    curves = []
    for name in dict.fromkeys(row.type for row in rows):
        own = [row for row in rows if row.type == name]
        p50 = [row.p50 for row in own]
        curves.append(_plot.Curve(f"a2a, {name}: median, and up to p99", p50, [row.p99 for row in own]))
    if sweep.peer_store:
        curves.append(_plot.Curve("torch.distributed on Gloo: median", [row.gloo or 0.0 for row in first]))
    if copies := [row.copy for row in first if row.copy is not None]:  # all rows, on one host
        curves.append(_plot.Curve("one copy out of shared memory: median", copies, floor=True))
    what = f"{sweep.operation} of {sweep.layer.id}, {sweep.routing} routing" if sweep.layer else sweep.operation
    return _plot.curves([row.size for row in first], curves, file, f"{what}, {ranks} ranks", _MEANING[sweep.operation])
