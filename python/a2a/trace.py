"""The timelines of ``A2A_TRACE=folder``: every operation of each rank, with its bytes and its times. ``a2a trace``
reads them. The timelines of a communicator's ranks make a Group, which knows who waited for whom."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ._core import InvalidArgumentError
from ._timelines import Message, Operation, Timeline, find, read

__all__ = ["Group", "Message", "Operation", "Timeline", "events", "find", "merge", "read"]


@dataclass(frozen=True)
class Wait:
    """The time that one rank waited in an operation for the last of its peers to begin it. Of an operation that was
    started asynchronously there is none."""

    rank: int
    number: int
    peer: int
    """the last peer; -1 if the rank did not wait"""
    seconds: float


class Group:
    """The timelines of the ranks of one communicator. Clocks of other hosts are moved so that no rank finishes an
    operation before one that it receives from begins it."""

    def __init__(self, timelines: Iterable[Timeline]) -> None:
        by_rank = {timeline.rank: timeline for timeline in sorted(timelines, key=lambda one: one.opened)}
        self.ranks = [by_rank[rank] for rank in sorted(by_rank)]
        first = self.ranks[0]
        for other in self.ranks:
            if other.size != first.size:
                raise InvalidArgumentError(
                    f"{other.path} is of one of {other.size} ranks, and {first.path} of one of {first.size}, in the "
                    "same communicator"
                )
        self.label, self.size, self.group = first.label, first.size, first.group
        self.moved = self._aligned()
        # An operation that a rank's timeline lacks does not tell who was the last to begin it.
        known = (one for one in self.numbers() if all(one in timeline.operations for timeline in self.ranks))
        self.waits = [wait for number in known for wait in self._waits(number)]

    def incomplete(self) -> list[str]:
        """Return what is known to be missing of each rank, or may be, in words."""
        found = []
        for timeline in self.ranks:
            if timeline.incomplete:
                lacks = max(timeline.missing, len(set(self.numbers()) - timeline.operations.keys()))
                many = f"{lacks} operations or messages are missing" if lacks else "operations may be missing"
                found.append(f"rank {timeline.rank}: {many}: {timeline.incomplete}")
        if lacking := self.size - len(self.ranks):
            found.append(f"no timeline of {lacking} rank" + ("s" if lacking > 1 else ""))
        return found

    def numbers(self) -> list[int]:
        """Return the numbers of all operations."""
        return sorted(set(itertools.chain.from_iterable(timeline.operations for timeline in self.ranks)))

    def operations(self, rank: int) -> list[Operation]:
        """Return the operations of a rank, by the common clock."""
        timeline = next((one for one in self.ranks if one.rank == rank), None)
        if timeline is None:
            return []
        return [self._on_common_clock(timeline, one) for _, one in sorted(timeline.operations.items())]

    def traffic(self) -> npt.NDArray[np.int64]:
        """Return the bytes that rank ``[row]`` sent to rank ``[column]``, in operations and messages."""
        matrix = np.zeros((self.size, self.size), np.int64)
        for timeline in self.ranks:
            # Of one exchange that a program repeats there is one tuple.
            often = Counter(id(one.sent) for one in timeline.operations.values() if not one.failed)
            sums = [0] * self.size
            for sent in {id(one.sent): one.sent for one in timeline.operations.values()}.values():
                if times := often[id(sent)]:
                    sums = [total + times * nbytes for total, nbytes in zip(sums, sent, strict=True)]
            for message in timeline.messages:
                if message.sends and not message.failed:
                    sums[message.peer] += message.nbytes
            if max(sums) >> 63:
                raise InvalidArgumentError(f"{timeline.path} tells of {max(sums)} bytes to one rank")
            matrix[timeline.rank] = sums
        return matrix

    def waited(self) -> npt.NDArray[np.float64]:
        """Return the seconds that rank ``[row]`` waited for rank ``[column]`` to begin an operation."""
        matrix = np.zeros((self.size, self.size))
        for wait in self.waits:
            if wait.peer >= 0:
                matrix[wait.rank, wait.peer] += wait.seconds
        return matrix

    def inside(self) -> npt.NDArray[np.float64]:
        """Return the seconds that each rank spent in operations for which it waited at once."""
        times = np.zeros(self.size)
        for timeline in self.ranks:
            for one in timeline.operations.values():
                times[timeline.rank] += 0 if one.asynchronous else max(0, one.ended - one.started) / 1e9
        return times

    def messages(self, rank: int) -> list[Message]:
        """Return the messages that a rank sent and received, by the common clock."""
        timeline = next((one for one in self.ranks if one.rank == rank), None)
        by = 0 if timeline is None else self.moved.get(timeline.host, 0)
        found = () if timeline is None else timeline.messages
        return [dataclasses.replace(one, started=one.started + by, ended=one.ended + by) for one in found]

    def _on_common_clock(self, timeline: Timeline, operation: Operation) -> Operation:
        by = self.moved.get(timeline.host, 0)
        return dataclasses.replace(operation, started=operation.started + by, ended=operation.ended + by)

    def _aligned(self) -> dict[str, int]:
        """Return the nanoseconds by which the clock of each host is moved to fit that of rank 0's host."""
        reference = self.ranks[0].host
        here = [timeline for timeline in self.ranks if timeline.host == reference]
        moved = {}
        for host in {timeline.host for timeline in self.ranks} - {reference}:
            least, most = -math.inf, math.inf
            for there, near in itertools.product((one for one in self.ranks if one.host == host), here):
                for number in there.operations.keys() & near.operations.keys():
                    far, close = there.operations[number], near.operations[number]
                    if far.expected[near.rank] and not far.failed:
                        least = max(least, close.started - far.ended)
                    if close.expected[there.rank] and not close.failed:
                        most = min(most, close.ended - far.started)
            if least > 0 or most < 0:
                bounds = [bound for bound in (least, most) if math.isfinite(bound)]
                moved[host] = round(sum(bounds) / len(bounds))
        return moved

    def _waits(self, number: int) -> Iterator[Wait]:
        begun = {
            timeline.rank: self._on_common_clock(timeline, timeline.operations[number])
            for timeline in self.ranks
            if number in timeline.operations
        }
        for rank, own in begun.items():
            if own.asynchronous:
                continue  # nobody knows when its caller began to wait
            # On the host ranks compare what they call with all others, also with those that they exchange nothing with.
            everybody = own.memory == "host"
            peers = [p for p in begun if p != rank and (everybody or own.sent[p] or own.expected[p])]
            last = max(peers, key=lambda p: begun[p].started, default=-1)
            late = min(begun[last].started, own.ended) - own.started if last >= 0 else 0
            yield Wait(rank, number, last if late > 0 else -1, max(late, 0) / 1e9)


