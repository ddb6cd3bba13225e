"""What ranks do in test_adopt.py: operations of a2a over a communicator that the program has made."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cudart
import gpu_ranks

import a2a
from a2a._core import library_of

Comm = a2a.Communicator
Own = tuple[int, Callable[[], None]]
"""The address of an ncclComm_t, and what uses it as the program would: it looks at the result."""


def adopt(comm: Comm, whose: str, store: str) -> str:
    """A2a's operations and the program's take turns, and the program's go on after ``close()``. Returns why it cannot
    be tried here, if so."""
    gpu_ranks.place(comm, gpu_ranks.DRIVER)
    try:
        with MADE_BY[whose](comm, store) as (address, use):
            made: Any = comm.split(0)
            made.adopt(address, "cuda")
            x = gpu_ranks.Exchange(made, gpu_ranks.DRIVER)
            for how in ("call", "async", "call"):
                use()
                x.poison()
                x.run(how)
                x.check()
            made.close()
            use()
    except Unavailable as error:
        return str(error)
    return ""


class Unavailable(Exception):
    """On all ranks alike."""


@contextmanager
def _by_hand(comm: Comm, store: str) -> Iterator[Own]:
    address = cudart.new_communicator(comm)

    def use() -> None:
        size = ctypes.c_int()
        cudart.require(cudart.nccl().ncclCommCount(ctypes.c_void_p(address), ctypes.byref(size)))
        assert size.value == comm.size

    yield address, use
    cudart.require(cudart.nccl().ncclCommDestroy(ctypes.c_void_p(address)))


@contextmanager
def _of_torch(comm: Comm, store: str) -> Iterator[Own]:
    import torch
    import torch.distributed as dist

    if ".".join(map(str, torch.cuda.nccl.version())) != library_of("nccl").split()[1]:
        raise Unavailable("a2a and Torch have NCCLs of their own")

    def use() -> None:
        one = torch.ones(1, device="cuda")
        dist.all_reduce(one)
        assert one.item() == comm.size

    dist.init_process_group("nccl", init_method=f"file://{store}", rank=comm.rank, world_size=comm.size)
    try:
        try:
            use()
        except dist.DistBackendError as error:
            raise Unavailable(str(error)) from error
        yield dist.group.WORLD._get_backend(torch.device("cuda"))._comm_ptr(), use
    finally:
        dist.destroy_process_group()


@contextmanager
def _of_cupy(comm: Comm, store: str) -> Iterator[Own]:
    try:
        import cupy
        from cupy.cuda import nccl
    except ImportError as error:
        raise Unavailable(str(error)) from error
    if not getattr(nccl, "available", True) or nccl.get_version() != _number(library_of("nccl").split()[1]):
        raise Unavailable("CuPy has no NCCL, or one of its own")
    root = nccl.get_unique_id() if comm.rank == 0 else None
    own = nccl.NcclCommunicator(comm.size, _broadcast(comm, root), comm.rank)

    def use() -> None:
        one = cupy.ones(1, cupy.float32)
        own.allReduce(one.data.ptr, one.data.ptr, 1, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, cupy.cuda.Stream.null.ptr)
        assert float(one[0]) == comm.size

    yield own.comm, use
    own.destroy()


MADE_BY = {"hand": _by_hand, "torch": _of_torch, "cupy": _of_cupy}


def _broadcast(comm: Comm, root: Any) -> Any:
    """Rank 0's object."""
    return pickle.loads(comm.allgather_bytes(pickle.dumps(root))[0])


def _number(version: str) -> int:
    major, minor, patch = map(int, version.split("."))
    return major * 10000 + minor * 100 + patch
