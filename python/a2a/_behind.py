"""Which ranks keep the others waiting, from what all of them show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._status_ranks import Rank, world_of

if TYPE_CHECKING:
    from ._status_pages import Entry

__all__ = ["Behind", "Waits", "find_behind", "wait_of"]

_FRESH = 0.5
"""A rank that waits looks every 10 ms, if it gets a CPU. After so many seconds without a look it does not wait."""
_PATIENCE = 0.2
"""Waits of fewer seconds are not told of: ranks of a program that goes on wait, too."""


@dataclass(frozen=True)
class Behind:
    """Ranks that keep others waiting."""

    ranks: list[int]
    """of the communicator ``label``"""
    label: str
    why: str
    seconds: float
    """for which others have waited for them; 0 where nobody is known to"""
    waiting: list[int]
    """those that wait for them, also by way of others"""


@dataclass(frozen=True)
class Waits:
    """What a rank waits in, and for whom."""

    what: str
    number: int
    """of the operation; 0 for a message"""
    ranks: tuple[int, ...]
    since: float


def wait_of(rank: Rank, entry: Entry, now: float) -> Waits | None:
    """Return the wait that a rank is in on a communicator, None if it does not wait there."""
    if rank.stopped:
        return None
    operation, message = entry.waits
    if operation.seen > now - _FRESH and entry.ended < operation.number <= entry.number:
        name = entry.op if entry.number == operation.number else "operation"
        return Waits(f"{name} #{operation.number}", operation.number, operation.ranks, operation.since)
    if message.seen > now - _FRESH:
        peer = f"rank {message.ranks[0]}" if message.ranks else "any rank"
        return Waits(f"{'send to' if message.sends else 'recv from'} {peer}", 0, message.ranks, message.since)
    return None


def find_behind(ranks: Sequence[Rank], now: float) -> list[Behind]:
    """Return the ranks at which the waiting ends: somebody waits for them, and they wait for nobody. Then those that
    wait for each other in different calls, and those that have ended or are stopped."""
    graph = _Graph(ranks, now)
    found = graph.ends() + graph.circles()
    told = {(one.label, rank) for one in found for rank in one.ranks}
    return sorted(found, key=lambda one: -one.seconds) + [one for one in _idle(ranks, now) if _key(one) not in told]


def _key(one: Behind) -> tuple[str, int]:
    return one.label, one.ranks[0]


_Node = int | tuple[int, int]
"""A rank: its place among those here, or the group and the number of one that is not here."""


@dataclass(frozen=True)
class _Edge:
    """One rank here waits for another."""

    by: int
    to: _Node
    entry: Entry
    waits: Waits


class _Graph:
    def __init__(self, ranks: Sequence[Rank], now: float) -> None:
        self._ranks, self._now = ranks, now
        places = {(entry.group, entry.rank): at for at, rank in enumerate(ranks) for entry in rank.entries}
        self._edges: list[_Edge] = []
        for at, rank in enumerate(ranks):
            for entry in rank.entries:
                if (waits := wait_of(rank, entry, now)) is not None:
                    nodes = ((entry.group, peer) for peer in waits.ranks)
                    self._edges += [_Edge(at, places.get(node, node), entry, waits) for node in nodes]
        self._waiting = {edge.by for edge in self._edges}

    def ends(self) -> list[Behind]:
        """Return the ranks that somebody waits for and that wait for nobody."""
        found = []
        for node in {edge.to: None for edge in self._edges if edge.to not in self._waiting}:
            first = min((edge for edge in self._edges if edge.to == node), key=lambda edge: edge.waits.since)
            seconds = self._now - first.waits.since
            if seconds < _PATIENCE:
                continue
            if isinstance(node, int):
                own = next(entry for entry in self._ranks[node].entries if entry.group == first.entry.group)
                number, why = own.rank, self._doing(self._ranks[node], own, first.waits)
            else:
                number, why = node[1], _absent(first.entry)
            waiting = sorted(self._number(at, first.entry.group) for at in self._before({node}))
            found.append(Behind([number], first.entry.label, why, round(seconds, 3), waiting))
        return found

    def circles(self) -> list[Behind]:
        """Return the ranks that wait for each other. Those that do so in one call exchange bytes."""
        ends = {edge.to for edge in self._edges if edge.to not in self._waiting}
        inside = self._waiting - self._before(ends)
        while outside := inside - {edge.to for edge in self._edges if edge.by in inside}:
            inside -= outside
        edges = [edge for edge in self._edges if edge.by in inside]
        calls = {(edge.entry.group, edge.waits.number or edge.waits.what) for edge in edges}
        seconds = self._now - max((edge.waits.since for edge in edges), default=self._now)
        if len(calls) < 2 or seconds < _PATIENCE:
            return []
        first = {edge.by: edge for edge in reversed(edges)}
        texts = [
            f"rank {one.entry.rank} waits{_for(one.waits)} in {one.waits.what} of {one.entry.label}{_at(one.entry)}"
            for _, one in sorted(first.items())
        ]
        entry = first[min(first)].entry
        ranks = sorted(self._number(at, entry.group) for at in first)
        return [Behind(ranks, entry.label, f"wait for each other: {'; '.join(texts)}", round(seconds, 3), ranks)]

    def _before(self, nodes: set[_Node]) -> set[int]:
        """Return the ranks that wait for one of these, also by way of others."""
        found: set[int] = set()
        while more := {edge.by for edge in self._edges if edge.to in nodes | found} - found:
            found |= more
        return found

    def _number(self, at: int, group: int) -> int:
        """Return the number of a rank in a group, or in its own where it is not in that one."""
        entries = self._ranks[at].entries
        return next((entry.rank for entry in entries if entry.group == group), entries[0].rank)

    def _doing(self, rank: Rank, own: Entry, waits: Waits) -> str:
        """Say what a rank does for which others wait."""
        if rank.stopped:
            return f"is stopped ({rank.process}){_last(own)}"
        for entry in rank.entries:
            if (other := wait_of(rank, entry, self._now)) is not None:  # for a message from any rank
                return f"waits in {other.what} of {entry.label}{_at(entry)} ({rank.process})"
        if own.ended < waits.number <= own.number:
            return f"has started {waits.what}{_at(own)} and now {rank.doing}, not waiting ({rank.process})"
        since = own.ended_at if own.ended >= own.number > 0 else max(own.started, own.opened)
        return (
            f"has not come to {waits.what if waits.number else 'it'}: it {rank.doing} outside of a2a for "
            f"{max(0.0, self._now - since):.1f} s ({rank.process}){_last(own)}"
        )


def _idle(ranks: Sequence[Rank], now: float) -> Iterable[Behind]:
    """Return the ranks that have ended or are stopped, and those for which all others wait to meet."""
    for rank in ranks:
        if rank.stopped:
            own = max(rank.entries, key=lambda entry: entry.size)
            yield Behind([own.rank], own.label, f"is stopped ({rank.process}){_last(own)}", 0.0, [])
    here = {(entry.group, entry.rank) for rank in ranks for entry in rank.entries}
    world = world_of(ranks)
    if world.group == 0:
        yield from _not_met(ranks, world, now)
        return
    if all((world.group, number) in here for number in range(world.size)):
        return  # all ranks run; some may have left a communicator that others still hold
    latest = (max(rank.entries, key=lambda entry: max(entry.started, entry.opened)) for rank in ranks)
    groups = {entry.group: entry for entry in latest if entry.hosts == 1 and entry.group}
    for group, entry in groups.items():
        for number in range(entry.size):
            if (group, number) not in here:
                yield Behind([number], entry.label, _absent(entry), 0.0, [])


def _not_met(ranks: Sequence[Rank], world: Entry, now: float) -> Iterable[Behind]:
    """Return the ranks that have not come to the meeting of a job, whose others are all here."""
    here = {entry.rank: entry.opened for rank in ranks for entry in rank.entries}
    seconds = now - max(here.values())
    absent = [number for number in range(world.size) if number not in here]
    if absent and world.hosts == 1 and seconds >= _PATIENCE:
        yield Behind(absent, world.label, "has not come, or has ended", round(seconds, 3), sorted(here))


def _absent(entry: Entry) -> str:
    if entry.hosts == 1:
        return "has ended, or has left the communicator"
    return "is on another host, or has ended: look with a2a status there"


def _last(entry: Entry) -> str:
    if entry.number == 0:
        return ", and has called nothing"
    return f"; its last call was {entry.op} #{entry.number}{_at(entry)}"


def _at(entry: Entry) -> str:
    return f" at {entry.site}" if entry.site and entry.sited == entry.number else ""


def _for(waits: Waits) -> str:
    """Say for whom a rank waits. The name of a message says it already."""
    if not waits.number:
        return ""
    ranks = ", ".join(map(str, waits.ranks[:4])) + (", ..." * (len(waits.ranks) > 4))
    return f" for {'rank' if len(waits.ranks) == 1 else 'ranks'} {ranks}"
