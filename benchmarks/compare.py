"""a2a against the libraries that people use, all of them in one run. See README.md in this directory."""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import plots
import report
from cases import OPERATIONS, Case, checked_op
from contenders import MAKERS, Contender, cpus
from environments import cache_directory, compiled
from floor import Floor
from group import GroupError
from results import Results, host_facts
from rounds import Effort, Seat, available_bytes, run_case

KIB, MIB = 1 << 10, 1 << 20
QUICK = {
    "ranks": [2, 4],
    "sizes": [8, 512, 4 * KIB, 64 * KIB, MIB, 16 * MIB],
    "ops": ["alltoallv"],
    "rounds": 5,
    "seconds": 150.0,
}
FULL = {
    "ranks": [2, 4, 8],
    "sizes": [8, 64, 512, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB],
    "ops": [
        *("alltoallv", "alltoall", "alltoallv_skewed", "allgather", "allreduce", "reduce_scatter"),
        *("global_scatter", "global_scatter_uniform", "global_scatter_hot"),
        *("workload:mixtral-train", "workload:dsv3-decode"),
    ],
    "rounds": 7,
}
_SUFFIXES = {"": 1, "B": 1, "K": KIB, "M": MIB, "G": 1 << 30}


def size_bytes(text: str) -> int:
    """8, 4K, 4KiB, 16M, ..."""
    number = text.strip().upper().removesuffix("IB").rstrip("BKMG")
    suffix = text.strip().upper().removesuffix("IB")[len(number) :]
    return int(number) * _SUFFIXES[suffix]


def operation(text: str) -> str:
    try:
        return checked_op(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 and 4 ranks, six sizes, alltoallv; under 3 minutes")
    parser.add_argument("--ranks", type=int, nargs="+", metavar="N")
    size_help = "bytes per ordered pair of ranks: 8 4K 1M"
    parser.add_argument("--sizes", type=size_bytes, nargs="+", metavar="N", help=size_help)
    op_help = f"{', '.join(OPERATIONS)}, or a layer of a model: workload:ID or workload:ID:ROUTING"
    parser.add_argument("--ops", type=operation, nargs="+", metavar="OP", help=op_help)
    parser.add_argument("--peers", choices=[*MAKERS, "floor"], nargs="+", default=[*MAKERS, "floor"], help="contenders")
    parser.add_argument("--rounds", type=int)
    parser.add_argument(
        "--budget", type=float, default=0.06, help="seconds of iterations per round and contender, warm-up included"
    )
    parser.add_argument("--seconds", type=float, help="for all: fewer rounds, 2 at least, where time is short")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds after which a contender counts as hung")
    parser.add_argument("--cache", type=Path, default=cache_directory(), help="where the peers' environments are kept")
    parser.add_argument("--json", type=Path, metavar="FILE")
    plot_help = (
        "picture (needs matplotlib); with several operations or numbers of ranks, one each: FILE-alltoallv-2.svg"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help=plot_help)
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--load", type=Path, metavar="FILE.json", help="report an earlier run instead of measuring")
    options = parser.parse_args(arguments)
    if options.plot:
        try:
            plots.check(options.plot)
        except ValueError as error:
            parser.error(f"--plot: {error}")
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def set_up(names: Sequence[str], cache: Path) -> list[Contender]:
    """The contenders that can be had; why others cannot is printed."""
    found = []
    for name in names:
        try:
            found.append(MAKERS[name](cache))
        except (OSError, RuntimeError, ModuleNotFoundError) as error:
            print(f"# without {name}: {error}", file=sys.stderr)
    return found


def why_not(case: Case) -> str:
    """Why the case cannot be measured; empty if it can."""
    if case.unfit:
        return case.unfit
    if case.memory_bytes > available_bytes() // 2:
        return f"needs {case.memory_bytes >> 20} MiB of memory for buffers"
    return ""


def effort(options: argparse.Namespace, start: float, results: Results) -> Effort:
    """For the next case: of the time that is left, an equal share for each case that is left."""
    left = len(options.ranks) * len(options.ops) * len(options.sizes) - len(results.cases())
    seconds = (start + options.seconds - time.monotonic()) / left if options.seconds else math.inf
    return Effort(options.rounds, options.budget, options.limit, seconds)


def measure_ranks(
    options: argparse.Namespace, ranks: int, contenders: list[Contender], start: float, results: Results
) -> None:
    """All operations and sizes for one number of ranks. Every contender's ranks live until the end of it."""
    floor = Floor(compiled(options.cache, "floor.cc", library=False)) if "floor" in options.peers else None
    barrier = compiled(options.cache, "barrier.cc", library=True)
    scratch = Path(tempfile.mkdtemp(prefix="a2a-bench-"))
    seats = [Seat(contender, ranks, scratch, barrier) for contender in contenders]
    try:
        for seat in seats:
            seat.open()
        if not results.points:
            results.versions = {seat.name: seat.version or "did not start" for seat in seats}
            print(report.header(results.versions, results.host))
        if floor and results.line_us is None:
            with contextlib.suppress(GroupError):  # Left out of the report, then.
                results.line_us = floor.line_us()
        print(report.column_names(), flush=True)
        for case in (Case(op, ranks, size) for op in options.ops for size in options.sizes):
            if reason := why_not(case):
                print(f"# {case} skipped: {reason}", flush=True)
                continue
            results.points += run_case(case, seats, floor, effort(options, start, results))
            print(report.rows(results, case), flush=True)
    finally:
        for seat in seats:
            seat.close()
        shutil.rmtree(scratch, ignore_errors=True)


def measure(options: argparse.Namespace) -> Results:
    contenders = set_up([name for name in options.peers if name != "floor"], options.cache)
    shown = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    results = Results(host_facts(), shown, own=[contender.name for contender in contenders if contender.own])
    start = time.monotonic()
    for ranks in options.ranks:
        if ranks > cpus():
            print(f"# {ranks} ranks share {cpus()} CPUs")
        measure_ranks(options, ranks, contenders, start, results)
    print(f"# measured for {time.monotonic() - start:.0f} s")
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if no contender delivered a wrong word and none of a2a's own failed."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(1))  # So that the ranks are ended then as well.
    results = Results.load(options.load) if options.load else measure(options)
    print(report.summary(results))
    if options.json:
        results.save(options.json)
    if options.markdown:
        options.markdown.write_text(report.markdown(results))
    if options.plot:
        for file in plots.save_plots(results, options.plot):
            print(f"# {file}")
    failed = any(point.failure for point in results.points if point.contender in results.own)
    return 1 if failed or any(point.wrong for point in results.points) else 0


if __name__ == "__main__":
    sys.exit(main())
