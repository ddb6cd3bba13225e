"""The sends and receives of torch.distributed, on a2a. Only the two ranks take part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from a2a import InvalidArgumentError
from a2a.adapting import refuse_message

from .._operations import c10d_operations as ops
from .._operations.work import Work
from .._process_group.communicators import communicator, is_torchs, rank_in
from .._untraced import untraced

__all__ = ["P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "send"]


def isend(
    tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> Work | None:
    """torch.distributed.isend: send ``tensor`` to rank ``dst``, a rank of torch's world, or ``group_dst``, one of the
    group. Returns a Work, and None on ranks that are not in the group."""
    comm, peer = _peer_in(group, tensor, True, dst, group_dst, tag)
    if comm is None:
        result: Work | None = dist.isend(tensor, dst, group, tag, group_dst)
        return result
    work: Work = ops.send(comm, tensor, peer, tag, True)
    return work


def irecv(
    tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> Work | None:
    """torch.distributed.irecv: receive ``tensor`` from rank ``src``, a rank of torch's world, or ``group_src``, one of
    the group; from any rank where neither is given. Returns a Work, and None on ranks that are not in the group."""
    comm, peer = _peer_in(group, tensor, False, src, group_src, tag)
    if comm is None:
        result: Work | None = dist.irecv(tensor, src, group, tag, group_src)
        return result
    work: Work = ops.recv(comm, tensor, peer, tag, True)
    return work


def send(tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None) -> None:
    """torch.distributed.send: isend() that returns when ``tensor`` may be written again. A rank cannot send to
    itself."""
    comm, peer = _peer_in(group, tensor, True, dst, group_dst, tag)
    if comm is None:
        dist.send(tensor, dst, group, tag, group_dst)
        return
    if peer == comm.rank:
        raise InvalidArgumentError(
            f"rank {peer}: destination rank should not be the same as the rank of the current process; use isend()"
        )
    ops.send(comm, tensor, peer, tag, False)


def recv(tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None) -> int:
    """torch.distributed.recv: irecv() that waits for ``tensor``. Returns the sender's rank in torch's world, or in the
    communicator; -1 on ranks that are not in the group."""
    comm, peer = _peer_in(group, tensor, False, src, group_src, tag)
    if comm is None:
        return int(dist.recv(tensor, src, group, tag, group_src))
    source = ops.recv(comm, tensor, peer, tag, False)
    return int(c10d.get_global_rank(_group(group), source) if is_torchs(comm, group) else source)


class P2POp(dist.P2POp):  # type: ignore[misc, unused-ignore]
    """torch.distributed.P2POp, whose ``op`` may also be isend or irecv of this module, and whose ``group`` a
    communicator."""

    def __new__(cls, op: Callable[..., Any], *_: Any, **__: Any) -> P2POp:
        if op not in (isend, irecv, dist.isend, dist.irecv):
            raise InvalidArgumentError(f"op is {op!r}; pass isend or irecv")
        made: P2POp = object.__new__(cls)
        return made

    def __init__(
        self, op: Callable[..., Any], tensor: Any, peer: int | None = None, group: Any = None, tag: int = 0,
        group_peer: int | None = None,
    ) -> None:  # fmt: skip
        self.op, self.tensor, self.group, self.tag = op, tensor, group, tag
        self.peer = peer
        self.group_peer = rank_in(communicator(group), group, "peer", peer, group_peer)


def batch_isend_irecv(p2p_op_list: list[Any]) -> list[Work]:
    """torch.distributed.batch_isend_irecv: start all of them, in any order, and return a Work of each. Where one is
    refused, the ranks of those behind it hear that they do not come."""
    works: list[Work | None] = []
    for one in p2p_op_list:
        if not isinstance(one, dist.P2POp):
            raise InvalidArgumentError("p2p_op_list has an entry that is no P2POp")
    for at, one in enumerate(p2p_op_list):
        try:
            if one.op in _SENDS:
                works.append(isend(one.tensor, group=one.group, tag=one.tag, group_dst=one.group_peer))
            else:
                works.append(irecv(one.tensor, group=one.group, tag=one.tag, group_src=one.group_peer))
        except BaseException as error:
            for other in p2p_op_list[at + 1 :]:
                comm = communicator(other.group)
                if comm is not None:
                    refuse_message(comm, error, other.group_peer, other.tag, sends=other.op in _SENDS)
            raise
    return [work for work in works if work is not None]


_SENDS = (isend, dist.isend)


def _peer_in(group: Any, tensor: Any, sends: bool, rank: int | None, group_rank: int | None, tag: int) -> Any:
    """Return (the communicator, the other rank there), that is None for any; no communicator where torch serves it."""
    comm, peer = communicator(group), None
    if comm is None:
        return None, None
    if sends or rank is not None or group_rank is not None:
        peer = rank_in(comm, group, "dst" if sends else "src", rank, group_rank)
    try:
        cuda = getattr(tensor, "is_cuda", False)
    except BaseException as error:  # of a child of torch.Tensor that answers questions itself
        raise refuse_message(comm, error, peer, tag, sends=sends) from None
    return (None, None) if cuda and is_torchs(comm, group) else (comm, peer)


def _group(group: Any) -> Any:
    return dist.group.WORLD if group is None else group


for _call in (batch_isend_irecv, irecv, isend, recv, send):
    untraced(_call)
