"""Finds the ranks that keep a communicator from going on, from the records of its ranks."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .._core import InvalidArgumentError
from ..dump import ROUTING, Entry, Record


@dataclass
class Diagnosis:
    """The result for one communicator."""

    label: str
    size: int
    opened: float
    """when the communicator was made, in seconds since 1970"""
    operation: int = 0
    """the first operation that is not finished on all ranks, 0 for none"""
    culprits: list[int] = field(default_factory=list)
    """ranks that differ from the majority; all that differ where there is no majority"""
    findings: list[str] = field(default_factory=list)
    ranks: list[RankState] = field(default_factory=list)


@dataclass
class RankState:
    """The state of one rank."""

    rank: int
    operation: str
    state: str
    site: str
    at: float
    """when the state began, in seconds since 1970; 0 without an operation"""
    process: str
    text: str


def diagnose(group: Sequence[Record], everything: Sequence[Record]) -> Diagnosis:
    """``group`` are the records of one communicator, ``everything`` those of all of them."""
    records = {record.rank: record for record in group}
    first = group[0]
    for other in group:
        if other.size != first.size:
            raise InvalidArgumentError(
                f"{other.path} is of one of {other.size} ranks, and {first.path} of one of {first.size}, in the same "
                "communicator"
            )
    result = Diagnosis(first.label, first.size, first.opened)
    result.ranks = [_state_of(records[rank]) for rank in sorted(records)]
    absent = [rank for rank in range(first.size) if rank not in records]
    if absent:
        result.findings.append(f"incomplete: there is no record of {name_ranks(absent)}")
    result.operation = _first_unfinished(records)
    if result.operation == 0:
        return result
    entries = {rank: r.entries[result.operation] for rank, r in records.items() if result.operation in r.entries}
    for cause in (_refused, _different, _unequal):
        culprits, findings = cause(entries)
        if culprits:
            result.culprits, result.findings = culprits, result.findings + findings
            return result
    result.culprits = _lost(records, entries) or [r for r in sorted(records) if r not in entries and _open(records[r])]
    result.findings += [_whereabouts(records[rank], result.operation, everything) for rank in result.culprits]
    return result


def _first_unfinished(records: dict[int, Record]) -> int:
    """Return the first operation that one rank has started and that is not finished on all."""
    begun = {number for record in records.values() for number in record.entries}
    return min((n for n in begun if not all(_finished(record, n) for record in records.values())), default=0)


def _finished(record: Record, number: int) -> bool:
    """Whether the rank has finished an operation. Operations end in the order of their start, also those for which no
    call has waited."""
    entry = record.entries.get(number)
    if entry is None:
        return any(later > number for later in record.entries)  # long ago
    if entry.state == "started":
        return any(later.state == "finished" for n, later in record.entries.items() if n > number)
    return entry.state == "finished"


def _refused(entries: dict[int, Entry]) -> tuple[list[int], list[str]]:
    refused = {rank: entry for rank, entry in entries.items() if entry.state == "refused"}
    return [*refused], [f"{_called(rank, e)}, and its arguments were refused: {e.text}" for rank, e in refused.items()]


def _plan(entry: Entry) -> str:
    routing = entry.plan - ROUTING
    return f"routing {routing}" if routing >= 0 else f"plan {entry.plan}" if entry.plan else "no plan"


def _different(entries: dict[int, Entry]) -> tuple[list[int], list[str]]:
    """Return the ranks that call another operation, or the same on other elements or in other memory."""
    for what, of in (
        ("calls", _family),
        ("uses", _plan),
        ("has tensors in", lambda e: f"{e.memory} memory"),
        ("has elements of", lambda e: e.dtype),
    ):
        sides: dict[str, list[int]] = {}
        for rank, entry in entries.items():
            sides.setdefault(of(entry), []).append(rank)
        if len(sides) == 1:
            continue
        text = [f"{name_ranks(ranks)} {what} {value}{_sites(entries, ranks)}" for value, ranks in sides.items()]
        return _minority(sides), text
    return [], []


def _family(entry: Entry) -> str:
    """Return the operation as ranks compare it: on the host alltoall matches alltoallv."""
    return "alltoall(v)" if entry.memory == "host" and entry.op in ("alltoall", "alltoallv") else entry.op


def _minority(sides: dict[str, list[int]]) -> list[int]:
    """Return the ranks outside of the largest side; all ranks when no side is the largest."""
    most = max(len(ranks) for ranks in sides.values())
    larger = [value for value, ranks in sides.items() if len(ranks) == most]
    return sorted(r for value, ranks in sides.items() if len(larger) > 1 or value != larger[0] for r in ranks)


def _unequal(entries: dict[int, Entry]) -> tuple[list[int], list[str]]:
    """Return the pairs in which one rank sends another number of bytes than the other expects."""
    pairs = [
        (sender, receiver)
        for sender, entry in sorted(entries.items())
        for receiver in sorted(entries)
        if entry.sent[receiver] != entries[receiver].expected[sender]
    ]
    findings = []
    for sender, receiver in pairs:
        sent, expected = entries[sender].sent[receiver], entries[receiver].expected[sender]
        findings.append(
            f"rank {sender} sends {_amount(sent, entries[sender])} to rank {receiver}{_sites(entries, [sender])}, "
            f"which expects {_amount(expected, entries[receiver])}{_sites(entries, [receiver])}"
        )
    involved = Counter(rank for pair in pairs for rank in set(pair))
    most = max(involved.values(), default=0)
    return sorted(rank for rank, count in involved.items() if count == most), findings


def _lost(records: dict[int, Record], entries: dict[int, Entry]) -> list[int]:
    """Return, where ranks have lost a rank, those that have not lost one themselves."""
    if all(entry.error != "PeerLostError" for entry in entries.values()):
        return []
    return sorted(rank for rank in records if rank not in entries or not entries[rank].error)


def _open(record: Record) -> bool:
    return record.fate != "closed"


def _whereabouts(record: Record, number: int, everything: Sequence[Record]) -> str:
    """Describe what a rank does instead of the operation in which the others wait."""
    state = _state_of(record)
    entry = record.entries.get(number)
    if entry is not None:
        text = f"{_called(record.rank, entry)}, and did not finish"
    elif record.last == 0:
        text = f"rank {record.rank} has called nothing on this communicator"
    else:
        last = record.entries[record.last]
        text = f"rank {record.rank} has not come: its last call was {last.op} #{last.number}{_at(last)}, {last.state}"
    text += f" ({state.process})"
    if record.fate != "open":
        text += f"; it has {record.fate} this communicator" + (f": {record.reason}" if record.reason else "")
    for other in _elsewhere(record, everything):
        last = other.entries[other.last]
        text += f"; meanwhile it waits, as rank {other.rank} of {other.label}, in {last.op} #{last.number}{_at(last)}"
    return text


def _elsewhere(record: Record, everything: Sequence[Record]) -> list[Record]:
    """Return the rank's records of other communicators on which it has started an operation. Ranks that are threads of
    one process cannot be told apart there."""
    process = [other for other in everything if (other.host, other.pid) == (record.host, record.pid)]
    if any(other.group == record.group and other.rank != record.rank for other in process):
        return []
    started = [other for other in process if other.last and other.entries[other.last].state == "started"]
    return [other for other in started if other.group != record.group and other.fate == "open"]


def _state_of(record: Record) -> RankState:
    entry = record.entries.get(record.last)
    process = _process(record)
    if entry is None:
        return RankState(record.rank, "none", record.fate, "", 0.0, process, record.reason)
    return RankState(
        record.rank,
        f"{entry.op} #{entry.number}",
        entry.error or entry.state,
        entry.site,
        entry.ended or entry.started,
        process,
        entry.text,
    )


def _process(record: Record) -> str:
    """Describe the state of the process, if this host shows it."""
    if record.host != socket.gethostname():
        return f"pid {record.pid} on {record.host}"
    try:
        facts = Path(f"/proc/{record.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return f"pid {record.pid}, gone"
    if len(facts) < 20 or int(facts[19]) != record.pid_started or facts[0] in "ZX":
        return f"pid {record.pid}, gone"
    return f"pid {record.pid}, {'stopped' if facts[0] in 'tT' else 'alive'}"


def _called(rank: int, entry: Entry) -> str:
    return f"rank {rank} called {entry.op} #{entry.number}{_at(entry)}"


def _at(entry: Entry) -> str:
    return f" at {entry.site}" if entry.site else ""


def _sites(entries: dict[int, Entry], ranks: Iterable[int]) -> str:
    sites = {entries[rank].site for rank in ranks if entries[rank].site}
    return f" ({', '.join(sorted(sites))})" if sites else ""


def _amount(count: int, entry: Entry) -> str:
    if entry.unit_bytes > 1 and count % entry.unit_bytes == 0:
        return f"{count} bytes ({count // entry.unit_bytes} times {entry.unit_bytes})"
    return f"{count} bytes"


def name_ranks(ranks: Sequence[int]) -> str:
    """ "rank 3", "ranks 1, 2, 5"; long lists by their beginning."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
