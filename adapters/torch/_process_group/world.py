"""Starts, divides and ends the world, as torch.distributed does."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import register_rendezvous_handler

import a2a
from a2a import Communicator
from a2a.launch import Launch

from . import communicators
from .addresses import addresses_of, reached_address, told_addresses

__all__ = [
    "destroy_process_group",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_initialized",
    "new_group",
]


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    *arguments: Any,
    **options: Any,
) -> None:
    """torch.distributed.init_process_group, which also finds the ranks that ``a2a run``, mpiexec, srun and
    paddle.distributed.launch start, as ``init_method="a2a://"`` does by name. With any backend the calls of this module
    run on a2a, and make its communicator at their first use; with "a2a" those of torch.distributed run on a2a, too."""
    given = init_method is not None or store is not None or rank != -1 or world_size != -1
    if not given and not _speaks_env(Launch.from_environ()):
        init_method = "a2a://"
    dist.init_process_group(backend, init_method, timeout, world_size, rank, store, *arguments, **options)


def _speaks_env(launch: Launch) -> bool:
    """Whether torch's own env:// finds these ranks: those of torchrun, and those under mpiexec for which a program has
    set the variables."""
    if launch.launcher in ("none", "torchrun"):
        return True
    by_mpiexec = launch.launcher in ("Open MPI", "MPICH", "Intel MPI")
    if not by_mpiexec or "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
        return False
    # The variables must not be those of a launcher around this one.
    return (os.environ.get("RANK"), os.environ.get("WORLD_SIZE")) == (str(launch.rank), str(launch.size))


def _rendezvous(_: str, **__: Any) -> Iterator[tuple[Any, int, int]]:
    """Make the store of a job whose launcher does not set env://'s variables: on rank 0, at an address that the ranks
    exchange."""
    with a2a.init() as comm:
        store = _store_on_rank_0(comm)
        rank, size = comm.rank, comm.size
    yield store, rank, size
    raise RuntimeError("a2a:// cannot meet again; make the process group anew")


def _store_on_rank_0(comm: Communicator) -> Any:
    connect = functools.partial(dist.TCPStore, world_size=comm.size, wait_for_workers=False)
    store = connect("127.0.0.1", 0, is_master=True) if comm.rank == 0 else None
    told = comm.allgather_bytes(told_addresses(store.port) if store else b"")[0]
    place = ("127.0.0.1", 0) if store else reached_address(told)
    # No rank goes on without the others: those would wait for it in torch, until their deadline.
    reached = comm.allgather_bytes(b"yes" if place else b"no")
    if place is None or b"no" in reached:
        lost = [rank for rank, said in enumerate(reached) if said == b"no"]
        raise a2a.UnsupportedError(
            f"init_process_group: ranks {lost} do not reach rank 0 at any of its addresses, "
            f"{', '.join(addresses_of(told)) or 'of which it has none'}; set MASTER_ADDR to one that they reach"
        )
    return store or connect(*place, is_master=False)


def is_initialized() -> bool:
    """Whether there is a default group: of torch, or the launcher's ranks without init_process_group()."""
    return bool(dist.is_initialized()) or communicators.has_own()


def get_rank(group: Any = None) -> int:
    """Return this process's rank in the group, -1 if it is no member. Without init_process_group() the launcher's
    rank."""
    comm = _ours(group)
    return int(dist.get_rank(group)) if comm is None else comm.rank


def get_world_size(group: Any = None) -> int:
    """Return the number of ranks in the group, -1 if this process is no member. Without init_process_group() that of
    the launcher's ranks."""
    comm = _ours(group)
    return int(dist.get_world_size(group)) if comm is None else comm.size


def new_group(ranks: list[int] | None = None, *arguments: Any, **options: Any) -> Any:
    """torch.distributed.new_group: collective over the default group. Returns the group, and
    GroupMember.NON_GROUP_MEMBER on ranks that are not in it. Without init_process_group() the group is an a2a
    communicator."""
    if dist.is_initialized():
        return dist.new_group(ranks, *arguments, **options)
    if arguments or options:
        warnings.warn("without init_process_group() a new group has no options of torch", RuntimeWarning, stacklevel=2)
    own = communicators.own()
    comm = own.group(list(range(own.size)) if ranks is None else sorted(ranks))
    return c10d.GroupMember.NON_GROUP_MEMBER if comm is None else comm


def destroy_process_group(group: Any = None) -> None:
    """torch.distributed.destroy_process_group, which also closes the communicator of the group; None: of all groups.
    Collective over the members."""
    communicators.forget(group)
    if dist.is_initialized() and not isinstance(group, Communicator):
        dist.destroy_process_group(group)


def _ours(group: Any) -> Communicator | None:
    if isinstance(group, Communicator):
        given: Communicator = group
        return given
    return communicators.own() if group is None and not dist.is_initialized() else None


# These functions get the signatures of the installed torch: they pass on arguments that they do not use.
for _ours_, _theirs in ((init_process_group, dist.init_process_group), (new_group, dist.new_group)):
    functools.update_wrapper(_ours_, _theirs, assigned=(), updated=())


def register() -> None:
    """Register ``init_method="a2a://"`` with torch.distributed, once."""
    try:
        register_rendezvous_handler("a2a", _rendezvous)
    except RuntimeError:
        pass  # it is registered, by an earlier import
