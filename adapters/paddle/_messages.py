"""``send`` and ``recv``: messages between two ranks. No other rank takes part."""

from __future__ import annotations

from typing import Any

import a2a

from ._arguments import plain
from ._collectives import require_call
from ._groups import rank_in_group
from ._task import Task


def send(comm: a2a.Communicator, group: Any, tensor: Any, dst: Any, sync_op: bool, use_calc_stream: bool) -> Task:
    peer = rank_in_group(dst, "dst", group, comm)
    try:
        require_call(sync_op, use_calc_stream)
        given = plain(tensor, "tensor")
    except a2a.InvalidArgumentError as error:
        raise _told(comm, comm.send, peer, error) from None
    return Task(comm, comm.send(given, peer, async_op=not sync_op))


def recv(comm: a2a.Communicator, group: Any, tensor: Any, src: Any, sync_op: bool, use_calc_stream: bool) -> Task:
    peer = rank_in_group(src, "src", group, comm)
    try:
        require_call(sync_op, use_calc_stream)
        output = plain(tensor, "tensor")
    except a2a.InvalidArgumentError as error:
        raise _told(comm, comm.recv, peer, error) from None
    if not sync_op:
        return Task(comm, comm.recv(output, peer, async_op=True))
    comm.recv(output, peer)
    return Task(comm, None)


def _told(comm: a2a.Communicator, call: Any, peer: int, error: a2a.Error) -> a2a.Error:
    """Return the error, after the core has told it to the peer: the call gets a tensor that fails with it."""
    try:
        call(Refused(error), peer)
    except a2a.Error:
        pass  # the same reason in a longer message
    error.args = (f"rank {comm.rank}: {error}",)
    return error


class Refused:
    """A stand-in for a refused tensor, which raises its error."""

    __module__ = "a2a.paddle"

    def __init__(self, error: a2a.Error) -> None:
        self._error = error

    def __dlpack_device__(self) -> tuple[int, int]:
        raise self._error

    def __dlpack__(self, **_: Any) -> Any:
        raise self._error
