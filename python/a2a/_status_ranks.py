"""The ranks of this user on this host at one moment: what they show, and what /proc says of their processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ._status_pages import Entry, Page, Process

__all__ = ["Facts", "Rank", "Sample", "world_of"]

_DOING = {"R": "runs", "D": "waits for a disk", "T": "is stopped", "t": "is stopped"}


@dataclass(frozen=True)
class Facts:
    """What /proc says of a process or a thread."""

    state: str
    """its letter"""
    ticks: int
    """of a CPU that it has used"""
    cpu: int
    """on which it ran last"""


@dataclass(frozen=True)
class Rank:
    """One rank of a process, with its communicators."""

    pid: int
    page: Page
    entries: tuple[Entry, ...]
    thread: int
    """that called last, as far as is known"""
    facts: Facts
    shared_bytes: int
    away: str = ""
    """the host on which it runs, where it is another one"""

    @property
    def key(self) -> tuple[str, int, int]:
        """The same for one rank in two samples, and for no other."""
        return self.page.host, self.pid, self.entries[0].owner

    @property
    def process(self) -> str:
        """Its process in words."""
        return f"pid {self.pid} on {self.away}" if self.away else f"pid {self.pid}"

    @property
    def stopped(self) -> bool:
        return self.facts.state in "Tt"

    @property
    def doing(self) -> str:
        """What its thread does: runs, sleeps, ..."""
        return _DOING.get(self.facts.state, "sleeps")

    @property
    def operations(self) -> int:
        """Operations and messages so far."""
        return sum(one.number + one.messages for one in self.entries)

    @property
    def bytes(self) -> int:
        """Sent and received so far."""
        return sum(one.sent + one.expected + one.message_bytes for one in self.entries)


@dataclass(frozen=True)
class Sample:
    """All ranks at one moment of the monotonic clock."""

    at: float
    ranks: tuple[Rank, ...]

    @classmethod
    def of(cls, processes: Iterable[Process]) -> Sample:
        at = time.monotonic()
        ranks: list[Rank] = []
        for process in processes:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                ranks += _ranks_of(process)
        return cls(at, tuple(ranks))

    def jobs(self) -> list[list[Rank]]:
        """Return the ranks of each job: those that share communicators, or the name of their job."""
        jobs: list[tuple[set[object], list[Rank]]] = []
        for rank in self.ranks:
            names: set[object] = {entry.group for entry in rank.entries if entry.group}
            names |= {rank.page.job} if rank.page.job else {("pid", rank.pid)}
            ranks = [rank]
            for same in [one for one in jobs if one[0] & names]:
                jobs.remove(same)
                names |= same[0]
                ranks = same[1] + ranks
            jobs.append((names, ranks))
        return [ranks for _, ranks in jobs]


def world_of(ranks: Iterable[Rank]) -> Entry:
    """Return the largest communicator of a job; of several, the latest that is a world. Ranks that meet have none."""
    entries = (entry for rank in ranks for entry in rank.entries)
    return max(entries, key=lambda one: (one.group != 0, one.size, one.label == "world", one.opened))


def _ranks_of(process: Process) -> list[Rank]:
    page, own = process.page(), _facts_of(f"/proc/{process.pid}/stat")
    if page is None or own is None or own.state in "ZX":
        return []
    owners: dict[int, list[Entry]] = {}
    # A rank that has a communicator, and meets to make another, is the one that it was.
    for entry in [one for one in page.entries if one.group] or page.entries:
        owners.setdefault(entry.owner, []).append(entry)
    shared = process.shared_bytes()
    ranks = []
    for entries in owners.values():
        thread = max(entries, key=lambda one: (one.started, one.opened)).thread
        task = f"/proc/{process.pid}/task/{thread}/stat"
        facts = own if thread == process.pid or len(owners) == 1 else _facts_of(task) or own
        ranks.append(Rank(process.pid, page, tuple(entries), thread, facts, shared))
    return ranks


def _facts_of(path: str) -> Facts | None:
    try:
        words = Path(path).read_text(errors="replace").rpartition(")")[2].split()
        return Facts(words[0], int(words[11]) + int(words[12]), int(words[36]))
    except (OSError, IndexError, ValueError):
        return None
