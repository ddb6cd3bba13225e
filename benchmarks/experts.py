"""A step of a mixture of experts, dispatch and combine, against what programs write today.

``python benchmarks/experts.py [--ranks 2 4 8] [--hidden 512 2048 7168] [--tokens 64 512] [--rounds 7] [--json FILE]``

bfloat16, eight experts on a rank, top-4, uniform routing; the experts do nothing. All contenders live in the same
ranks, processes of this host that mpiexec has started, and take turns in every round, in a random order. Tokens are
rewritten before each step, and what comes back is compared with the dense sum. A round's time is the slowest rank's
median.

- a2a: ``ep.dispatch`` and ``ep.combine``.
- a2a, routed before: the same by ``ep.plan``, once.
- gloo: bincount, index_select, all_to_all_single, index_add of Torch, on Gloo.
- backend: the same program on a2a's backend.
- mpi: NumPy's permutations round mpi4py's Alltoall and Alltoallv.
- copy: the bytes of a step copied by Torch, twice: what is dispatched and what is combined.
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
from a2a import moe
from a2a._core import host_ways

EXPERTS, TOP_K = 8, 4  # of a rank, of a token
STEPS = 3  # of a round

Step = Callable[[Any, Any, Any], Any]  # (x, topk_idx, topk_weights) -> y


def with_dispatch(ep: moe.ExpertParallel) -> Step:
    def step(x: Any, choice: Any, weights: Any) -> Any:
        routed = ep.dispatch(x, choice, weights)
        return ep.combine(routed.x, routed)

    return step


def with_plan(ep: moe.ExpertParallel, choice: Any, weights: Any) -> Step:
    routing = ep.plan(choice, weights)
    return lambda x, *_: routing.combine(routing.dispatch(x).x)


def with_torch(exchange: Callable[..., Any], size: int) -> Step:
    """As a program for torch.distributed does it."""
    import torch

    def step(x: Any, choice: Any, weights: Any) -> Any:
        order = torch.argsort(choice.flatten(), stable=True)
        counts = torch.bincount(choice.flatten(), minlength=EXPERTS * size)
        there = torch.empty_like(counts)
        exchange(there, counts)
        sends, recvs = (each.view(size, -1).sum(1).tolist() for each in (counts, there))
        rows = x.index_select(0, order // TOP_K)
        arrived = x.new_empty(sum(recvs), x.shape[1])
        exchange(arrived, rows, recvs, sends)
        by_expert = torch.argsort(torch.arange(EXPERTS).repeat(size).repeat_interleave(there), stable=True)
        worked = arrived.index_select(0, by_expert)
        arrived[by_expert] = worked
        exchange(rows, arrived, sends, recvs)
        weighted = rows.float() * weights.flatten()[order].unsqueeze(1)
        return torch.zeros(x.shape).index_add_(0, order // TOP_K, weighted).to(x.dtype)

    return step


def with_mpi(size: int) -> Step | None:
    try:
        from mpi4py import MPI
    except ImportError:
        return None
    import torch

    comm = MPI.COMM_WORLD

    def exchange(recv: Any, recvs: Any, send: Any, sends: Any) -> None:
        width = send.shape[1] * send.itemsize
        comm.Alltoallv([send, sends * width, MPI.BYTE], [recv, recvs * width, MPI.BYTE])

    def step(x: Any, choice: Any, weights: Any) -> Any:
        import ml_dtypes

        tokens = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        flat = choice.numpy().reshape(-1)
        order = np.argsort(flat, kind="stable")
        counts = np.bincount(flat, minlength=EXPERTS * size).astype(np.int64)
        there = np.empty_like(counts)
        comm.Alltoall(counts, there)
        sends, recvs = counts.reshape(size, -1).sum(1), there.reshape(size, -1).sum(1)
        rows = tokens[order // TOP_K]
        arrived = np.empty((recvs.sum(), x.shape[1]), tokens.dtype)
        exchange(arrived, recvs, rows, sends)
        by_expert = np.argsort(np.repeat(np.tile(np.arange(EXPERTS), size), there), kind="stable")
        worked = arrived[by_expert]
        arrived[by_expert] = worked
        exchange(rows, sends, arrived, recvs)
        back = np.empty((len(flat), x.shape[1]), np.float32)
        back[order] = rows
        total = np.einsum("tk,tkh->th", weights.numpy(), back.reshape(*choice.shape, -1))
        return torch.from_numpy(total.astype(tokens.dtype).view(np.int16)).view(torch.bfloat16)

    return step


def copying(x: Any, choice: Any, weights: Any) -> Any:
    x.repeat(choice.shape[1], 1).clone()
    return x


def contenders(comm: a2a.Communicator, backend: Any, choice: Any, weights: Any) -> dict[str, Step]:
    import torch.distributed as dist

    ep = moe.ExpertParallel(comm, EXPERTS * comm.size)

    def on_backend(*args: Any) -> None:
        dist.all_to_all_single(*args, group=backend)

    made = {
        "a2a": with_dispatch(ep),
        "a2a, routed before": with_plan(ep, choice, weights),
        "gloo": with_torch(dist.all_to_all_single, comm.size),
        "backend": with_torch(on_backend, comm.size),
        "mpi": with_mpi(comm.size),
        "copy": copying,
    }
    return {name: step for name, step in made.items() if step is not None}


def copies(comm: a2a.Communicator, choice: Any, hidden: int) -> float:
    """Bytes that a dispatch writes for this rank's tokens, over the least that can be: each row once. What crosses
    through chunks is written twice."""
    ranks = choice.numpy() // EXPERTS
    total = ranks.size
    written = float(total)
    for peer in range(comm.size):
        crossing = int((ranks == peer).any(1).sum())
        ways = {memory: way for memory, way, _ in host_ways(comm, crossing * hidden * 2)}
        if peer != comm.rank and ways["private memory in small pages"] == "staged":
            written += crossing
    return written / total


def one_round(comm: a2a.Communicator, name: str, step: Step, x: Any, choice: Any, weights: Any) -> float:
    times = []
    for _ in range(STEPS):
        x.neg_()
        comm.barrier()
        started = time.perf_counter()
        y = step(x, choice, weights)
        times.append(time.perf_counter() - started)
        dense = x.float() * weights.sum(1, keepdim=True)
        if name != "copy" and not bool(((y.float() - dense).abs() <= 0.02 * dense.abs() + 1e-3).all()):
            raise AssertionError(f"{name}: what came back is not the sum")
    return slowest(comm, times)


def measure(comm: a2a.Communicator, backend: Any, tokens: int, hidden: int, rounds: int) -> tuple[Times, float]:
    import torch

    rng = np.random.default_rng([comm.rank, tokens])
    x = torch.from_numpy(rng.standard_normal((tokens, hidden), np.float32)).to(torch.bfloat16)
    chosen = rng.random((tokens, EXPERTS * comm.size)).argsort(1)[:, :TOP_K]
    choice, weights = torch.from_numpy(chosen.copy()), torch.from_numpy(rng.random((tokens, TOP_K), np.float32))
    steps = contenders(comm, backend, choice, weights)
    times = in_turns(list(steps), rounds, lambda name: one_round(comm, name, steps[name], x, choice, weights))
    return times, copies(comm, choice, hidden)


def work(options: argparse.Namespace) -> None:
    import a2a.torch  # noqa: F401  the backend
    import torch.distributed as dist

    with ranks_with_gloo() as comm:
        backend = dist.new_group(backend="a2a")
        points = []
        for hidden in options.hidden:
            for tokens in options.tokens:
                times, copied = measure(comm, backend, tokens, hidden, options.rounds)
                point = {"ranks": comm.size, "hidden": hidden, "tokens": tokens, "copied": copied, "times_us": times}
                points.append(point)
        if comm.rank == 0:
            options.worker.write_text(json.dumps(points))


def table(points: list[dict[str, Any]]) -> Iterator[str]:
    yield "copied: bytes that a dispatch writes for a token, over the least that can be"
    yield f"{'ranks':>5} {'hidden':>6} {'tokens':>6} {'copied':>6} {'a2a, us':>9}   others / a2a, median [least, most]"
    for point in points:
        what = f"{point['ranks']:>5} {point['hidden']:>6} {point['tokens']:>6} {point['copied']:>6.2f}"
        yield f"{what} {ratios(point['times_us'])}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 2048, 7168])
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 512], help="of a rank")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        work(options)
    else:
        lists = ["--hidden", *map(str, options.hidden), "--tokens", *map(str, options.tokens)]
        print(*table(run(__file__, options, lists)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
