"""``a2a demo``: ranks in several frameworks exchange the traffic of experts and compare it with the oracle."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .. import _spawn, frameworks
from .._core import Error
from ..workloads import IntArray, Workload, workload
from . import _demo_peer, _plot
from ._demo_rank import Job, Report, run_rank
from ._machine import allowed_cpus, available_memory
from ._parser import Parser, add_command, add_ranks, offer, seed
from ._terminal import Table, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MiB = 1 << 20
# The time limit of all ranks together; far more than they need.
_TIMEOUT_SECONDS = 300.0


_EXAMPLES = (
    ("a2a demo", "four ranks, in all frameworks that are installed"),
    ("a2a demo -n 2 --frameworks torch,numpy", "rank 0 in Torch, rank 1 in NumPy"),
    ("a2a demo --tokens 64 --plot traffic.png", "fewer tokens, and a picture of who sends how much to whom"),
)


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    text = (
        "Exchange the traffic of a mixture-of-experts layer between ranks in different frameworks and check every bit. "
        "Exits with 1 when a bit differs."
    )
    parser = add_command(commands, "demo", "a mixture-of-experts layer across frameworks", text, _EXAMPLES)
    add_ranks(parser, "ranks, each a process (default 4)", default=4)
    action = parser.add_argument(
        "--frameworks",
        metavar="A,B,...",
        help=f"dealt out to the ranks in turn, of {','.join(frameworks.known('host'))} (default: all found)",
    )
    offer(action, frameworks.known("host"))
    parser.add_argument("--tokens", type=int, metavar="T", help="tokens per rank (default: scaled to the machine)")
    parser.add_argument("--steps", type=int, default=5, help="how often (default 5)")
    parser.add_argument("--seed", type=seed, default=0, help="of the random numbers (default 0)")
    parser.add_argument(
        "--plot", metavar="FILE", help="write the traffic between ranks as a picture (needs matplotlib)"
    )
    parser.set_defaults(function=lambda options: _demo(parser, options))


def _demo(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    layer = workload("dsv3-train")
    if layer.experts % options.ranks:
        parser.error(f"-n {options.ranks} does not divide {layer.experts} experts evenly; 2, 4 and 8 do")
    for name in ("tokens", "steps"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: at least 1")
    if options.plot:
        _plot.check(options.plot)
    names = _choose(parser, options.frameworks)
    job = plan(layer, names, options.ranks, options.tokens, options.steps, options.seed)
    _introduce(job, names)
    # Four ranks with a thread per CPU each would slow each other down.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, allowed_cpus() // job.ranks)))
    reports = _spawn.spawn(run_rank, job.ranks, job, timeout=_TIMEOUT_SECONDS)
    if options.plot:
        picture(options.plot, reports, job)
    code = conclude(reports, job)
    if frameworks.load("torch").is_installed() and job.ranks > 1:
        _compare(job)
    return code


def _compare(job: Job) -> None:
    """Print one line: the same step in Torch on all ranks, with a2a and with torch.distributed alone."""
    with tempfile.TemporaryDirectory() as folder:
        times = _spawn.spawn(_demo_peer.run_rank, job.ranks, job, f"{folder}/store", timeout=_TIMEOUT_SECONDS)
    ours, gloo = (max(each) * 1e3 for each in zip(*times, strict=True))
    print(
        f"the same step in Torch on all ranks: a2a.moe {ours:.2f} ms, torch.distributed on Gloo {gloo:.2f} ms, "
        f"{gloo / ours:.1f} times as long"
    )


def _choose(parser: argparse.ArgumentParser, wanted: str | None) -> list[str]:
    known = frameworks.known("host")
    names = wanted.split(",") if wanted else frameworks.installed("host")
    for name in names:
        if name not in known:
            parser.error(f"--frameworks {name}: there are {', '.join(known)}")
        if not frameworks.load(name).is_installed():
            parser.error(f"--frameworks {name}: not installed; pip install {frameworks.load(name).distribution}")
    return names


def plan(
    layer: Workload, names: Sequence[str], ranks: int, tokens: int | None = None, steps: int = 5, seed: int = 0
) -> Job:
    """Assign the frameworks to the ranks, choose one dtype for all of them, and as many tokens as memory allows."""
    dealt = [names[rank % len(names)] for rank in range(ranks)]
    dtype = "bfloat16" if all(frameworks.load(name).bfloat16 for name in dealt) else "float32"
    layer = replace(layer, dtype=dtype)
    if tokens is None:
        # Each rank holds about three copies of its own rows and, for the oracle, two of all ranks' rows.
        bytes_per_token = layer.bytes_per_rank // layer.tokens * ranks * (3 + 2 * ranks)
        tokens = min(32 * allowed_cpus(), 512, available_memory() // 4 // bytes_per_token)
    return Job(replace(layer, tokens=max(1, tokens)), dealt, steps, seed, alpha=1.2)


def _introduce(job: Job, names: Sequence[str]) -> None:
    layer = job.layer
    print(
        f"{job.ranks} ranks, one layer shaped like DeepSeek-V3: {layer.experts} experts, top-{layer.top_k}, hidden "
        f"{layer.hidden}, {layer.dtype}, {layer.tokens} tokens per rank, zipf({job.alpha}) routing, seed {job.seed}"
    )
    for rank, name in enumerate(job.frameworks):
        print(f"  rank {rank}: {name} {frameworks.load(name).version()}")
    for name in frameworks.known("host"):
        if not frameworks.load(name).is_installed():
            print(f"  {name} is not installed; it joins after: pip install {frameworks.load(name).distribution}")
    if "numpy" in names and not frameworks.load("numpy").bfloat16:
        print("  float32, because NumPy has no bfloat16; it does after: pip install ml_dtypes")
    if job.ranks > allowed_cpus():
        print(f"  {job.ranks} ranks share {allowed_cpus()} CPUs")
    print("starting (frameworks take seconds to import) ...", flush=True)


def traffic(reports: Sequence[Report], job: Job) -> npt.NDArray[np.float64]:
    """Return the bytes from each rank (row) to each rank (column), the mean of the steps."""
    tokens: IntArray = np.stack([np.sum(report.sent, axis=0) for report in reports])
    return np.asarray(tokens * (job.row_bytes / job.steps))


def picture(file: str, reports: Sequence[Report], job: Job) -> Figure:
    """Write the picture of the traffic."""
    labels = [f"{rank} {name}" for rank, name in enumerate(job.frameworks)]
    title = f"a2a demo: tokens of {job.layer.id} that cross in a step"
    return _plot.heat_map(traffic(reports, job), file, title, labels)


def conclude(reports: Sequence[Report], job: Job) -> int:
    """Print the results and return the exit code: 0 only if every byte was right."""
    matrix = traffic(reports, job)
    rows = [[f"from {rank}", *_two_digits([*row, row.sum()])] for rank, row in enumerate(matrix / MiB)]
    rows.append(["arrived", *_two_digits([*matrix.sum(axis=0) / MiB, matrix.sum() / MiB])])
    title = "tokens in MiB per step, from row to column; each crosses once, however many experts want it there"
    columns = ["", *(f"to {rank}" for rank in range(job.ranks)), "sent"]
    print()
    show(Table(title, rows, columns, range(1, len(columns))))
    rows = []
    for step in range(job.steps):
        volume = job.ranks * job.layer.tokens * job.layer.top_k * job.row_bytes
        dispatch = max(report.dispatch_seconds[step] for report in reports)
        combine = max(report.combine_seconds[step] for report in reports)
        rows.append(
            [str(step), *_two_digits([dispatch * 1e3, volume / dispatch / 1e9, combine * 1e3, volume / combine / 1e9])]
        )
    print()
    title = "time of the slowest rank, and all rows in that time; step 0 touches memory first"
    show(Table(title, rows, ("step", "dispatch ms", "GB/s", "combine ms", "GB/s"), range(5)))
    memory = ", ".join(f"{report.resident_bytes / MiB:.0f}" for report in reports)
    print(f"\npeak memory of each rank, its framework included: {memory} MiB")
    return _verdict(reports, job)


def _two_digits(numbers: Iterable[float]) -> list[str]:
    return [f"{number:.2f}" for number in numbers]


def _verdict(reports: Sequence[Report], job: Job) -> int:
    differences = [f"rank {report.rank}: {text}" for report in reports for text in report.differences]
    compared = sum(report.compared_bytes for report in reports)
    if differences:
        print("\n".join(differences[:10]), file=sys.stderr)
        print(f"NOT verified: {len(differences)} of {job.steps * job.ranks * 3} comparisons differ", file=sys.stderr)
        return 1
    if compared == 0:
        raise Error("demo: nothing was compared")
    print(f"verified: {compared / MiB:.1f} MiB in {job.steps} steps equal the one-process oracle bit for bit")
    return 0
