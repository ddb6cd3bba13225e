"""What axes.py and experts.py share: contenders that live in the same ranks, which mpiexec starts, and take turns."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

import a2a

Times = dict[str, list[float]]  # of each contender, by round, in microseconds


def in_turns(names: Sequence[str], rounds: int, one_round: Callable[[str], float]) -> Times:
    """Each contender once in every round, in an order that is alike on all ranks. The first round warms up."""
    order, times = random.Random(1), Times({name: [] for name in names})
    for turn in range(rounds + 1):
        for name in order.sample(list(names), len(names)):
            took = one_round(name)
            if turn > 0:
                times[name].append(took)
    return times


def slowest(comm: a2a.Communicator, seconds: Sequence[float]) -> float:
    """Of all ranks' medians, in microseconds."""
    medians = np.empty(comm.size)
    comm.allgather(np.array([statistics.median(seconds)]), medians)
    return float(medians.max()) * 1e6


@contextmanager
def ranks_with_gloo() -> Iterator[a2a.Communicator]:
    """One rank, started by mpiexec; torch's default group is Gloo."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    with a2a.init() as comm:
        store = None
        if comm.rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, comm.size, is_master=True, wait_for_workers=False)
        port = int(comm.allgather_bytes(str(store.port).encode() if store is not None else b"")[0])
        store = store or dist.TCPStore("127.0.0.1", port, comm.size, is_master=False, wait_for_workers=False)
        dist.init_process_group(
            "gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=timedelta(seconds=120)
        )
        yield comm
        comm.barrier()
        dist.destroy_process_group()


def run(program: str, options: argparse.Namespace, arguments: Sequence[str]) -> list[dict[str, Any]]:
    """The points that the program writes when mpiexec starts it with --worker, for each number of ranks."""
    points: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for ranks in options.ranks:
            result = Path(folder, "points.json")
            worker = [sys.executable, program, "--worker", str(result), "--rounds", str(options.rounds)]
            subprocess.run(["mpiexec", "-n", str(ranks), *worker, *arguments], check=True)
            points += json.loads(result.read_text())
    if options.json:
        options.json.write_text(json.dumps(points, indent=1) + "\n")
    return points


def ratios(times: Mapping[str, list[float]]) -> str:
    """The median time of "a2a", and for each other contender its time over that: median [least, most]."""
    ours, texts = times["a2a"], []
    for name, theirs in times.items():
        if name != "a2a":
            each = [their / our for their, our in zip(theirs, ours, strict=True)]
            texts.append(f"{name} {statistics.median(each):.2f} [{min(each):.2f}, {max(each):.2f}]")
    return f"{statistics.median(ours):>9.0f}   " + "; ".join(texts)
