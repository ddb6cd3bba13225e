"""What a rank of the pool keeps between tests: torch's world, whose default group is Gloo, and groups of every size on
Gloo and on a2a. Nothing here imports torch before a rank wants it."""

from __future__ import annotations

import functools
import warnings
from datetime import timedelta
from types import ModuleType
from typing import Any

import a2a

RANKS = 8
SECONDS = 30  # of one operation

# How a case reaches the library: our functions on a torch group, our functions on a communicator, torch's own functions
# on the backend "a2a"; and those on Gloo, for comparison.
WAYS = ("functions", "communicator", "backend")


@functools.cache
def start(comm: a2a.Communicator) -> None:
    """Collective over the pool, once."""
    import a2a.torch  # noqa: F401, makes the backend known
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore", FutureWarning)  # the old names, which programs use
    torch.set_num_threads(1)
    store = meeting_point(comm)
    dist.init_process_group(
        "gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=timedelta(seconds=SECONDS)
    )


def meeting_point(comm: a2a.Communicator) -> Any:
    """A new store of all ranks."""
    import torch.distributed as dist

    if comm.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, comm.size, is_master=True, wait_for_workers=False)
        comm.allgather_bytes(str(store.port).encode())
        return store
    port = int(comm.allgather_bytes(b"")[0])
    return dist.TCPStore("127.0.0.1", port, comm.size, is_master=False, wait_for_workers=False)


@functools.cache
def group(comm: a2a.Communicator, way: str, size: int, salt: str = "", seconds: float = SECONDS) -> Any:
    """The group of the first ``size`` ranks, for a way to reach it; another one with another ``salt``. Collective over
    the pool."""
    import torch.distributed as dist

    start(comm)
    if way == "communicator":
        return comm.group(range(size))
    backend = "a2a" if way == "backend" else "gloo"
    return dist.new_group(list(range(size)), backend=backend, timeout=timedelta(seconds=seconds))


def true_backends() -> bool:
    """Whether the backend "a2a" is one among those of a group of torch, and not the group itself."""
    from a2a.torch._backend.registration import TRUE_BACKENDS

    return TRUE_BACKENDS


def comm_of(at: Any) -> Any:
    """The communicator of a group whose backend is "a2a"; also a closed one."""
    return at._get_backend(cpu()).comm


def cpu() -> Any:
    import torch

    return torch.device("cpu")


def calls(way: str) -> ModuleType:
    """The module whose functions are called."""
    import a2a.torch
    import torch.distributed

    return a2a.torch if way in ("functions", "communicator") else torch.distributed