def merge(timelines: Iterable[Timeline]) -> list[Group]:
    """Return the communicators, in the order in which they were made."""
    groups: dict[int, list[Timeline]] = defaultdict(list)
    for timeline in timelines:
        groups[timeline.group].append(timeline)
    return sorted(map(Group, groups.values()), key=lambda group: min(one.opened for one in group.ranks))


def origin_of(groups: Sequence[Group]) -> int:
    """Return when the first communicator was made, in nanoseconds since 1970: the 0 of events()."""
    return min((one.opened for group in groups for one in group.ranks), default=0)


def events(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the timeline as JSON for Perfetto and chrome://tracing: a process for each communicator, a row for each
    rank."""
    found: list[dict[str, Any]] = []
    origin = origin_of(groups)
    for process, group in enumerate(groups):
        found.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": group.label}})
        waits = {(wait.rank, wait.number): wait for wait in group.waits}
        for timeline in group.ranks:
            row = {"pid": process, "tid": timeline.rank}
            name = f"rank {timeline.rank} ({timeline.host}, pid {timeline.pid})"
            found.append({"ph": "M", "name": "thread_name", **row, "args": {"name": name}})
            for one in group.operations(timeline.rank):
                found += _events_of(one, row, origin, waits.get((timeline.rank, one.number)))
            for number, message in enumerate(group.messages(timeline.rank)):
                found += _events_of_message(message, number, row, origin)
    return {"traceEvents": found, "displayTimeUnit": "ns"}


def _events_of(one: Operation, row: dict[str, int], origin: int, wait: Wait | None) -> list[dict[str, Any]]:
    args: dict[str, Any] = {
        "sent": sum(one.sent),
        "received": sum(one.expected),
        "dtype": one.dtype,
        "memory": one.memory,
    }
    if wait is not None and wait.peer >= 0:
        args |= {"waited for rank": wait.peer, "waited, us": round(wait.seconds * 1e6, 3)}
    if one.failed:
        args["failed"] = True
    event = {"name": f"{one.op} #{one.number}", "cat": "a2a", **row, "ts": (one.started - origin) / 1e3}
    return _lasting(event, one, str(one.number), origin, args)


def _events_of_message(one: Message, number: int, row: dict[str, int], origin: int) -> list[dict[str, Any]]:
    args: dict[str, Any] = {"bytes": one.nbytes, "dtype": one.dtype} | ({"failed": True} if one.failed else {})
    other = f"{'send to' if one.sends else 'recv from'} {one.peer if one.peer >= 0 else 'any'}"
    event = {"name": other, "cat": "a2a", **row, "ts": (one.started - origin) / 1e3}
    return _lasting(event, one, f"message {number}", origin, args)


def _lasting(
    event: dict[str, Any], one: Operation | Message, name: str, origin: int, args: dict[str, Any]
) -> list[dict[str, Any]]:
    if not one.asynchronous:
        return [{**event, "ph": "X", "dur": (one.ended - one.started) / 1e3, "args": args}]
    # Several may be in flight at once, so they do not nest in their row.
    same = {"id": f"{event['pid']}.{event['tid']}.{name}"}
    return [{**event, "ph": "b", **same, "args": args}, {**event, "ph": "e", **same, "ts": (one.ended - origin) / 1e3}]
