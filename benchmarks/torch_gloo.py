"""Torch's all_to_all_single or all_reduce on a2a against Gloo, and what the adapter itself costs.

``python benchmarks/torch_gloo.py [--operation all_reduce] [--ranks 2] [--sizes 8 64K 1M] [--json FILE]``

Ranks are processes of this host. All contenders live in the same ranks and take turns in every round, in a random
order. In each iteration every rank rewrites its input, all meet in a barrier, and only the call is timed; then the
output is read and compared. Time is the slowest rank's median over a round's iterations; the table has the median of
the rounds, and of the ratios Gloo / a2a with their lowest and highest. Size is bytes per ordered pair for
all_to_all_single, of int64, and bytes of the tensor for all_reduce, of float32 and in place.

The second table is a communicator of one rank, where nothing waits: nanoseconds per call.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import a2a

CONTENDERS = ("a2a.torch", "backend a2a", "gloo")
ROUNDS = 9
SECONDS_PER_ROUND = 0.15


def parse_size(text: str) -> int:
    unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1].upper(), 1)
    return int(text if unit == 1 else text[:-1]) * unit


class AllToAll:
    """Rank r's element i has the value i + 1000 * r + the number of the turn."""

    def __init__(self, comm: a2a.Communicator, bytes_of_a_pair: int) -> None:
        import torch

        self.rank, self.size, self.elems = comm.rank, comm.size, max(bytes_of_a_pair // 8, 1)
        self.input, self.output = (torch.empty(self.elems * self.size, dtype=torch.int64) for _ in range(2))
        self.place = torch.arange(self.elems * self.size)

    def write(self, turn: int) -> None:
        self.input.copy_(self.place).add_(1000 * self.rank + turn)

    def call(self, module: Any, group: Any) -> None:
        module.all_to_all_single(self.output, self.input, group=group)

    def check(self, turn: int) -> None:
        for peer, part in enumerate(self.output.chunk(self.size)):
            first = self.rank * self.elems + 1000 * peer + turn
            if int(part[0]) != first or int(part.sum()) != self.elems * first + self.elems * (self.elems - 1) // 2:
                raise AssertionError(f"rank {self.rank}: wrong data from rank {peer}")


class AllReduce:
    """Rank r's element i has the value i % 1024 + r + the number of the turn: sums are exact."""

    def __init__(self, comm: a2a.Communicator, bytes_of_a_tensor: int) -> None:
        import torch

        self.rank, self.size = comm.rank, comm.size
        self.tensor = torch.empty(max(bytes_of_a_tensor // 4, 1), dtype=torch.float32)
        self.place = (torch.arange(self.tensor.numel()) % 1024).float()

    def write(self, turn: int) -> None:
        self.tensor.copy_(self.place).add_(self.rank + turn)

    def call(self, module: Any, group: Any) -> None:
        module.all_reduce(self.tensor, group=group)

    def check(self, turn: int) -> None:
        import torch

        right = self.place * self.size + (self.size * (self.size - 1) // 2 + self.size * turn)
        if not torch.equal(self.tensor, right):
            raise AssertionError(f"rank {self.rank}: wrong sums")


OPERATIONS: dict[str, Any] = {"all_to_all_single": AllToAll, "all_reduce": AllReduce}


def start_world(comm: a2a.Communicator) -> dict[str, tuple[Any, Any]]:
    """The module and the group of each contender's calls; all ranks make the groups here."""
    import a2a.torch
    import torch.distributed as dist

    if comm.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, comm.size, is_master=True, wait_for_workers=False)
        comm.allgather_bytes(str(store.port).encode())
    else:
        port = int(comm.allgather_bytes(b"")[0])
        store = dist.TCPStore("127.0.0.1", port, comm.size, is_master=False, wait_for_workers=False)
    limit = timedelta(seconds=120)
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=limit)
    ours = dist.new_group(list(range(comm.size)), backend="a2a")
    return {"a2a.torch": (a2a.torch, ours), "backend a2a": (dist, ours), "gloo": (dist, None)}


def one_round(comm: a2a.Communicator, operation: Any, place: tuple[Any, Any], iterations: int) -> float:
    """This rank's median microseconds of one call."""
    times = []
    for turn in range(iterations):
        operation.write(turn)
        comm.barrier()
        started = time.perf_counter()
        operation.call(*place)
        times.append(time.perf_counter() - started)
        operation.check(turn)
    return statistics.median(times) * 1e6


def measure(comm: a2a.Communicator, name_of_operation: str, sizes: list[int]) -> dict[int, dict[str, list[float]]]:
    """Microseconds of every round, by size and contender: the slowest rank's."""
    import numpy as np
    import torch

    torch.set_num_threads(1)
    places = start_world(comm)
    order, figures = random.Random(1), {}
    for size in sizes:
        operation = OPERATIONS[name_of_operation](comm, size)
        rounds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        iterations = {name: 20 for name in CONTENDERS}
        for turn in range(ROUNDS + 1):
            for name in order.sample(CONTENDERS, len(CONTENDERS)):
                started = time.perf_counter()
                everyone = np.empty(comm.size)
                mine = one_round(comm, operation, places[name], iterations[name])
                comm.allgather(np.array([mine]), everyone)
                took = np.empty(comm.size)
                comm.allgather(np.array([time.perf_counter() - started]), took)
                if turn == 0:  # the warm-up tells how many fit into a round
                    iterations[name] = int(min(max(20 * SECONDS_PER_ROUND / took.max(), 5), 2000))
                else:
                    rounds[name].append(float(everyone.max()))
        figures[size] = rounds
    return figures


def overheads() -> dict[str, float]:
    """Nanoseconds per call on one rank, the fastest of several repeats."""
    import a2a.torch as ours
    import torch
    import torch.distributed as dist

    class Nothing(dist.ProcessGroup):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__(0, 1)

        def all_to_all_single(self, *_: Any) -> None:
            return None

        alltoall_base = all_to_all_single

    dist.init_process_group("a2a", store=dist.HashStore(), rank=0, world_size=1)
    world, nothing = dist.group.WORLD, Nothing()
    x, y = torch.zeros(4, 2), torch.zeros(4, 2)
    steps: dict[str, Callable[[], object]] = {
        "comm.alltoall": lambda: world.comm.alltoall(x, y),
        "a2a.torch.all_to_all_single": lambda: ours.all_to_all_single(y, x),
        "torch.distributed, a group that does nothing": lambda: dist.all_to_all_single(y, x, group=nothing),
        "torch.distributed, backend a2a": lambda: dist.all_to_all_single(y, x),
    }
    figures = {}
    for name, step in steps.items():
        timer = timeit.Timer(step)
        calls, seconds = timer.autorange()
        calls = max(1, int(calls * 0.02 / seconds))
        figures[name] = min(timer.repeat(15, calls)) / calls * 1e9
    return figures


def table(figures: dict[int, dict[str, list[float]]]) -> list[str]:
    lines = [f"{'bytes':>9}" + "".join(f"{name + ', us':>18}" for name in CONTENDERS) + f"{'gloo / a2a.torch':>26}"]
    for size, rounds in figures.items():
        ratios = [theirs / ours for theirs, ours in zip(rounds["gloo"], rounds["a2a.torch"], strict=True)]
        spread = f"{statistics.median(ratios):.1f} [{min(ratios):.1f}, {max(ratios):.1f}]"
        medians = "".join(f"{statistics.median(rounds[name]):>18.2f}" for name in CONTENDERS)
        lines.append(f"{size:>9}{medians}{spread:>26}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operation", choices=OPERATIONS, default="all_to_all_single")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=parse_size, nargs="+", default=[8, 1 << 16, 1 << 20], metavar="BYTES")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    figures = a2a.spawn(measure, options.ranks, options.operation, options.sizes, timeout=600)[0]
    costs = overheads()
    print(f"{options.ranks} ranks, {options.operation}", *table(figures), sep="\n")
    print("\nall_to_all_single of one rank, 32 bytes")
    for name, nanoseconds in costs.items():
        print(f"{name:<48}{nanoseconds:>8.0f} ns")
    if options.json:
        options.json.write_text(json.dumps({"us": figures, "ns": costs}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
