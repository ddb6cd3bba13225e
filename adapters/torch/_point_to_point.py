"""The sends and receives of torch.distributed, on a2a. Only the two ranks take part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from a2a import InvalidArgumentError

from . import _operations as ops
from ._groups import communicator, is_torchs, rank_in
from ._work import Work

__all__ = ["P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "send"]


def isend(
    tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> Work | None:
    """torch.distributed.isend: send ``tensor`` to rank ``dst``, a rank of torch's world, or ``group_dst``, one of the
    group. Returns a Work, and None on ranks that are not in the group."""
    comm = _served(group, tensor)
    if comm is None:
        result: Work | None = dist.isend(tensor, dst, group, tag, group_dst)
        return result
    work: Work = ops.send(comm, tensor, rank_in(comm, group, "dst", dst, group_dst), tag, True)
    return work


def irecv(
    tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> Work | None:
    """torch.distributed.irecv: receive ``tensor`` from rank ``src``, a rank of torch's world, or ``group_src``, one of
    the group; from any rank where neither is given. Returns a Work, and None on ranks that are not in the group."""
    comm = _served(group, tensor)
    if comm is None:
        result: Work | None = dist.irecv(tensor, src, group, tag, group_src)
        return result
    work: Work = ops.recv(comm, tensor, _source(comm, group, src, group_src), tag, True)
    return work


def send(tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None) -> None:
    """torch.distributed.send: isend() that returns when ``tensor`` may be written again. A rank cannot send to
    itself."""
    comm = _served(group, tensor)
    if comm is None:
        dist.send(tensor, dst, group, tag, group_dst)
        return
    peer = rank_in(comm, group, "dst", dst, group_dst)
    if peer == comm.rank:
        raise InvalidArgumentError(
            f"rank {peer}: destination rank should not be the same as the rank of the current process; use isend()"
        )
    ops.send(comm, tensor, peer, tag, False)


def recv(tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None) -> int:
    """torch.distributed.recv: irecv() that waits for ``tensor``. Returns the sender's rank in torch's world, or in the
    communicator; -1 on ranks that are not in the group."""
    comm = _served(group, tensor)
    if comm is None:
        return int(dist.recv(tensor, src, group, tag, group_src))
    source = ops.recv(comm, tensor, _source(comm, group, src, group_src), tag, False)
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
    """torch.distributed.batch_isend_irecv: start all of them, in any order, and return a Work of each."""
    kinds = {dist.isend: isend, dist.irecv: irecv}
    works: list[Work | None] = []
    for one in p2p_op_list:
        if not isinstance(one, dist.P2POp):
            raise InvalidArgumentError("p2p_op_list has an entry that is no P2POp")
        begin = kinds.get(one.op, one.op)
        at = "group_dst" if begin is isend else "group_src"
        works.append(begin(one.tensor, group=one.group, tag=one.tag, **{at: one.group_peer}))
    return [work for work in works if work is not None]


def _served(group: Any, tensor: Any) -> Any:
    comm = communicator(group)
    return None if getattr(tensor, "is_cuda", False) and is_torchs(comm, group) else comm


def _source(comm: Any, group: Any, src: int | None, group_src: int | None) -> int | None:
    return None if src is None and group_src is None else rank_in(comm, group, "src", src, group_src)


def _group(group: Any) -> Any:
    return dist.group.WORLD if group is None else group
