"""A rank of one contender between hosts: it does what the driver tells it over a socket, and says how long it took.

    python benchmarks/host_ranks.py a2a 10.0.0.1:5000     # the name of the contender, the address of the driver

Between two turns it is blocked in a read of that socket, outside its library. The variables of torchrun, or mpiexec,
say which rank it is. A turn is so many calls in a row: before each the whole input is rewritten, after each the whole
output is checked, and only the call is timed. The calls themselves keep the ranks together."""

from __future__ import annotations

import json
import resource
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
TIMEOUT = 60.0


class A2a:
    def __init__(self) -> None:
        import a2a

        self.comm = a2a.init(timeout=TIMEOUT)
        self.rank, self.size = self.comm.rank, self.comm.size
        self.group: Any = None

    def allreduce(self, tensor: Array) -> None:
        self.comm.allreduce(tensor)

    def alltoall(self, send: Array, recv: Array) -> None:
        self.comm.alltoall(send, recv)

    def name(self) -> str:
        from a2a import _core

        return _core.host_ways(self.comm, 8)[-1][1]

    def torch_group(self) -> Any:
        import a2a.torch
        import torch.distributed as dist

        a2a.torch.init_process_group("a2a")
        return dist.group.WORLD


class Gloo:
    def __init__(self) -> None:
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
        self.dist, self.tensor = dist, torch.from_numpy
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def allreduce(self, tensor: Array) -> None:
        self.dist.all_reduce(self.tensor(tensor))

    def alltoall(self, send: Array, recv: Array) -> None:
        self.dist.all_to_all_single(self.tensor(recv), self.tensor(send))

    def name(self) -> str:
        import torch

        return f"Gloo of torch {torch.__version__}"

    def torch_group(self) -> Any:
        return self.dist.group.WORLD


class Mpi:
    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size

    def allreduce(self, tensor: Array) -> None:
        self.comm.Allreduce(self.mpi.IN_PLACE, tensor)

    def alltoall(self, send: Array, recv: Array) -> None:
        self.comm.Alltoall(send, recv)

    def name(self) -> str:
        return str(self.mpi.Get_library_version().splitlines()[0])


# ---- calls -----------------------------------------------------------------------------------------------------------


class Case:
    """Calls of one operation on a tensor of so many bytes, whose contents depend on rank, place and turn."""

    def __init__(self, library: Any, op: str, nbytes: int) -> None:
        n = library.size
        self.library, self.op, self.turns = library, op, 0
        elems = max(n, nbytes // 4 // n * n)
        self.base = (np.arange(elems) % 89).astype(np.float32)
        self.send, self.recv = np.empty_like(self.base), np.empty_like(self.base)
        if op == "allreduce":
            self.due = n * self.base + np.float32(n * (n - 1) // 2)
            self.step = n
        else:
            part = self.base.reshape(n, -1)
            self.due = np.concatenate([part[library.rank] + 1000 * peer for peer in range(n)]).astype(np.float32)
            self.step = 1

    def call(self) -> tuple[float, int]:
        """Seconds, and how many elements were wrong."""
        rank, turn = self.library.rank, self.turns
        self.turns = (turn + 1) % 100
        if self.op == "allreduce":
            out = np.add(self.base, np.float32(rank + turn), out=self.send)
            begin = time.perf_counter()
            self.library.allreduce(out)
        else:
            out = self.recv
            np.add(self.base, np.float32(1000 * rank + turn), out=self.send)
            begin = time.perf_counter()
            self.library.alltoall(self.send, self.recv)
        took = time.perf_counter() - begin
        return took, int(np.count_nonzero(out - np.float32(self.step * turn) != self.due))


class Step:
    """A training step of a small transformer under DDP, and alone."""

    def __init__(self, library: Any, op: str) -> None:
        from ddp_step import make_model, stepper

        if not hasattr(library, "torch_group"):
            raise NotImplementedError(f"{library.name()} has no backend of torch")
        import torch
        from torch.nn.parallel import DistributedDataParallel

        torch.set_num_threads(1)
        model = make_model()
        if op == "ddp":
            model = DistributedDataParallel(model, process_group=library.torch_group())
        self.step = stepper(model, library.rank)

    def call(self) -> tuple[float, int]:
        begin = time.perf_counter()
        self.step()
        return time.perf_counter() - begin, 0


# ---- turns -----------------------------------------------------------------------------------------------------------


def possessions() -> dict[str, int]:
    """The memory and the descriptors of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"peak_kib": peak, "descriptors": len(list(Path("/proc/self/fd").iterdir()))}


def reach(host: str, port: int) -> socket.socket:
    """The driver may not be there yet."""
    until = time.monotonic() + TIMEOUT
    while True:
        try:
            return socket.create_connection((host, port), timeout=TIMEOUT)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def serve(make: Callable[[], Any], lines: TextIO) -> None:
    def say(**answer: Any) -> None:
        print(json.dumps(answer), file=lines, flush=True)

    try:
        library = make()
        say(rank=library.rank, size=library.size, library=library.name())
        cases: dict[str, Any] = {}
        for line in lines:
            op, nbytes, iterations = json.loads(line)
            key = f"{op} {nbytes}"
            if key not in cases:
                cases = {key: Step(library, op) if op in ("ddp", "alone") else Case(library, op, nbytes)}
            told = [cases[key].call() for _ in range(iterations)]
            say(seconds=[took for took, _ in told], wrong=sum(bad for _, bad in told), **possessions())
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")


CONTENDERS = {"a2a": A2a, "gloo": Gloo, "mpi": Mpi}


def main(name: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    with reach(host, int(port)) as control:
        control.settimeout(None)
        lines = control.makefile("rw")
        print(name, file=lines, flush=True)
        if lines.readline():  # all have come
            serve(CONTENDERS[name.partition("-")[0]], lines)


if __name__ == "__main__":
    main(*sys.argv[1:3])
