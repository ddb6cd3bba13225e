"""Several messages that start together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle.distributed as _paddle

import a2a
from a2a.adapting import refuse_message

from . import _messages
from ._device import is_paddles, original
from ._errors import CallError
from ._functions import irecv, isend
from ._groups import for_members, get_communicator, rank_in_group
from ._task import Task

_SENDS, _RECVS = (isend, _paddle.isend), (irecv, _paddle.irecv)


class P2POp(_paddle.P2POp):  # type: ignore[misc, unused-ignore]
    """One message of ``batch_isend_irecv``: ``op`` is isend or irecv, ``peer`` the rank that receives or sends the
    tensor."""

    def __init__(self, op: Callable[..., Any], tensor: Any, peer: int, group: Any = None) -> None:
        if op not in _SENDS and op not in _RECVS:
            raise CallError(
                "Invalid ``op`` function. Expected ``op`` to be of type ``paddle.distributed.isend`` or "
                "``paddle.distributed.irecv``."
            )
        if group is None and _paddle.is_initialized():
            group = _paddle.get_group()
        self.op, self.tensor, self.peer, self.group = op, tensor, peer, group


def batch_isend_irecv(p2p_op_list: list[Any]) -> list[Task] | None:
    """Start the messages of the list, whose entries are P2POp, and return their tasks in the same order. Messages
    between two ranks in one direction arrive in the order of the lists of both. Returns None, with a warning, on a rank
    that is not in the group of the first entry."""
    ops = p2p_op_list
    if not isinstance(ops, list) or not ops or not all(isinstance(op, _paddle.P2POp) for op in ops):
        raise CallError("Invalid ``p2p_op_list``. Each op is expected to to be of type ``paddle.distributed.P2POp``.")
    if is_paddles([*(op.tensor for op in ops), *(op.group for op in ops)]):
        theirs: list[Task] | None = original(_paddle, "batch_isend_irecv")(ops)
        return theirs
    return for_members(ops[0].group, _batch_isend_irecv, ops)


def _batch_isend_irecv(_: a2a.Communicator, ops: list[Any]) -> list[Task]:
    tasks = []
    for at, op in enumerate(ops):
        comm = get_communicator(op.group)
        if comm is None:
            continue
        call = _messages.send if op.op in _SENDS else _messages.recv
        try:
            tasks.append(call(comm, op.group, op.tensor, op.peer, False, False))
        except BaseException as error:
            for other in ops[at + 1 :]:
                _refuse(other, error)
            raise
    return tasks


def _refuse(op: Any, error: BaseException) -> None:
    """Tell the other rank of a message that it does not come."""
    comm = get_communicator(op.group)
    if comm is not None:
        refuse_message(comm, error, rank_in_group(op.peer, "peer", op.group, comm), sends=op.op in _SENDS)
