"""Finds the communicator that serves a call, and makes the ranks of a Paddle group meet.

A group's communicator is made when its members first use it. On one host they meet by a name that all of them derive
from the launcher's name of the job, the group's id and its ranks. So neither the other ranks of the job nor Paddle's
private store are needed, and groups that Paddle itself makes (such as those of ``fleet``) work as well. Ranks on
several hosts meet in Paddle's store (``_hosts``)."""

from __future__ import annotations

import hashlib
import operator
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import paddle
import paddle.distributed
from paddle.base import core

import a2a
from a2a.adapting import refuse
from a2a.launch import Launch, mark_as_rank

from ._device import original
from ._errors import ArgumentTypeError, CallError
from ._hosts import meet_between, reachable_address, several_hosts
from ._profiler import recorded

_T = TypeVar("_T")

# (group id, its ranks in the job) -> its communicator. A Group that a program constructs finds it, too.
_communicators: dict[tuple[int, tuple[int, ...]], a2a.Communicator] = {}
_world: a2a.Communicator | None = None
# Kept from the first communicator on, because the variables that init_parallel_env() sets could describe another job.
_launched: Launch | None = None


def get_communicator(group: Any = None) -> a2a.Communicator | None:
    """Return the communicator of ``group``: an a2a communicator itself, that of a Paddle group, or that of all ranks
    for None. None when this rank is no member. The first call for a group blocks until its members have called it."""
    if isinstance(group, a2a.Communicator):
        found: a2a.Communicator | None = group
        return found
    if group is None:
        return world()
    if not isinstance(group, paddle.distributed.communication.group.Group):
        raise ArgumentTypeError(
            f"group must be a Group of Paddle, an a2a.Communicator or None, but is {type(group).__name__}"
        )
    ranks = tuple(group.ranks)
    found = _communicators.get((group.id, ranks))
    if found is None and get_rank() in ranks:
        found = _meet(group.id, ranks)
    return found


def for_members(group: Any, call: Callable[..., _T], *arguments: Any) -> _T | None:
    """Return ``call(comm, *arguments)``; None, with Paddle's warning, on a rank that is no member. Requires a caller
    that or_paddles() wraps, so that the warning names the line of the program."""
    comm = get_communicator(group)
    if comm is None:
        warnings.warn(f"Current global rank {get_rank()} is not in group {group.name}", stacklevel=4)
        return None
    return recorded(call, comm, *arguments)


def require_member(group: Any) -> a2a.Communicator:
    """Return the communicator of a call that Paddle refuses on a rank that is no member."""
    comm = get_communicator(group)
    if comm is None:
        raise CallError(
            "The group should not be None and all ranks which invoke this operation should be the member of this group."
        )
    return comm


def rank_in_group(rank: Any, name: str, group: Any, comm: a2a.Communicator) -> int:
    """Return the number in the group of a rank that Paddle's calls give by its number in the job. On an a2a
    communicator both are the same."""
    try:
        number = operator.index(rank)
    except TypeError:
        raise ArgumentTypeError(f"{name} is {rank!r}; pass the number of a rank") from None
    ranks = range(comm.size) if group is None or group is comm else list(group.ranks)
    if number not in ranks:
        raise a2a.InvalidArgumentError(f"{name} is {number}, but the ranks of the group are {list(ranks)}")
    return ranks.index(number)


def world() -> a2a.Communicator:
    """Return the communicator of all ranks. Raises RuntimeError, as Paddle does, before init_parallel_env()."""
    global _world
    if _world is None:
        if not paddle.distributed.is_initialized():
            raise CallError("The global group is not initialized. Call init_parallel_env() first")
        _world = _meet_all()  # fleet.init() or Paddle's own init_parallel_env() was called
    return _world


def init_parallel_env(nccl_config: Any = None) -> Any:
    """Collective: makes the communicator of all ranks, then Paddle's own environment, so that every other call of
    paddle.distributed works as well. Returns Paddle's group of all ranks; None for a single rank, where Paddle has no
    groups and the calls of this package copy.

    Rank and size come from paddle.distributed.launch, ``a2a run``, torchrun, mpiexec or srun. Under the others the
    PADDLE_* variables are set here, with gloo as backend unless PADDLE_DISTRI_BACKEND names another. A second call has
    no effect."""
    launch = _launch()
    prepare_environment()
    if launch.size == 1:
        return None
    with _without_master_of_others(launch):
        return original(paddle.distributed, "init_parallel_env")(nccl_config)


def prepare_environment() -> None:
    """Collective: makes the communicator of all ranks, and sets the variables that Paddle reads where another launcher
    than Paddle's has started the ranks. A second call has no effect."""
    global _world
    launch = _launch()
    if _world is None:
        _world = _meet_all()
        if launch.size > 1 and launch.launcher != "paddle.distributed.launch":
            _export_environment(_world, launch)


