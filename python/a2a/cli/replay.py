"""``a2a replay``: run recorded traffic again, here or in the simulator."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .. import _files, _spawn, traffic
from .._files import printable
from ..launch import Launch, init
from . import _cluster, _plot, _terminal
from ._balancing import balance
from ._machine import available_memory
from ._parser import Parser, add_command, add_ranks, warn, whole, writable
from ._replay_rank import Times, run_over_tcp, run_steps

_MOST_SHOWN = 20  # exchanges in a table
_MOST_STEPS = 1_000_000

_DESCRIPTION = """\
Run the traffic of a program again: its exchanges one after another, with the sizes that were recorded and bytes that
are made here and compared. A2A_RECORD=folder records a program; it keeps sizes and times, never the bytes. Matrices of
bytes, as nccl-tests reads them, and traces of PARAM's comms-replay can be replayed, too. Under a launcher its ranks are
used, for example over MPI; otherwise processes are started. Exits with 1 when a byte is wrong."""

_EXAMPLES = (
    ("A2A_RECORD=recording a2a run -n 4 train.py", "records a program"),
    ("a2a replay recording", "runs its exchanges again, through shared memory"),
    ("a2a replay recording --transport tcp --hosts 2", "as if its ranks were on two hosts"),
    ("a2a replay recording --simulate -n 512 --link 400G", "computes how long they take on a cluster"),
    ("a2a replay recording -o traffic.csv", "writes who sent how much to whom"),
    ("a2a replay recording --balance -o homes.json", "ranks for its experts, for ep.place()"),
    ("mpiexec -n 4 a2a replay recording", "the ranks of a launcher"),
)


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = add_command(commands, "replay", "run recorded traffic again, or simulate it", _DESCRIPTION, _EXAMPLES)
    parser.add_argument(
        "traffic", metavar="FOLDER", help="a recording, traces of PARAM, or a file with a matrix of bytes"
    )
    add_ranks(
        parser, "ranks (default: as many as were recorded). The traffic is spread over more, or folded onto fewer"
    )
    parser.add_argument("--transport", choices=("shm", "threads", "tcp"), help="between ranks here (default shm)")
    parser.add_argument(
        "--hosts", type=whole, default=2, metavar="N", help="with tcp: hosts that ranks seem to be on (2)"
    )
    parser.add_argument("--repeat", type=whole, default=1, metavar="N", help="run everything so often (default 1)")
    parser.add_argument("--simulate", action="store_true", help="compute the times, with the options of a2a simulate")
    parser.add_argument("--balance", action="store_true", help="find ranks for its experts, by their tokens")
    parser.add_argument("--slots", type=whole, metavar="N", help="with --balance: experts of a rank, replicas included")
    _cluster.add_options(parser)
    parser.add_argument("-J", "--json", type=writable, metavar="FILE", help="write the results to a file too")
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="write the traffic instead: a matrix to a .csv, or a folder for PARAM; with --balance the experts' ranks",
    )
    parser.set_defaults(function=lambda options: _replay(parser, options))


def _replay(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if not Path(options.traffic).exists():
        parser.error(f"{options.traffic}: no such file or folder; A2A_RECORD=folder records a program")
    for variable in ("A2A_RECORD", "A2A_TRACE"):  # a replay is no part of the recording
        os.environ.pop(variable, None)
    if options.balance:
        return balance(options.traffic, options.ranks, options.slots, options.output, options.json)
    launch = Launch.from_environ()
    steps = traffic.read(options.traffic, warn(parser) if launch.rank == 0 else lambda _: None)
    recorded = len(steps[0].matrix)
    steps = [step for step in steps if len(step.matrix) == recorded]  # of the largest communicator, which comes first
    ranks = options.ranks or (launch.size if launch.size > 1 else recorded)
    if len(steps) * options.repeat > _MOST_STEPS:
        parser.error(f"--repeat {options.repeat} of {len(steps)} exchanges: {_MOST_STEPS} are the most")
    matrices = traffic.all_resized(steps, ranks) * options.repeat
    if options.output:
        written = traffic.write(options.output, [traffic.Step(matrix) for matrix in matrices])
        print("\n".join(printable(str(file)) for file in written))
        return 0
    if options.simulate:
        return _simulated(options, matrices, ranks)
    if launch.size > 1:
        if ranks != launch.size or options.transport:
            parser.error(f"-n and --transport: {launch.launcher} has started {launch.size} ranks")
        with init() as comm:
            times, wrong = run_steps(comm, matrices)
    else:
        times, wrong = _spawned(options, ranks, matrices)
    if launch.rank == 0:
        _show(steps * options.repeat, matrices, times, ranks, wrong)
        if options.json:
            _write(options.json, steps * options.repeat, matrices, times, ranks, wrong)
    return 1 if wrong else 0


def _spawned(options: argparse.Namespace, ranks: int, matrices: Sequence[traffic.Matrix]) -> tuple[Times, int]:
    distinct = list({id(matrix): matrix for matrix in matrices}.values())
    needed = sum(max(int(matrix[:, rank].sum() + matrix[rank].sum()) for matrix in distinct) for rank in range(ranks))
    if needed > (free := available_memory()):
        raise MemoryError(
            f"{options.traffic}: {ranks} ranks need {_plot.size_text(needed)} for what they send and receive, and "
            f"{_plot.size_text(free)} are free"
        )
    if options.transport != "tcp":
        return _spawn.spawn(run_steps, ranks, matrices, threads=options.transport == "threads")[0]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    hosts = [f"host{rank * min(options.hosts, ranks) // ranks}" for rank in range(ranks)]
    return _spawn.spawn(run_over_tcp, ranks, matrices, hosts, port, secrets.token_bytes(32))[0]


def _simulated(options: argparse.Namespace, matrices: Sequence[traffic.Matrix], ranks: int) -> int:
    cluster = _cluster.described(options)
    totals = [_cluster.total(matrices, cluster, schedule) for schedule in _cluster.chosen(options)]
    what = f"{options.traffic}, {len(matrices)} exchange{'s' if len(matrices) > 1 else ''}"
    _cluster.show(totals, cluster, ranks, what)
    if options.json:
        _cluster.write(options.json, totals, cluster, ranks, what)
    return 0


def _show(
    steps: Sequence[traffic.Step], matrices: Sequence[traffic.Matrix], times: Times, ranks: int, wrong: int
) -> None:
    rows = []
    for number in range(min(len(steps), _MOST_SHOWN)):
        step, matrix, seconds = steps[number], matrices[number], float(times[number])
        most = traffic.lower_bound(matrix)
        rows.append(
            (
                number + 1,
                step.op,
                _plot.size_text(float(matrix.sum())),
                _plot.size_text(most),
                f"{step.seconds * 1e6:.0f}" if step.seconds else "-",
                f"{seconds * 1e6:.0f}",
                f"{most / seconds / 1e9:.2f}" if seconds else "-",
            )
        )
    columns = ("#", "operation", "bytes", "busiest rank", "recorded us", "replayed us", "GB/s")
    _terminal.show(_terminal.Table(f"{ranks} ranks, {len(steps)} exchanges", rows, columns, right=[0, 2, 3, 4, 5, 6]))
    if len(steps) > _MOST_SHOWN:
        print(f"  and {len(steps) - _MOST_SHOWN} more")
    recorded = sum(step.seconds for step in steps)
    before = f", recorded {recorded * 1e3:.3f} ms" if recorded else ""
    print(f"\nall: {float(times.sum()) * 1e3:.3f} ms{before}; {wrong} wrong bytes")
    if wrong:
        print("a2a replay: bytes arrived that were not sent", file=sys.stderr)


def _write(
    file: Path,
    steps: Sequence[traffic.Step],
    matrices: Sequence[traffic.Matrix],
    times: Times,
    ranks: int,
    wrong: int,
) -> None:
    results = [
        {
            "op": step.op,
            "bytes": int(matrix.sum()),
            "busiest": traffic.lower_bound(matrix),
            "recorded": step.seconds,
            "seconds": float(time),
        }
        for step, matrix, time in zip(steps, matrices, np.asarray(times), strict=True)
    ]
    whole = {"ranks": ranks, "wrong": wrong, "results": results}
    _files.write(file, json.dumps(whole, indent=1) + "\n")
