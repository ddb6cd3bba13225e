"""Messages between the process that runs the tests and its ranks: one packet for each. What does not fit into a packet
stays in a file of memory, so a rank that dies sends all of a message or nothing, and never waits for its reader."""

from __future__ import annotations

import array
import mmap
import os
import pickle
import select
import socket
from collections.abc import Iterable, Sequence
from typing import Any

from ..._descriptors import above_standard

__all__ = ["Channel", "Closed", "pair", "readable"]

_SMALL = 16_000
_MOST_DESCRIPTORS = 8
_INLINE, _IN_FILE = b"i", b"f"


class Closed(Exception):
    """The other end is gone."""


class Channel:
    """One end. Messages are pickled; descriptors go along."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        return self._end.fileno()

    def close(self) -> None:
        self._end.close()

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Raises Closed when nobody can receive it, and what pickle raises."""
        content = pickle.dumps(message)
        if len(content) <= _SMALL:
            self._send(_INLINE + content, descriptors)
            return
        board = os.memfd_create("a2a-message", os.MFD_CLOEXEC)
        try:
            with open(board, "wb", closefd=False) as file:
                file.write(content)
            self._send(_IN_FILE, [board, *descriptors])
        finally:
            os.close(board)

    def receive(self) -> tuple[Any, list[int]]:
        """Wait for a message. Returns it with the descriptors that came along, which the caller owns. Raises Closed."""
        space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
        try:
            data, control, _, _ = self._end.recvmsg(_SMALL + 1, space, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise Closed(str(error)) from None
        descriptors = array.array("i")
        for level, kind, content in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        owned = [above_standard(descriptor) for descriptor in descriptors]
        if not data:
            raise Closed("the other end is closed")
        if data[:1] == _INLINE:
            return pickle.loads(data[1:]), owned
        board = owned.pop(0)
        try:
            with mmap.mmap(board, 0, prot=mmap.PROT_READ) as memory:
                return pickle.loads(memory), owned
        finally:
            os.close(board)

    def _send(self, data: bytes, descriptors: Sequence[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self._end.sendmsg([data], rights, socket.MSG_NOSIGNAL)
        except OSError as error:
            raise Closed(str(error)) from None


def pair() -> tuple[Channel, Channel]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(_high(ours)), Channel(_high(theirs))


def readable(descriptors: Iterable[int], seconds: float) -> set[int]:
    """Return those of the descriptors that have something to read, or whose other end is gone."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poller.poll(max(seconds, 0) * 1000)}


def _high(end: socket.socket) -> socket.socket:
    """Apart from the standard streams, which a test may close."""
    return socket.socket(fileno=above_standard(end.detach()))
