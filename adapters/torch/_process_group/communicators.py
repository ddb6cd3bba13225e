"""Finds the communicator that serves a ``group`` argument."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

import a2a
from a2a import Communicator
from a2a.adapting import refuse

from .._errors import ArgumentTypeError
from .._untraced import untraced
from .store_bootstrap import meet

__all__ = [
    "adopt",
    "adopt_again",
    "backend_of",
    "by_name",
    "communicator",
    "drop",
    "forget",
    "is_own",
    "is_torchs",
    "let_go",
    "name_of",
    "own",
    "place_in",
    "rank_in",
    "serving",
    "timeout_of",
]

_world = c10d._world
# id of a process group -> its communicator; None while it has no members. A WeakKeyDictionary would be slow compared
# with an exchange, so an entry is dropped when its group is gone.
_comms: dict[int, Communicator | None] = {}
_named: weakref.WeakValueDictionary[str, Communicator] = weakref.WeakValueDictionary()
_own: Communicator | None = None
_MISSING: Any = object()


@untraced
def communicator(group: Any) -> Communicator | None:
    """Return the communicator of a ``group`` argument: an a2a communicator itself; for a torch process group one made
    at first use, collectively; for None that of torch's default group, or without one that of the launcher's ranks.

    None means that torch itself serves the call: this process is not a member, or the group has none yet."""
    if isinstance(group, Communicator):
        given: Communicator = group
        return given
    if group is None:
        group = _world.default_pg
        if group is None:
            return own()
    found = _comms.get(id(group), _MISSING)
    return _connect(group) if found is _MISSING else found


def own() -> Communicator:
    """Return the communicator of a program that has not called init_process_group()."""
    global _own
    if _own is None or _own.closed:
        _own = a2a.init()
    return _own


def is_own(comm: Any) -> bool:
    """Whether the communicator is that of a program that has not called init_process_group()."""
    return comm is _own


def is_torchs(comm: Any, group: Any) -> bool:
    """Whether the group that the communicator serves is one of torch, which has NCCL of its own."""
    return comm is not group and not is_own(comm)


def serving(group: Any, tensor: Any) -> Communicator | None:
    """Return communicator(), but None also for a CUDA tensor, or a list of them, in a group of torch."""
    try:
        if isinstance(tensor, list):
            cuda = any([getattr(one, "is_cuda", False) for one in tensor])
        else:
            cuda = getattr(tensor, "is_cuda", False)
    except BaseException as error:  # of a child of torch.Tensor that answers questions itself
        comm = communicator(group)
        raise (error if comm is None else refuse(comm, error)) from None
    # Such a group needs no communicator of a2a, and so between hosts no secret.
    if cuda and isinstance(_world.default_pg if group is None else group, c10d.ProcessGroup):
        return None
    return communicator(group)


def place_in(group: Any) -> tuple[int, int]:
    """Return this rank in a ``group`` argument, and the number of ranks."""
    if group is None:
        group = _world.default_pg or own()
    return (group.rank, group.size) if isinstance(group, Communicator) else (group.rank(), group.size())


def rank_in(comm: Any, group: Any, name: str, rank: Any, group_rank: Any, default: int | None = None) -> int:
    """Return the rank of the communicator for ``name``, a rank of the world, or ``group_name``, a rank of the group.
    Raises InvalidArgumentError, also if both are given, or neither and there is no default."""
    if rank is None and group_rank is None:
        rank = default
    if (rank is None) == (group_rank is None):
        raise a2a.InvalidArgumentError(f"{name}={rank} and group_{name}={group_rank}; pass one of them")
    if not hasattr(group_rank if rank is None else rank, "__index__"):
        raise ArgumentTypeError(f"{name}={rank} and group_{name}={group_rank}; pass the number of a rank")
    if rank is None or not is_torchs(comm, group):
        return int(group_rank if rank is None else rank)
    try:
        return int(c10d.get_group_rank(_world.default_pg if group is None else group, rank))
    except ValueError as error:
        raise a2a.InvalidArgumentError(f"{name}={rank}: {error}") from None


def has_own() -> bool:
    """Whether own() has been called and the communicator not destroyed since."""
    return _own is not None and not _own.closed


def _connect(group: Any) -> Communicator | None:
    if group == c10d.GroupMember.NON_GROUP_MEMBER:
        return None
    if not isinstance(group, c10d.ProcessGroup):
        kind = type(group)
        raise ArgumentTypeError(
            f"group is {kind.__module__}.{kind.__qualname__}; pass an a2a.Communicator, a torch process group or None"
        )
    if (backend := backend_of(group)) is not None:
        adopt(group, backend.comm)
        return backend.comm  # type: ignore[no-any-return]
    if group not in _world.pg_map:
        raise a2a.InvalidArgumentError(f"group {group!r} is not one of torch.distributed, or was destroyed")
    store = _world.pg_map[group][1]
    if store is None:
        raise a2a.UnsupportedError(f"process group {group.group_name!r} has no store through which its ranks can meet")
    comm = meet(store, group.group_name, group.rank(), group.size(), timeout_of(group))
    adopt(group, comm)
    return comm


def backend_of(group: Any) -> Any:
    """Return what serves the host tensors of a group as its backend "a2a", a backend or the group itself; None if
    nothing does, or it is closed."""
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:
        return None
    return backend if getattr(backend, "comm", None) is not None and not backend.comm.closed else None


def timeout_of(group: Any) -> float:
    """Return the seconds that an operation of a process group may take."""
    try:
        return float(group._get_backend(torch.device("cpu")).options._timeout.total_seconds())
    except (RuntimeError, AttributeError):
        return float(c10d.default_pg_timeout.total_seconds())


def adopt(group: Any, comm: Communicator | None) -> None:
    """Serve a process group by this communicator until the group is gone."""
    _comms[id(group)] = comm
    weakref.finalize(group, _comms.pop, id(group), None).atexit = False


def adopt_again(group: Any, comm: Communicator) -> None:
    """Serve a group that was adopted before by another communicator."""
    _comms[id(group)] = comm


def forget(group: Any) -> None:
    """Close the communicator of a group. Collective over its members. None: all communicators."""
    global _own
    if isinstance(group, Communicator):
        let_go(group)
    elif group is not None:
        let_go(_comms.get(id(group)))
        _comms.pop(id(group), None)
    else:
        for key in sorted(_comms, key=_order_of):
            let_go(_comms.pop(key))
        let_go(_own)
        _own = None


def drop(comm: Communicator) -> None:
    """Close a communicator, and serve no group by it any longer. Collective over its members."""
    for key in [key for key, one in _comms.items() if one is comm]:
        _comms.pop(key)
    let_go(comm)


def _order_of(key: int) -> str:
    """A sort key that is the same on all ranks, because closing is collective."""
    return next((name for group, name in _world.pg_names.items() if id(group) == key), "")


def let_go(comm: Communicator | None) -> None:
    """Close collectively. A rank that is gone is no error: it needs nothing from this one. Nor is one that is in
    another operation: it raises MismatchError there, and this rank leaves, often with an exception on the way."""
    if comm is None:
        return
    try:
        comm.close()
    except (a2a.PeerLostError, a2a.AbortedError, a2a.TimeoutError, a2a.MismatchError):
        pass


def name_of(group: Any) -> str:
    """Return a text that identifies a ``group`` argument in a compiled graph."""
    if group is None:
        return ""
    return str(_name(group) if isinstance(group, Communicator) else group.group_name)


def _register(comm: Communicator) -> str:
    name = f"a2a communicator {id(comm)}"
    _named[name] = comm
    return name


# The effect of torch.compiler.assume_constant_result(): a traced program gets the name as a constant. That function
# itself is slow to import.
_name: Any = _register
_name._dynamo_marked_constant = True


def by_name(name: str) -> Any:
    """Return the ``group`` argument for which name_of() made the name."""
    if not name:
        return None
    return _named[name] if name in _named else c10d._resolve_process_group(name)
