"""Exchanges along axes, there and back, against what programs do without them.

``python benchmarks/axes.py [--ranks 2 4] [--sizes 64K 1M 16M] [--rounds 7] [--json FILE]``

A step splits axis 1 of ``[a / ranks, b, c]`` and concatenates axis 0, and then goes back: a layer of DeepSpeed-Ulysses
(bfloat16, heads of 64) and the transpose between two FFTs of pencils (complex128). All contenders live in the same
ranks, processes of this host that mpiexec has started, and take turns in every round, in a random order. Inputs are
rewritten before each step and what comes back is compared after it. A round's time is the slowest rank's median.

- a2a: ``plan_alltoall`` with axes.
- a2a, contiguous: permute and contiguous() round planned exchanges of rows.
- gloo: the same round all_to_all_single on Gloo.
- yunchang: its all_to_all_4D on Gloo, where it is installed.
- alltoallw: mpi4py's Alltoallw with subarray types.
- copy: one rank's bytes copied twice by Torch, for orientation.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi_ranks import Times, in_turns, ranks_with_gloo, ratios, run, slowest

import a2a

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
DTYPES = {"bfloat16": (2, 64), "complex128": (16, 16)}  # bytes of an element, and the entries of the last axis
STEPS = 5  # of a round

Step = Callable[[Any, Any, Any], None]  # (send, there, back)


def bytes_of(text: str) -> int:
    return int(text.rstrip("KMG")) * UNITS[text[-1] if text[-1] in UNITS else ""]


def with_axes(comm: a2a.Communicator, like: Any, there: Any) -> Step:
    forth, back = comm.plan_alltoall(like, there, 1, 0), comm.plan_alltoall(there, like, 0, 1)

    def step(send: Any, received: Any, returned: Any) -> None:
        forth.run(send, received)
        back.run(received, returned)

    return step


def with_copies(size: int, exchange: Callable[[Any, Any], None]) -> Step:
    """Permuted to rows and back, as programs do where the exchange knows rows only."""
    import torch

    def step(send: Any, received: Any, returned: Any) -> None:
        a, b, c = send.shape
        rows = send.reshape(a, size, b // size, c).permute(1, 0, 2, 3).contiguous()
        exchange(received, rows)
        of_ranks = torch.empty_like(rows)
        exchange(of_ranks, received)
        returned.copy_(of_ranks.permute(1, 0, 2, 3).reshape(a, b, c))

    return step


def with_yunchang() -> Step | None:
    try:
        from yunchang.comm.all_to_all import all_to_all_4D
    except ImportError:
        return None

    def step(send: Any, received: Any, returned: Any) -> None:
        received.copy_(all_to_all_4D(send.unsqueeze(0), 2, 1)[0])
        returned.copy_(all_to_all_4D(received.unsqueeze(0), 1, 2)[0])

    return step


def with_alltoallw(size: int, like: Any, there: Any) -> Step | None:
    import torch

    try:
        from mpi4py import MPI
    except ImportError:
        return None

    def parts(shape: Sequence[int], axis: int, elem_bytes: int) -> list[Any]:
        types = []
        element = MPI.BYTE.Create_contiguous(elem_bytes)
        for rank in range(size):
            part, start = list(shape), [0] * len(shape)
            part[axis] //= size
            start[axis] = rank * part[axis]
            types.append(element.Create_subarray(shape, part, start).Commit())
        return types

    split, joined = parts(like.shape, 1, like.element_size()), parts(there.shape, 0, like.element_size())

    def message(tensor: Any, types: list[Any]) -> list[Any]:
        return [tensor.view(torch.int8).numpy(), [1] * size, [0] * size, types]

    def step(send: Any, received: Any, returned: Any) -> None:
        MPI.COMM_WORLD.Alltoallw(message(send, split), message(received, joined))
        MPI.COMM_WORLD.Alltoallw(message(received, joined), message(returned, split))

    return step


def copying(send: Any, received: Any, returned: Any) -> None:
    received.view(-1).copy_(send.view(-1))
    returned.view(-1).copy_(received.view(-1))


def contenders(comm: a2a.Communicator, like: Any, there: Any) -> dict[str, Step]:
    import torch.distributed as dist

    def flat(tensor: Any) -> Any:
        return tensor.view(comm.size, -1)

    rows = comm.plan_alltoall(flat(there), flat(there.clone()))
    made = {
        "a2a": with_axes(comm, like, there),
        "a2a, contiguous": with_copies(comm.size, lambda recv, send: rows.run(flat(send), flat(recv))),
        "gloo": with_copies(comm.size, lambda recv, send: dist.all_to_all_single(flat(recv), flat(send))),
        "yunchang": with_yunchang(),
        "alltoallw": with_alltoallw(comm.size, like, there),
        "copy": copying,
    }
    return {name: step for name, step in made.items() if step is not None}


def one_round(comm: a2a.Communicator, step: Step, send: Any, there: Any, back: Any, checks: bool) -> float:
    times = []
    for turn in range(STEPS):
        send.view(-1)[turn::97] += 1
        comm.barrier()
        started = time.perf_counter()
        step(send, there, back)
        times.append(time.perf_counter() - started)
        if checks and not bool((back == send).all()):
            raise AssertionError("what came back is not what was sent")
    return slowest(comm, times)


def measure(comm: a2a.Communicator, dtype: str, size: int, rounds: int) -> Times:
    import torch

    elem_bytes, last = DTYPES[dtype]
    b = 8 * comm.size
    a = max(1, size // (elem_bytes * last * b))
    generator = np.random.default_rng(comm.rank)
    send = torch.from_numpy(generator.integers(-99, 99, (a, b, last))).to(getattr(torch, dtype))
    there, back = torch.zeros((a * comm.size, b // comm.size, last), dtype=send.dtype), torch.zeros_like(send)
    steps = contenders(comm, send, there)
    return in_turns(list(steps), rounds, lambda name: one_round(comm, steps[name], send, there, back, True))


def work(options: argparse.Namespace) -> None:
    with ranks_with_gloo() as comm:
        points = []
        for dtype in DTYPES:
            for size in options.sizes:
                times = measure(comm, dtype, bytes_of(size), options.rounds)
                points.append({"ranks": comm.size, "dtype": dtype, "bytes": size, "times_us": times})
        if comm.rank == 0:
            options.worker.write_text(json.dumps(points))


def table(points: list[dict[str, Any]]) -> Iterator[str]:
    yield f"{'ranks':>5} {'dtype':>10} {'bytes':>6} {'a2a, us':>9}   others / a2a, median [least, most]"
    for point in points:
        yield f"{point['ranks']:>5} {point['dtype']:>10} {point['bytes']:>6} {ratios(point['times_us'])}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", nargs="+", default=["64K", "1M", "16M", "64M"], help="bytes of a rank")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        work(options)
    else:
        print(*table(run(__file__, options, ["--sizes", *options.sizes])), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