def destroy_process_group(group: Any = None) -> None:
    """Close the communicator of a Paddle group, or with None those of all groups, and then destroy the group as Paddle
    does. The program itself closes a communicator that it made."""
    global _world
    if isinstance(group, a2a.Communicator):
        return
    if group is None or group.id == 0:
        _communicators.clear()
        _world = None
    else:
        _communicators.pop((group.id, tuple(group.ranks)), None)
    if paddle.distributed.is_initialized():
        paddle.distributed.destroy_process_group(group)


def new_group(ranks: Sequence[int] | None = None, *args: Any, **kwargs: Any) -> Any:
    """paddle.distributed.new_group(ranks=None, backend=None, timeout=..., ...): a Paddle group, which every rank makes.
    Unlike in Paddle a group of one rank has a member: its calls copy."""
    if ranks is None:
        ranks = range(_launch().size)
    ranks, theirs = sorted(ranks), original(paddle.distributed, "new_group")
    if len(ranks) == 1 or not paddle.distributed.is_initialized():
        return theirs(ranks, *args, **kwargs)
    with _store_of_its_own(ranks):
        return theirs(ranks, *args, **kwargs)


def get_rank(group: Any = None) -> int:
    """Return this rank's number in the group: a Paddle group, an a2a communicator, or with None the whole job. -1 for a
    rank that is no member."""
    if isinstance(group, a2a.Communicator):
        return int(group.rank)
    rank = _launch().rank
    if group is None:
        return rank
    return list(group.ranks).index(rank) if rank in group.ranks else -1


def get_world_size(group: Any = None) -> int:
    """Return the number of ranks of the group: a Paddle group, an a2a communicator, or with None the whole job. -1 for
    a rank that is no member."""
    if isinstance(group, a2a.Communicator):
        return int(group.size)
    if group is None:
        return _launch().size
    return len(group.ranks) if _launch().rank in group.ranks else -1


def barrier(group: Any = None) -> None:
    """Block until every member has called it. Without effect on other ranks."""
    comm = get_communicator(group)
    if comm is not None:
        comm.barrier()


def _launch() -> Launch:
    return _launched or Launch.from_environ()


def _meet_all() -> a2a.Communicator:
    ranks = tuple(range(_launch().size))
    return _communicators.get((0, ranks)) or _meet(0, ranks)


def _meet(group_id: int, ranks: tuple[int, ...]) -> a2a.Communicator:
    """Block until all members have called it. Operations have the deadline of Paddle's own."""
    global _launched
    launch = _launched = _launch()
    timeout = paddle.distributed.ParallelEnv().pg_timeout / 1000
    if len(ranks) == 1:
        made = a2a.init(0, 1, timeout=timeout)
    elif several_hosts(launch):
        made = meet_between(launch, group_id, ranks, timeout)
    else:
        name = f"{launch.named_job()}/paddle/{group_id}/{ranks}"
        job = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        mark_as_rank()
        made = a2a.init(ranks.index(launch.rank), len(ranks), job=job, timeout=timeout)
    _communicators[group_id, ranks] = made
    return made


def _export_environment(comm: a2a.Communicator, launch: Launch) -> None:
    """Set the variables of Paddle's launcher. Paddle makes its store on a port that is free now."""
    own = f"{reachable_address(comm, launch)}:{_free_port()}"
    endpoints = [text.decode() for text in comm.allgather_bytes(own.encode())]
    os.environ.update(
        PADDLE_TRAINER_ID=str(comm.rank),
        PADDLE_TRAINERS_NUM=str(comm.size),
        PADDLE_RANK_IN_NODE=str(launch.local_rank),
        PADDLE_MASTER=endpoints[0],
        PADDLE_CURRENT_ENDPOINT=endpoints[comm.rank],
        PADDLE_TRAINER_ENDPOINTS=",".join(endpoints),
    )
    os.environ.setdefault("PADDLE_DISTRI_BACKEND", "gloo")
    mark_as_rank()


@contextmanager
def _store_of_its_own(ranks: Sequence[int]) -> Iterator[None]:
    """Collective. Give a group a store of its own: in the store that Paddle 3.3.1 shares among its Gloo groups, members
    may find addresses of an earlier group, and then hang."""
    comm, leader = world(), ranks[0]
    collective, store = paddle.distributed.collective, None
    timeout = int(comm.timeout)
    host, port = reachable_address(comm, _launch()), 0
    try:
        if comm.rank == leader:
            port = _free_port()
            store = core.TCPStore(host, port, True, 1, timeout)
    except BaseException as error:
        refuse(comm, error)
        raise
    told = comm.allgather_bytes(f"{host}:{port}".encode() if store else b"")[leader].decode()
    if store is None and comm.rank in ranks:
        host, _, number = told.rpartition(":")
        store = core.TCPStore(host, int(number), False, 1, timeout)
    kept = collective._default_store
    collective._default_store = store or kept
    try:
        yield
    finally:
        collective._default_store = kept


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


@contextmanager
def _without_master_of_others(launch: Launch) -> Iterator[None]:
    """Hide MASTER_ADDR and MASTER_PORT under torchrun, where they lead to Torch's store: Paddle would prefer them to
    its own."""
    names = () if launch.launcher == "paddle.distributed.launch" else ("MASTER_ADDR", "MASTER_PORT")
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
