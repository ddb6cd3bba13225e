"""Times a model's tensors from one sharding to another: a2a's reshard beside programs that gather and cut.

    a2a run -n 4 benchmarks/reshard.py
    a2a run -n 4 benchmarks/reshard.py --tensors 20 --rounds 5 --largest 8 -J reshard.json

100 tensors of 1 to 64 MiB on 4 ranks go from tensor parallel over 4 ranks to 2 copies of tensor parallel over 2.
The peers gather each tensor whole, with Gloo (torch.distributed) or with a2a's allgather, and copy out their part. All
contenders run in one program, one after the other in each round, and each result is compared once. Times are those of
the slowest rank. A loaded machine gives no times.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import a2a
from a2a.sharding import Replicate, Shard, Sharding

SRC = {dim: Sharding(range(4), Shard(dim)) for dim in (0, 1)}
DST = {dim: Sharding([[0, 1], [2, 3]], [Replicate(), Shard(dim)]) for dim in (0, 1)}
Arrays = list[np.ndarray[Any, Any]]
Contender = Callable[[Arrays, Arrays], None]


def shapes(count: int, largest: int) -> list[tuple[int, int]]:
    """Sizes from 1 MiB to the largest, evenly on a scale of logarithms, of float32."""
    sizes = np.geomspace(1, largest, count) * 2**20 / 4
    return [(int(size // 1024) // 4 * 4, 1024) for size in sizes]


class Model:
    """The tensors of one rank. Those with an odd number are divided along columns if there are any such."""

    def __init__(self, comm: a2a.Communicator, options: argparse.Namespace) -> None:
        self.shapes = shapes(options.tensors, options.largest)
        self.dims = [i % 2 if options.columns else 0 for i in range(options.tensors)]
        self.before = [SRC[dim].box(comm.rank, shape) or () for dim, shape in zip(self.dims, self.shapes, strict=True)]
        self.after = [DST[dim].box(comm.rank, shape) or () for dim, shape in zip(self.dims, self.shapes, strict=True)]
        self.sends = [self.part(i, self.before[i]) for i in range(options.tensors)]
        self.recvs = [np.zeros_like(self.part(i, self.after[i])) for i in range(options.tensors)]

    def part(self, i: int, box: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        rows, columns = box
        first = np.arange(rows.start, rows.stop, dtype=np.float32)[:, None] * 7 + i
        made: np.ndarray[Any, Any] = first + np.arange(columns.start, columns.stop, dtype=np.float32)
        return made

    def check(self, name: str) -> None:
        for i, recv in enumerate(self.recvs):
            assert np.array_equal(recv, self.part(i, self.after[i])), f"{name}: tensor {i} is wrong"
            recv[...] = 0

    def cut(self, i: int, gathered: np.ndarray[Any, Any], ranks: int) -> None:
        """Copy this rank's part out of all ranks' parts, [ranks, rows, columns]."""
        axis, own = self.dims[i], self.after[i]
        step = gathered.shape[1 + axis]
        for rank in range(ranks):
            begin, end = max(own[axis].start, rank * step), min(own[axis].stop, (rank + 1) * step)
            if begin >= end:
                continue
            to, part = [slice(None)] * 2, [slice(None)] * 2
            to[axis] = slice(begin - own[axis].start, end - own[axis].start)
            part[axis] = slice(begin - rank * step, end - rank * step)
            self.recvs[i][tuple(to)] = gathered[rank][tuple(part)]


def contenders(comm: a2a.Communicator, model: Model, folder: str) -> dict[str, Contender]:
    """``folder`` is where the ranks of Gloo meet: that of rank 0."""
    tensors = [(shape, SRC[dim], DST[dim], "float32") for shape, dim in zip(model.shapes, model.dims, strict=True)]
    plan = comm.plan_reshard_all(tensors)
    whole = np.empty(max(send.size for send in model.sends) * comm.size, np.float32)

    def gathered(send: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return whole[: send.size * comm.size].reshape(comm.size, *send.shape)

    def a2a_allgather(sends: Arrays, recvs: Arrays) -> None:
        for i, send in enumerate(sends):
            comm.allgather(send, gathered(send))
            model.cut(i, gathered(send), comm.size)

    ways: dict[str, Contender] = {"a2a reshard": plan.run, "a2a allgather": a2a_allgather}
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return ways
    store = os.fsdecode(comm.allgather_bytes(os.fsencode(folder))[0]) + "/store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=comm.rank, world_size=comm.size)

    def gloo(sends: Arrays, recvs: Arrays) -> None:
        for i, send in enumerate(sends):
            into = torch.from_numpy(gathered(send))
            dist.all_gather(list(into), torch.from_numpy(send))
            model.cut(i, gathered(send), comm.size)

    ways["gloo all_gather"] = gloo
    return ways


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=100)
    parser.add_argument("--largest", type=int, default=64, help="MiB of the largest tensor (default 64)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--columns", action="store_true", help="divide every second tensor along its columns")
    parser.add_argument("-J", "--json", type=Path, help="write the times to a file, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, a2a.init() as comm:
        if comm.size != 4:
            raise SystemExit("start 4 ranks: a2a run -n 4 benchmarks/reshard.py")
        model = Model(comm, options)
        ways = contenders(comm, model, folder)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(options.rounds + 1):
            for name, run in ways.items():
                comm.barrier()
                began = time.perf_counter()
                run(model.sends, model.recvs)
                own = time.perf_counter() - began
                slowest = max(map(float, comm.allgather_bytes(str(own).encode())))
                if turn == 0:
                    model.check(name)  # and the memory is mapped
                else:
                    times[name].append(slowest)
        if comm.rank == 0:
            report(times, sum(rows * columns * 4 for rows, columns in model.shapes), options)


def report(times: dict[str, list[float]], size: int, options: argparse.Namespace) -> None:
    print(f"{options.tensors} tensors of {size / 2**20:.0f} MiB in all, {options.rounds} rounds")
    best = float(np.median(times["a2a reshard"]))
    for name, seconds in times.items():
        median = float(np.median(seconds))
        low, high = min(seconds) * 1e3, max(seconds) * 1e3
        print(f"  {name:16} {median * 1e3:9.1f} ms  ({low:.1f} to {high:.1f})  {median / best:.2f} times")
    if options.json:
        options.json.write_text(json.dumps({"bytes": size, "seconds": times}, indent=1) + "\n")


if __name__ == "__main__":
    main()
