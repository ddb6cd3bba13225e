"""The status pages of ranks that run: memory files of theirs, which this finds and reads in /proc. A rank does nothing
for it, and is not stopped. The kernel lets nobody else read them than the rank's user. src/cpp/core/status_page.h has
the format."""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ._core import operation_in_words
from ._files import MOST_RANKS
from ._records import text_of

__all__ = ["Entry", "Page", "Process", "Wait", "found"]

_NAME = "/memfd:a2a-status"
_SEGMENTS = ("/memfd:a2a (deleted)", "/memfd:a2a-common (deleted)")
_MAGIC = b"a2astat1"
_HEADER = struct.Struct("<8sIIiIQ64s256s128s")
_HEADER_BYTES = 4096
_ENTRY_BYTES, _MOST_ENTRIES = 2048, 128
_WHO = struct.Struct("<QQQQiiii128s")
_DONE = struct.Struct("<QQQQQQQII")
_END = struct.Struct("<QQQI")
_WAIT = struct.Struct("<QQQQII32i")
_SITE = struct.Struct("<Q192s448s")
_AT_DONE, _AT_END, _AT_WAITS, _AT_SITE = 192, 256, 320, 704
_MOST_TRIES = 4


@dataclass(frozen=True)
class Wait:
    """The ranks for which a rank waits. Times are seconds of the monotonic clock."""

    number: int
    """of the operation; 0 for a message"""
    since: float
    seen: float
    sends: bool
    ranks: tuple[int, ...]
    """the first of them; none for a message from any rank"""
    count: int
    """of all"""


@dataclass(frozen=True)
class Entry:
    """One communicator of one rank. Times are seconds of the monotonic clock."""

    group: int
    """the same for all ranks of the communicator; 0 while they meet to make one"""
    opened: float
    owner: int
    """the same for all communicators of one rank in its process"""
    rank: int
    size: int
    hosts: int
    thread: int
    label: str
    number: int
    """of the operation started last, 0 before the first"""
    op: str
    memory: str
    dtype: str
    started: float
    sent: int
    expected: int
    messages: int
    message_bytes: int
    ended: int
    """the last operation whose end the library has seen"""
    ended_at: float
    failed: int
    error: str
    waits: tuple[Wait, Wait]
    """in the oldest operation, and in the oldest message"""
    sited: int
    """the operation that ``site`` belongs to"""
    site: str


@dataclass(frozen=True)
class Page:
    """What one process shows."""

    host: str
    job: str
    frameworks: str
    entries: tuple[Entry, ...]


@dataclass
class Process:
    """A process that has a page."""

    pid: int
    file: int
    """the page"""
    segments: list[str] = field(default_factory=list)
    """the descriptors of the memory that the process shares"""

    def page(self) -> Page | None:
        """Return the page, or None where it makes no sense."""
        data = os.pread(self.file, _HEADER_BYTES + _MOST_ENTRIES * _ENTRY_BYTES, 0)
        if len(data) < _HEADER_BYTES or not data.startswith(_MAGIC):
            return None
        _, entry_bytes, entries, _, _, _, host, job, frameworks = _HEADER.unpack_from(data)
        if entry_bytes != _ENTRY_BYTES or len(data) < _HEADER_BYTES + entries * _ENTRY_BYTES:
            return None
        shown = (self._entry(data, _HEADER_BYTES + at * _ENTRY_BYTES) for at in range(entries))
        return Page(text_of(host), text_of(job), text_of(frameworks), tuple(one for one in shown if one is not None))

    def _entry(self, data: bytes, place: int) -> Entry | None:
        """Return an entry in use. Reads it again as long as it is being written."""
        part = data[place : place + _ENTRY_BYTES]
        for _ in range(_MOST_TRIES):
            if part[:8] == b"\0" * 8:
                return None
            if _is_whole(part):
                break
            part = os.pread(self.file, _ENTRY_BYTES, place)
            if len(part) < _ENTRY_BYTES:
                return None
        return _unpacked(part)

    def shared_bytes(self) -> int:
        """Return the bytes of memory that other ranks may read."""
        total = 0
        for number in self.segments:
            with contextlib.suppress(OSError):
                total += Path(f"/proc/{self.pid}/fd/{number}").stat().st_blocks * 512
        return total


def _is_whole(part: bytes) -> bool:
    begun, number = struct.unpack_from("<QQ", part, _AT_DONE)
    versions = [struct.unpack_from("<Q", part, _AT_WAITS + at * _WAIT.size)[0] for at in range(2)]
    return begun == number and not any(version % 2 for version in versions)


def _unpacked(part: bytes) -> Entry | None:
    _, group, opened, owner, rank, size, hosts, thread, label = _WHO.unpack_from(part)
    _, number, started, sent, expected, messages, message_bytes, dtype, operation = _DONE.unpack_from(part, _AT_DONE)
    ended, ended_at, failed, _ = _END.unpack_from(part, _AT_END)
    sited, site, error = _SITE.unpack_from(part, _AT_SITE)
    if not (1 <= size <= MOST_RANKS and 0 <= rank < size):
        return None
    op, memory, kind = operation_in_words(operation, dtype) if number else ("", "", "")
    return Entry(
        group,
        opened / 1e9,
        owner,
        rank,
        size,
        hosts,
        thread,
        text_of(label),
        number,
        op,
        memory,
        kind,
        started / 1e9,
        sent,
        expected,
        messages,
        message_bytes,
        ended,
        ended_at / 1e9,
        failed,
        text_of(error) if failed else "",
        (_wait(part, 0), _wait(part, 1)),
        sited,
        text_of(site),
    )


def _wait(part: bytes, at: int) -> Wait:
    _, number, since, seen, sends, count, *ranks = _WAIT.unpack_from(part, _AT_WAITS + at * _WAIT.size)
    return Wait(number, since / 1e9, seen / 1e9, bool(sends), tuple(ranks[: min(count, len(ranks))]), count)


@contextlib.contextmanager
def found() -> Iterator[list[Process]]:
    """Find the processes of this user on this host that have a page. Closes the pages at its end."""
    processes = [process for process in map(_process, _own_processes()) if process is not None]
    try:
        yield processes
    finally:
        for process in processes:
            os.close(process.file)


def _own_processes() -> Iterator[int]:
    user = os.geteuid()
    with os.scandir("/proc") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if entry.name.isdigit() and entry.stat().st_uid == user:
                    yield int(entry.name)


def _process(pid: int) -> Process | None:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):  # it has ended meanwhile, or may not be looked at
        targets = dict(_links(folder))
        segments = [name for name, target in targets.items() if target in _SEGMENTS]
        for name in (name for name, target in targets.items() if target.startswith(_NAME)):
            file = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            if stat.S_ISREG(os.fstat(file).st_mode) and _is_of(os.pread(file, _HEADER.size, 0), pid):
                return Process(pid, file, segments)
            os.close(file)
    return None


def _links(folder: str) -> Iterator[tuple[str, str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # it has been closed meanwhile
                yield entry.name, os.readlink(entry.path)  # noqa: PTH115  thousands of them


def _is_of(header: bytes, pid: int) -> bool:
    """Whether a page is that of this process, and not of one that it looks at. In a container of its own the process
    knows itself by another number."""
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        return False
    owner, started = _HEADER.unpack(header)[3:6:2]
    facts = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    if started not in (0, int(facts[19])):
        return False
    if owner == pid:
        return True
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return any(str(owner) in line.split()[1:] for line in lines if line.startswith("NSpid:"))
