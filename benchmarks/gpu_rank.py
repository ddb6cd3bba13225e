"""One rank of gpu.py: the contenders over tensors of Torch, or of the tests' own framework where there is none."""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import cudart
import gpu_ranks
import numpy as np
import numpy.typing as npt

import a2a

Words = npt.NDArray[np.int64]
OPERATIONS = ["alltoallv", "alltoall", "allgather"]
MOST_ITERATIONS = 10
BYTES_PER_ROUND = 64 << 20


class Exchange:
    """So many words from each rank to each: equally many, but for "alltoallv", where they are between one and three
    times as many from pair to pair. Each word depends on source, position and round, and on the destination, but for
    "allgather", where all get the same."""

    def __init__(self, comm: a2a.Communicator, size: int, operation: str = "alltoallv") -> None:
        n, rank = comm.size, comm.rank
        self.comm, self.operation, self.round = comm, operation, 0
        weights = np.ones((n, n), np.int64)
        if operation == "alltoallv":
            weights += np.add.outer(np.arange(n), np.arange(n)) % min(n, 3)
        counts = weights * max(1, size // 8 // int(weights.sum(1).max()))
        self.give, self.take = counts[rank].tolist(), counts[:, rank].tolist()
        self.count = int(max(counts.sum(0).max(), counts.sum(1).max()))
        targets = [0] * n if operation == "allgather" else list(range(n))
        parts = [self._words(rank, target, self.give[target]) for target in targets]
        self.sent = parts[0] if operation == "allgather" else np.concatenate(parts)
        self.wanted = np.concatenate([self._words(peer, targets[rank], self.take[peer]) for peer in range(n)])

    def _words(self, source: int, target: int, count: int) -> Words:
        return (source << 48) + (target << 40) + np.arange(count, dtype=np.int64) * 8


class TorchBuffers:
    """Tensors of Torch, on its current stream."""

    def __init__(self, exchange: Exchange) -> None:
        import torch

        self.torch, self.exchange = torch, exchange
        self.sent, self.wanted = (torch.from_numpy(words).cuda() for words in (exchange.sent, exchange.wanted))
        self.send, self.recv = torch.empty_like(self.sent), torch.empty_like(self.wanted)
        self.stream = int(torch.cuda.current_stream().cuda_stream)
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def rewrite(self) -> None:
        self.torch.add(self.sent, self.exchange.round, out=self.send)
        self.recv.fill_(-1)
        self.torch.cuda.synchronize()

    def begin(self) -> None:
        self.events[0].record()

    def end(self) -> None:
        self.events[1].record()

    def device_us(self) -> float:
        self.torch.cuda.synchronize()
        return float(self.events[0].elapsed_time(self.events[1])) * 1e3

    def wrong(self) -> int:
        return int((self.recv != self.wanted + self.exchange.round).sum())


class DriverBuffers:
    """Memory of the CUDA driver, on its default stream; the device's time is not taken."""

    stream = 0

    def __init__(self, exchange: Exchange) -> None:
        self.exchange, self.device = exchange, exchange.comm.rank % cudart.devices()
        self.arrays = [cudart.Array(words, self.device) for words in (exchange.sent, exchange.wanted)]
        self.send, self.recv = (array.tensor for array in self.arrays)

    def rewrite(self) -> None:
        self.arrays[0].write(self.exchange.sent + self.exchange.round)
        self.arrays[1].write(np.full_like(self.exchange.wanted, -1))

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def device_us(self) -> float:
        cudart.synchronize(self.stream)
        return 0.0

    def wrong(self) -> int:
        return int((self.arrays[1].read() != self.exchange.wanted + self.exchange.round).sum())


Buffers = TorchBuffers | DriverBuffers
Call = Callable[[], object]


def contenders(comm: a2a.Communicator, exchange: Exchange, buffers: Buffers, with_torch: bool) -> dict[str, Call]:
    send, recv, give, take = buffers.send, buffers.recv, exchange.give, exchange.take
    if exchange.operation != "alltoallv":
        return equal(comm, exchange, buffers, with_torch)
    plan = comm.plan_alltoallv(send, give, recv, take)
    calls: dict[str, Call] = {
        "a2a": lambda: comm.alltoallv(send, give, recv, take),
        "a2a-plan": lambda: plan.run(send, recv),
    }
    if isinstance(buffers, TorchBuffers):
        import a2a.torch as ours

        calls["a2a.torch"] = lambda: ours.all_to_all_single(recv, send, take, give, group=comm)
    if with_torch:
        import torch.distributed as dist

        calls["torch"] = lambda: dist.all_to_all_single(recv, send, take, give)
    return calls


def equal(comm: a2a.Communicator, exchange: Exchange, buffers: Buffers, with_torch: bool) -> dict[str, Call]:
    """NCCL's own call for equal parts, where it has one, against the same work as a group of sends and receives."""
    send, recv, counts, gather = buffers.send, buffers.recv, exchange.give, exchange.operation == "allgather"
    everywhere = [0] * comm.size if gather else None  # displacements: the same words for each peer
    calls: dict[str, Call] = {
        "a2a": (lambda: comm.allgather(send, recv)) if gather else (lambda: comm.alltoall(send, recv)),
        "a2a-group": lambda: comm.alltoallv(send, counts, recv, counts, everywhere),
    }
    if with_torch:
        import torch.distributed as dist

        theirs = dist.all_gather_into_tensor if gather else dist.all_to_all_single
        calls["torch"] = lambda: theirs(recv, send)
    return calls


def one(buffers: Buffers, call: Call) -> dict[str, float]:
    """Microseconds of the host and of the device, wrong words, and whether the call waited for the device."""
    exchange = buffers.exchange
    exchange.round += 1
    buffers.rewrite()
    exchange.comm.barrier()
    with cudart.held_up(cudart.current(), buffers.stream):
        buffers.begin()
        start = time.perf_counter_ns()
        call()
        host = time.perf_counter_ns() - start
        buffers.end()
        waited = not cudart.busy(buffers.stream)
        exchange.comm.barrier()
    device_us = buffers.device_us()
    return {"host_us": host / 1e3, "device_us": device_us, "wrong": buffers.wrong(), "sync": int(waited)}


def point(exchange: Exchange, framework: str, rounds: int, until: float, with_torch: bool) -> dict[str, Any]:
    comm, size = exchange.comm, exchange.count * 8
    buffers = TorchBuffers(exchange) if framework == "torch" else DriverBuffers(exchange)
    calls = contenders(comm, exchange, buffers, with_torch)
    iterations = max(2, min(MOST_ITERATIONS, BYTES_PER_ROUND // size))
    for call in calls.values():
        for _ in range(20 if size < 1 << 20 else 2):  # connections, kernels, and what ranks compare
            call()
        cudart.synchronize(buffers.stream)
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            seen[name] += [one(buffers, call) for _ in range(iterations)]
        if late(comm, until):
            break
    mine = {name: _summary(each) for name, each in seen.items()}
    everyone = [json.loads(text) for text in comm.allgather_bytes(json.dumps(mine).encode())]
    whole: dict[str, dict[str, float]] = {}
    for name, keys in mine.items():
        values = {key: [rank[name][key] for rank in everyone] for key in keys}
        whole[name] = {key: max(each) if key.endswith("_us") else sum(each) for key, each in values.items()}
    return {"operation": exchange.operation, "size": size, "count": exchange.count, "calls": whole}


def _summary(each: list[dict[str, float]]) -> dict[str, float]:
    return {
        key: median(one[key] for one in each) if key.endswith("_us") else int(sum(one[key] for one in each))
        for key in each[0]
    }


def late(comm: a2a.Communicator, until: float) -> bool:
    """Whether rank 0 says that time is over."""
    return comm.allgather_bytes(b"late" if time.monotonic() > until else b"")[0] != b""


def join_torch(comm: a2a.Communicator) -> str:
    """Makes torch's process group of the same ranks; why some rank could not, if so."""
    import torch
    import torch.distributed as dist

    folder = tempfile.mkdtemp() if comm.rank == 0 else ""
    store = comm.allgather_bytes(folder.encode())[0].decode() + "/store"
    refused = ""
    try:
        dist.init_process_group("nccl", init_method=f"file://{store}", rank=comm.rank, world_size=comm.size)
        dist.all_reduce(torch.zeros(1, device="cuda"))
        torch.cuda.synchronize()
    except Exception as error:  # torch has classes of its own for this
        refused = f"{type(error).__name__}: {error}"
    return next(filter(None, (text.decode() for text in comm.allgather_bytes(refused.encode()))), "")


def measure(comm: a2a.Communicator, framework: str, sizes: list[int], rounds: int, seconds: float) -> dict[str, Any]:
    """The points of all sizes that there is time for."""
    until = time.monotonic() + seconds
    gpu_ranks.place(comm, "torch" if framework == "torch" else gpu_ranks.DRIVER)
    without = join_torch(comm) if framework == "torch" else ""
    found: dict[str, Any] = {"points": [], "left": []}
    if without:
        found["torch refused"] = without
    seen: set[tuple[str, int]] = set()
    for size, operation in itertools.product(sizes, OPERATIONS):
        exchange = Exchange(comm, size, operation)
        if (operation, exchange.count) in seen:
            continue  # so few bytes for so many ranks
        seen.add((operation, exchange.count))
        if late(comm, until):
            found["left"].append(f"{operation} of {size} bytes")
            continue
        found["points"].append(point(exchange, framework, rounds, until, framework == "torch" and not without))
    comm.barrier()
    if framework == "torch" and not without:
        import torch.distributed as dist

        dist.destroy_process_group()
    return found
