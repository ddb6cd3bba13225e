"""The libraries behind one small interface, each used as its documents say: NumPy arrays, counts in elements."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

OPERATION_SECONDS = 3.0
Counts = Sequence[int]


class NotExpressible(Exception):
    """The library's interface has no words for this fault."""


class A2A:
    """This package."""

    def __init__(self) -> None:
        import a2a

        self.comm = a2a.init(timeout=OPERATION_SECONDS)
        self.rank, self.size = self.comm.rank, self.comm.size

    def alltoallv(self, send: Any, counts: Counts, recv: Any, recv_counts: Counts, *displs: Counts) -> None:
        self.comm.alltoallv(send, counts, recv, recv_counts, *displs)

    def allgather(self, send: Any, recv: Any) -> None:
        self.comm.allgather(send, recv)

    def start(self, send: Any, counts: Counts, recv: Any, recv_counts: Counts) -> Callable[[], Any]:
        work = self.comm.alltoallv(send, counts, recv, recv_counts, async_op=True)
        assert work is not None
        return work.wait

    def barrier(self) -> None:
        self.comm.barrier()

    def close(self) -> None:
        self.comm.close()


class Gloo:
    """torch.distributed on the CPU."""

    def __init__(self) -> None:
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        dist.init_process_group("gloo", timeout=timedelta(seconds=OPERATION_SECONDS))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def alltoallv(self, send: Any, counts: Counts, recv: Any, recv_counts: Counts, *displs: Counts) -> None:
        if displs:
            raise NotExpressible("no displacements")
        tensors = self.torch.from_numpy(recv), self.torch.from_numpy(send)
        self.dist.all_to_all_single(*tensors, list(recv_counts), list(counts))

    def allgather(self, send: Any, recv: Any) -> None:
        self.dist.all_gather_into_tensor(self.torch.from_numpy(recv), self.torch.from_numpy(send))

    def start(self, send: Any, counts: Counts, recv: Any, recv_counts: Counts) -> Callable[[], Any]:
        tensors = self.torch.from_numpy(recv), self.torch.from_numpy(send)
        work = self.dist.all_to_all_single(*tensors, list(recv_counts), list(counts), async_op=True)
        return work.wait

    def barrier(self) -> None:
        self.dist.barrier()

    def close(self) -> None:
        self.dist.destroy_process_group()


class Mpi:
    """mpi4py, with whichever MPI it was built for. Errors are exceptions, which is its default."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()

    @staticmethod
    def _message(array: Any, counts: Counts, displs: Counts | None) -> list[Any]:
        from mpi4py import MPI

        packed = [int(np.sum(counts[:i])) for i in range(len(counts))] if displs is None else list(displs)
        datatype = {"f": MPI.FLOAT, "d": MPI.DOUBLE, "i": MPI.INT32_T, "l": MPI.INT64_T}[array.dtype.char]
        return [array, list(counts), packed, datatype]

    def alltoallv(self, send: Any, counts: Counts, recv: Any, recv_counts: Counts, *displs: Counts) -> None:
        send_displs, recv_displs = displs or (None, None)
        self.comm.Alltoallv(self._message(send, counts, send_displs), self._message(recv, recv_counts, recv_displs))

    def allgather(self, send: Any, recv: Any) -> None:
        self.comm.Allgather(send, recv)

    def start(self, send: Any, counts: Counts, recv: Any, recv_counts: Counts) -> Callable[[], Any]:
        work = self.comm.Ialltoallv(self._message(send, counts, None), self._message(recv, recv_counts, None))
        return lambda: work.Wait()

    def barrier(self) -> None:
        self.comm.Barrier()

    def close(self) -> None:
        pass  # at exit


def join(library: str) -> Any:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return {"a2a": A2A, "gloo": Gloo, "openmpi": Mpi, "mpich": Mpi}[library]()
