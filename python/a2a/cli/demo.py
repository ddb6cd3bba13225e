"""``a2a demo``: ranks in several frameworks exchange the traffic of experts and compare it with the oracle."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from .. import _spawn, frameworks
from .._core import Error
from ..workloads import IntArray, Workload, workload
from . import _demo_peer, _plot
from ._demo_rank import Job, Report, run_rank
from ._machine import allowed_cpus, available_memory

MiB = 1 << 20
# Longest time that the ranks may take together; far more than they need.
_TIMEOUT_SECONDS = 300.0


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = (
        "Exchange the traffic of a mixture-of-experts layer between ranks in different frameworks and check every bit."
    )
    parser = commands.add_parser("demo", help="a mixture-of-experts layer across frameworks", description=text)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="ranks, each a process (default 4)")
    parser.add_argument(
        "--frameworks",
        metavar="A,B,...",
        help=f"dealt out to the ranks in turn, of {','.join(frameworks.known('host'))} (default: all found)",
    )
    parser.add_argument("--tokens", type=int, metavar="T", help="tokens per rank (default: scaled to the machine)")
    parser.add_argument("--steps", type=int, default=5, help="how often (default 5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--plot", metavar="FILE", help="write the traffic between ranks as a picture (needs matplotlib)"
    )
    parser.set_defaults(function=lambda options: _demo(parser, options))


def _demo(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    layer = workload("dsv3-train")
    if options.ranks < 1 or layer.experts % options.ranks:
        parser.error(f"--ranks {options.ranks} does not divide {layer.experts} experts evenly")
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
        matrix = traffic(reports, job) / MiB
        _plot.heat_map(matrix, options.plot, f"a2a demo: {job.layer.id}, MiB per step", job.frameworks)
    code = conclude(reports, job)
    if frameworks.load("torch").is_installed() and job.ranks > 1:
        _compare(job)
    return code


def _compare(job: Job) -> None:
    """One line: the same step in Torch on all ranks, beside what Torch's users have without a2a."""
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
    """The frameworks dealt out to the ranks, one dtype for all of them, and as many tokens as the machine bears."""
    dealt = [names[rank % len(names)] for rank in range(ranks)]
    dtype = "bfloat16" if all(frameworks.load(name).bfloat16 for name in dealt) else "float32"
    layer = replace(layer, dtype=dtype)
    if tokens is None:
        # Each rank holds about three copies of its own rows and two of everybody's, for the oracle.
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
    """Bytes from each rank (row) to each rank (column), mean of the steps."""
    tokens: IntArray = np.stack([np.sum(report.sent, axis=0) for report in reports])
    return np.asarray(tokens * (job.row_bytes / job.steps))


def conclude(reports: Sequence[Report], job: Job) -> int:
    """Prints the results and returns the exit code: 0 only if every byte was right."""
    matrix = traffic(reports, job)
    print("\ntokens in MiB per step, from row to column; each crosses once, however many experts want it there")
    print("         " + "".join(f"{'to ' + str(rank):>9}" for rank in range(job.ranks)) + "      sent")
    for rank, row in enumerate(matrix / MiB):
        print(f"  from {rank:<2}" + "".join(f"{cell:9.2f}" for cell in row) + f"{row.sum():10.2f}")
    print("  arrived" + "".join(f"{cell:9.2f}" for cell in matrix.sum(axis=0) / MiB))
    print("\nstep   dispatch ms    GB/s   combine ms    GB/s   (slowest rank, all rows; step 0 touches memory first)")
    for step in range(job.steps):
        volume = job.ranks * job.layer.tokens * job.layer.top_k * job.row_bytes
        dispatch = max(report.dispatch_seconds[step] for report in reports)
        combine = max(report.combine_seconds[step] for report in reports)
        print(
            f"{step:4}   {dispatch * 1e3:11.2f} {volume / dispatch / 1e9:7.2f}   "
            f"{combine * 1e3:10.2f} {volume / combine / 1e9:7.2f}"
        )
    memory = ", ".join(f"{report.resident_bytes / MiB:.0f}" for report in reports)
    print(f"\npeak memory of each rank, its framework included: {memory} MiB")
    return _verdict(reports, job)


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
