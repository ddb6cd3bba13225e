"""The files of ``A2A_TRACE=folder``, one for each rank and communicator; src/cpp/core/trace.h has the format."""

from __future__ import annotations

import dataclasses
import errno
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ._core import InvalidArgumentError
from ._files import opened
from ._records import damaged, files_among, require_rank, text_of

__all__ = ["Message", "Operation", "Timeline", "find", "read"]

MOST_BYTES = 1 << 57
"""No process can address more."""

_MAGICS = (b"a2atrac1", b"a2atrac2")
_HEADER = struct.Struct("<8siiQQiI64s128s")
_END = struct.Struct("<QQQiI")  # what version 2 has behind it
_ENTRY = struct.Struct("<II")
_AMOUNTS = struct.Struct("<IIQ")
_OPERATION = struct.Struct("<IIQQQQII16s8s32s")
_MESSAGE = struct.Struct("<IIQQQiIII32s")


@dataclass(frozen=True)
class Operation:
    """One operation of one rank. Times are nanoseconds since 1970, by the clock of its host."""

    number: int
    op: str
    memory: str
    dtype: str
    started: int
    ended: int
    """when a call of the program saw the end"""
    failed: bool
    asynchronous: bool
    sent: tuple[int, ...]
    """bytes to each rank"""
    expected: tuple[int, ...]
    """bytes from each rank"""


@dataclass(frozen=True)
class Message:
    """One send or recv of one rank. Times are those of Operation."""

    sends: bool
    peer: int
    """-1: a recv from any rank that failed"""
    nbytes: int
    dtype: str
    started: int
    ended: int
    failed: bool
    asynchronous: bool


@dataclass(frozen=True)
class Timeline:
    """The operations of one rank on one communicator, by number."""

    path: Path
    rank: int
    size: int
    group: int
    """the same for all ranks of the communicator"""
    label: str
    """world, or the call that made it"""
    host: str
    pid: int
    opened: int
    operations: dict[int, Operation] = dataclasses.field(repr=False)
    messages: tuple[Message, ...] = dataclasses.field(default=(), repr=False)
    missing: int = 0
    """operations and messages that are known to have ended and are not here"""
    incomplete: str = ""
    """why some are missing, or may be; "" if none is"""


def find(paths: Sequence[str | Path]) -> list[Path]:
    """Return the timelines among these files and in these folders."""
    return files_among(paths, ".a2atrace")


def read(path: str | Path) -> Timeline:
    """Read one file. What a rank that was killed, or whose disk was full, has not written is missing, and
    ``Timeline.incomplete`` says so. Raises InvalidArgumentError, naming the value, when it is no file of A2A_TRACE,
    OSError when it cannot be read."""
    path = Path(path)
    with opened(path) as file:
        begin = file.read(_HEADER.size)
        if len(begin) < _HEADER.size or begin[:8] not in _MAGICS:
            raise InvalidArgumentError(f"{path} is no timeline of A2A_TRACE")
        magic, rank, size, group, opened_at, pid, fate, host, label = _HEADER.unpack(begin)
        require_rank(path, rank, size)
        end = None
        if magic == _MAGICS[1]:
            rest = file.read(_END.size)
            if len(rest) < _END.size:
                raise damaged(path, "it ends in its header")
            end = _End(fate, *_END.unpack(rest))
        reader = _Entries(path, file, size)
        entries = list(reader)
    operations = {one.number: one for one in entries if isinstance(one, Operation)}
    messages = tuple(one for one in entries if isinstance(one, Message))
    missing, why = reader.missing(end, len(entries) - len(messages), len(messages))
    return Timeline(
        path, rank, size, group, text_of(label), text_of(host), pid, opened_at, operations, messages, missing, why
    )


class _End(NamedTuple):
    """How far the rank has written the file. Version 1 does not say."""

    fate: int
    written: int
    operations: int
    messages: int
    error: int
    unused: int


class _Entries:
    """Iterates over the entries of a file, and knows where they end."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self._path, self._file, self._size = path, file, size
        self._amounts: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._at = file.tell()
        self._stop = ""

    def __iter__(self) -> Iterator[Operation | Message]:
        lengths = {1: _AMOUNTS.size + 16 * self._size, 2: _OPERATION.size, 3: _MESSAGE.size}
        while begin := self._file.read(_ENTRY.size):
            if len(begin) < _ENTRY.size:
                self._stop = f"it ends within the entry at byte {self._at}"
                return
            kind, length = _ENTRY.unpack(begin)
            if kind == length == 0:  # of a file that was truncated, or of a disk that lost power
                self._stop = f"there are zeros from byte {self._at} on"
                return
            if length != lengths.get(kind):
                raise self._damaged(f"it is of kind {kind} and has {length} bytes")
            data = begin + self._file.read(length - len(begin))
            if len(data) < length:
                self._stop = f"it ends within the entry at byte {self._at}"
                return
            if kind == 1:
                self._learn(data)
            else:
                yield self._operation(data) if kind == 2 else self._message(data)
            self._at += length

    def missing(self, end: _End | None, operations: int, messages: int) -> tuple[int, str]:
        """Return how many operations and messages are known to be missing, and why; 0 and "" if none is."""
        if end is None:
            return 0, self._stop
        missing = max(0, end.operations - operations) + max(0, end.messages - messages)
        if end.fate == 2:
            return missing, "its descriptor was closed" if end.error == errno.EBADF else os.strerror(end.error)
        if self._stop:
            return missing, self._stop
        if self._at < end.written:
            return missing, f"it ends after {self._at} of {end.written} bytes"
        if end.fate != 1:
            return missing, "the rank runs, or was killed; its last second is not there"
        return missing, "there was no memory for them" if missing else ""

    def _learn(self, data: bytes) -> None:
        number = _AMOUNTS.unpack_from(data)[2]
        bytes_ = struct.unpack_from(f"<{2 * self._size}Q", data, _AMOUNTS.size)
        sent, expected = bytes_[: self._size], bytes_[self._size :]
        for what, amounts in (("sends", sent), ("expects", expected)):
            if sum(amounts) > MOST_BYTES:
                raise self._damaged(f"a rank {what} {sum(amounts)} bytes")
        self._amounts[number] = (sent, expected)

    def _operation(self, data: bytes) -> Operation:
        _, _, number, started, ended, which, failed, own_pace, op, memory, dtype = _OPERATION.unpack(data)
        if which not in self._amounts:
            raise self._damaged(f"operation {number} has bytes that no entry before it tells")
        return Operation(
            number,
            text_of(op),
            text_of(memory),
            text_of(dtype),
            started,
            ended,
            failed != 0,
            own_pace != 0,
            *self._amounts[which],
        )

    def _message(self, data: bytes) -> Message:
        _, _, started, ended, nbytes, peer, sends, failed, own_pace, dtype = _MESSAGE.unpack(data)
        if not (0 <= peer < self._size or (peer == -1 and not sends)):
            raise self._damaged(f"a message {'to' if sends else 'from'} rank {peer} of {self._size}")
        if nbytes > MOST_BYTES:
            raise self._damaged(f"a message of {nbytes} bytes")
        return Message(sends != 0, peer, nbytes, text_of(dtype), started, ended, failed != 0, own_pace != 0)

    def _damaged(self, why: str) -> InvalidArgumentError:
        return damaged(self._path, f"entry at byte {self._at}: {why}")
