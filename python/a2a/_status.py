"""``a2a.status()``: what the ranks of this user on this host do now. ``a2a status`` prints it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ._behind import Behind, find_behind, wait_of
from ._core import InvalidArgumentError
from ._status_pages import Entry, found
from ._status_ranks import Rank, Sample, world_of

__all__ = ["Behind", "JobStatus", "Membership", "RankStatus", "status"]

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Membership:
    """What a rank does on one communicator."""

    label: str
    """world, or the call that made it: split #12 of world"""
    group: str
    """the same for all ranks of the communicator"""
    rank: int
    size: int
    operation: str
    """the operation started last, "alltoallv #146"; "" before the first"""
    dtype: str
    memory: str
    phase: str
    """waits; in: the operation is under way, and the rank does not wait; after: it has ended; failed; idle: none yet;
    meets: the ranks have not met, and there is no communicator yet"""
    seconds: float
    """since then"""
    waits_in: str
    """the operation or message that it waits in"""
    waits_for: list[int]
    """the ranks of this communicator for which it waits, 32 at most"""
    site: str
    """the place of its latest call that is known: file:line in function"""
    sent: int
    """bytes of all operations so far"""
    received: int
    operations: int
    messages: int
    message_bytes: int
    error: str
    """of the last operation that has failed"""


@dataclass(frozen=True)
class RankStatus:
    """One rank. Rates and shares are those of the time for which it was looked at."""

    rank: int
    """in the largest communicator of its job"""
    pid: int
    host: str
    cpu: int
    """on which it ran last"""
    state: str
    """of its process: runs, sleeps, waits for a disk, is stopped"""
    cpu_share: float
    """of one CPU"""
    frameworks: str
    shared_bytes: int
    """memory of its process that other ranks may read"""
    operations_per_second: float
    bytes_per_second: float
    """sent and received"""
    communicators: list[Membership]
    """the first is the one on which it waits, or else started something last"""


@dataclass(frozen=True)
class JobStatus:
    """The ranks of one job that run on this host."""

    name: str
    """of the job; "pid-4711", of its first process, where a2a was not told one"""
    host: str
    """its name; those of all hosts where several were looked at"""
    size: int
    """of its largest communicator"""
    hosts: int
    """on which the ranks of that are; 0 if they have not met, and that is not known"""
    ranks: list[RankStatus]
    missing: list[int]
    """ranks that have ended, are on another host, or have not come"""
    behind: list[Behind]
    """the ranks for which others wait, and why"""


def status(job: str | int | None = None, *, interval: float = 0.1) -> list[JobStatus]:
    """Return what the ranks of this user on this host do now, by job. Nothing has to be set beforehand. The ranks are
    not stopped and do nothing for it: this reads the memory that they write anyway, and /proc, and never waits for one.

    ``job`` is the name of a job, its beginning, or the process id of a rank; None for all. ``interval`` are the seconds
    over which rates are measured, for which this sleeps; with 0 there are none.

    Raises InvalidArgumentError when there is no such job."""
    if not 0 <= interval < float("inf"):
        raise InvalidArgumentError(f"status: interval is {interval} seconds; it cannot be negative or infinite")
    with found() as processes:
        first = Sample.of(processes)
        if interval == 0:
            return jobs_of(first, first, job)
        time.sleep(interval)
        return jobs_of(first, Sample.of(processes), job)


def jobs_of(before: Sample, now: Sample, job: str | int | None = None) -> list[JobStatus]:
    """Return the jobs of a sample, with the rates since the one before."""
    wanted = "" if job is None else str(job)
    known = {rank.key: rank for rank in before.ranks}
    passed = now.at - before.at
    jobs = [_job(ranks, known, now.at, passed) for ranks in now.jobs()]
    chosen = [one for one in jobs if one.name.startswith(wanted) or any(str(r.pid) == wanted for r in one.ranks)]
    if wanted and not chosen:
        raise InvalidArgumentError(f"status: this user has no job {wanted} on this host")
    return sorted(chosen, key=lambda one: one.name)


def _job(ranks: Sequence[Rank], known: dict[tuple[str, int, int], Rank], now: float, passed: float) -> JobStatus:
    world = world_of(ranks)
    ranks = sorted(ranks, key=lambda rank: _number(rank, world))
    here = {entry.rank for rank in ranks for entry in rank.entries if entry.group == world.group}
    return JobStatus(
        next((rank.page.job for rank in ranks if rank.page.job), f"pid-{ranks[0].pid}"),
        ", ".join(dict.fromkeys(rank.away or socket.gethostname() for rank in ranks)),
        world.size,
        world.hosts,
        [_rank(one, known.get(one.key, one), world, now, passed) for one in ranks],
        [number for number in range(world.size) if number not in here],
        find_behind(ranks, now),
    )


def _number(rank: Rank, world: Entry) -> int:
    """Return the number of a rank in the world, or in its own largest communicator."""
    own = next((entry for entry in rank.entries if entry.group == world.group), None)
    return (own or max(rank.entries, key=lambda entry: entry.size)).rank


def _rank(rank: Rank, before: Rank, world: Entry, now: float, passed: float) -> RankStatus:
    def rate(amount: float) -> float:
        return max(0.0, amount / passed) if passed > 0 else 0.0

    latest_first = sorted(rank.entries, key=lambda entry: -max(entry.started, entry.opened))
    shown = [_membership(rank, entry, now) for entry in latest_first]
    return RankStatus(
        _number(rank, world),
        rank.pid,
        rank.away or rank.page.host,
        rank.facts.cpu,
        rank.doing,
        round(rate((rank.facts.ticks - before.facts.ticks) / _TICKS), 2),
        rank.page.frameworks,
        rank.shared_bytes,
        round(rate(rank.operations - before.operations), 1),
        round(rate(rank.bytes - before.bytes), 1),
        sorted(shown, key=lambda one: one.phase != "waits"),
    )


def _membership(rank: Rank, entry: Entry, now: float) -> Membership:
    waits = wait_of(rank, entry, now)
    if waits is not None:
        phase, since = "waits", waits.since
    elif entry.number == 0:
        phase, since = "idle" if entry.group else "meets", entry.opened
    elif entry.ended < entry.number:
        phase, since = "in", entry.started
    else:
        phase, since = "failed" if entry.failed == entry.number else "after", entry.ended_at
    return Membership(
        entry.label,
        f"{entry.group:016x}",
        entry.rank,
        entry.size,
        f"{entry.op} #{entry.number}" if entry.number else "",
        entry.dtype,
        entry.memory,
        phase,
        round(max(0.0, now - since), 3),
        waits.what if waits is not None else "",
        list(waits.ranks) if waits is not None else [],
        entry.site,
        entry.sent,
        entry.expected,
        entry.number,
        entry.messages,
        entry.message_bytes,
        entry.error,
    )
