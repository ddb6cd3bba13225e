"""The records of ``A2A_DUMP=folder``: the last operations of each rank on each communicator. The files are written
while the program runs and stay when it is killed. ``a2a explain`` reads them; src/cpp/core/record.h has the format."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ._core import InvalidArgumentError
from ._files import opened
from ._records import damaged, files_among, require_rank, text_of

__all__ = ["Entry", "Record", "find", "read"]

_HEADER = struct.Struct("<8sIIiiQQiIQ64s128s448s")
_HEADER_BYTES = 4096
_ENTRY = struct.Struct("<QQQQQQII16s8s32s192s448s")
_MOST_ENTRIES = 256
_FATES = ("open", "closed", "dropped", "aborted")
_STATES = ("none", "started", "finished", "failed", "refused")
_ERRORS: tuple[str, ...] = (
    "",
    "InvalidArgumentError",
    "MismatchError",
    "PeerLostError",
    "TimeoutError",
    "AbortedError",
    "UnsupportedError",
    "BackendError",
)


ROUTING = 1 << 31
"""What is added to the numbers of routings, which stand in the place of those of plans."""


@dataclass(frozen=True)
class Entry:
    """One operation of one rank. Times are seconds since 1970; ``ended`` is 0 while no call has seen the end."""

    number: int
    op: str
    memory: str
    dtype: str
    plan: int
    """of a reusable plan, from 1; ROUTING + that of a routing; or 0"""
    state: str
    """started, finished, failed or refused"""
    error: str
    """the class of its error, or nothing"""
    text: str
    """that error, or why the arguments were refused"""
    site: str
    """the place of the call in the program: file:line in function"""
    started: float
    ended: float
    unit_bytes: int
    """of one row or element"""
    counts_hash: int
    sent: tuple[int, ...]
    """bytes to each rank"""
    expected: tuple[int, ...]
    """bytes from each rank"""


@dataclass(frozen=True)
class Record:
    """The last operations of one rank on one communicator, by number."""

    path: Path
    rank: int
    size: int
    group: int
    """the same for all ranks of the communicator"""
    label: str
    """world, or the call that made it"""
    host: str
    pid: int
    pid_started: int
    opened: float
    fate: str
    """open, closed, dropped or aborted"""
    reason: str
    entries: dict[int, Entry] = field(repr=False)

    @property
    def last(self) -> int:
        """The number of the last operation started, 0 before the first."""
        return max(self.entries, default=0)


def find(paths: Sequence[str | Path]) -> list[Path]:
    """Return the records among these files and in these folders."""
    return files_among(paths, ".a2a")


def read(path: str | Path) -> Record:
    """Read one file. Raises InvalidArgumentError when it is no file of A2A_DUMP, OSError when it cannot be read."""
    path = Path(path)
    with opened(path) as file:
        data = file.read(_HEADER_BYTES)
        if len(data) < _HEADER_BYTES or not data.startswith(b"a2adump1"):
            raise InvalidArgumentError(f"{path} is no record of A2A_DUMP")
        (_, stride, capacity, rank, size, group, began, pid, fate, pid_started, host, label, reason) = (
            _HEADER.unpack_from(data)
        )
        require_rank(path, rank, size)
        for wrong, what in (
            (stride != _ENTRY.size + 16 * size, f"an operation of {size} ranks has {stride} bytes"),
            (not 1 <= capacity <= _MOST_ENTRIES, f"it has room for {capacity} operations, not 1 to {_MOST_ENTRIES}"),
            (fate >= len(_FATES), f"the end of the communicator is {fate}"),
        ):
            if wrong:
                raise damaged(path, what)
        data += file.read(capacity * stride)
    if len(data) < _HEADER_BYTES + capacity * stride:
        raise InvalidArgumentError(
            f"{path} is incomplete: it has {len(data)} of {_HEADER_BYTES + capacity * stride} bytes"
        )
    entries = [_entry(data, _HEADER_BYTES + i * stride, size) for i in range(capacity)]
    return Record(
        path,
        rank,
        size,
        group,
        text_of(label),
        text_of(host),
        pid,
        pid_started,
        began / 1e9,
        _FATES[fate],
        text_of(reason),
        {entry.number: entry for entry in sorted(entries, key=lambda entry: entry.number) if entry.number},
    )


def _entry(data: bytes, where: int, size: int) -> Entry:
    (number, plan, started, ended, unit, counts, state, error, op, memory, dtype, site, text) = _ENTRY.unpack_from(
        data, where
    )
    numbers = struct.unpack_from(f"<{2 * size}Q", data, where + _ENTRY.size)
    return Entry(
        number,
        text_of(op),
        text_of(memory),
        text_of(dtype),
        plan,
        _of(_STATES, state),
        _of(_ERRORS, error),
        text_of(text),
        text_of(site),
        started / 1e9,
        ended / 1e9,
        unit,
        counts,
        numbers[:size],
        numbers[size:],
    )


def _of(names: Sequence[str], value: int) -> str:
    return names[value] if value < len(names) else str(value)
