"""``send`` and ``recv``: messages between two ranks. No other rank takes part."""

from __future__ import annotations

from typing import Any

import a2a
from a2a.adapting import refuse_message

from ._arguments import plain
from ._collectives import require_call
from ._groups import rank_in_group
from ._task import Task


def send(comm: a2a.Communicator, group: Any, tensor: Any, dst: Any, sync_op: bool, use_calc_stream: bool) -> Task:
    peer = rank_in_group(dst, "dst", group, comm)
    try:
        require_call(sync_op, use_calc_stream)
        given = plain(tensor, "tensor")
    except BaseException as error:
        raise refuse_message(comm, error, peer, sends=True) from None
    return Task(comm, comm.send(given, peer, async_op=not sync_op))


def recv(comm: a2a.Communicator, group: Any, tensor: Any, src: Any, sync_op: bool, use_calc_stream: bool) -> Task:
    peer = rank_in_group(src, "src", group, comm)
    try:
        require_call(sync_op, use_calc_stream)
        output = plain(tensor, "tensor")
    except BaseException as error:
        raise refuse_message(comm, error, peer, sends=False) from None
    if not sync_op:
        return Task(comm, comm.recv(output, peer, async_op=True))
    comm.recv(output, peer)
    return Task(comm, None)
