"""The records of ``A2A_DUMP`` in the format that torch.distributed.flight_recorder reads, one file for each process."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import _files, dump
from ._core import InvalidArgumentError

__all__ = ["traces_of", "write", "write_traces"]

_VERSION = "2.10"  # of torch's format
_LIBRARY = "gloo"  # torch's analysis knows the operations of its own libraries only; this one is of the host, too
_STATES = {"started": "started", "finished": "completed", "failed": "scheduled", "refused": "scheduled"}
_DTYPES = {
    "bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long",
    "float16": "Half", "float32": "Float", "float64": "Double", "bfloat16": "BFloat16", "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}  # fmt: skip

# Operation -> torch's name. The others move blocks between pairs of ranks.
_NAMES = {
    "allgather": "all_gather",
    "allreduce": "all_reduce",
    "barrier": "barrier",
    "broadcast": "broadcast",
    "gather": "gather",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "scatter": "scatter",
    "split": "split",
    "group": "split",
}


def write(records: Sequence[str | Path], folder: str | Path, prefix: str = "trace_") -> list[Path]:
    """Write the records among these files and folders as ``folder/trace_<rank>`` and return the files. The folder is
    made. Raises InvalidArgumentError where there are no records, or none of a group of all processes."""
    return write_traces([dump.read(path) for path in dump.find(records)], folder, prefix)


def write_traces(records: Sequence[dump.Record], folder: str | Path, prefix: str = "trace_") -> list[Path]:
    """The same for records that have been read."""
    traces = traces_of(records)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for rank, trace in traces.items():
        written.append(folder / f"{prefix}{rank}")
        _files.write(written[-1], pickle.dumps(trace))
    return written


def traces_of(records: Sequence[dump.Record]) -> dict[int, dict[str, Any]]:
    """Return torch's trace of each process, by its rank in the largest group."""
    if not records:
        raise InvalidArgumentError("there are no records of A2A_DUMP here")
    groups: dict[int, list[dump.Record]] = {}
    for record in sorted(records, key=lambda one: one.opened):
        groups.setdefault(record.group, []).append(record)
    world = max(groups.values(), key=lambda members: members[0].size)  # the first of those of one size
    ranks = {_process(record): record.rank for record in world}
    lost = [record.path.name for record in records if _process(record) not in ranks]
    if lost:
        raise InvalidArgumentError(
            f"{', '.join(lost)}: these processes are in no record of the largest group; pass the records of one job"
        )
    traces = {rank: _Trace() for rank in sorted(ranks.values())}
    for number, members in enumerate(groups.values()):
        whole = sorted(ranks[_process(record)] for record in members)
        if members is world:
            whole = list(range(members[0].size))  # also those that have left no record
        for record in members:
            traces[ranks[_process(record)]].add(record, number, whole)
    return {rank: trace.finished() for rank, trace in traces.items()}


def _process(record: dump.Record) -> tuple[str, int, int]:
    return record.host, record.pid, record.pid_started


class _Trace:
    """The trace of one process, of one record after the other."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, str]] = {}
        self._entries: list[dict[str, Any]] = []

    def add(self, record: dump.Record, number: int, ranks: list[int]) -> None:
        name = str(number)
        self._groups[name] = {"name": name, "desc": record.label, "ranks": str(ranks)}
        self._entries += [_entry_of(one, record, number, name) for one in record.entries.values() if one.op != "close"]

    def finished(self) -> dict[str, Any]:
        entries = sorted(self._entries, key=lambda one: one["time_created_ns"])
        for at, entry in enumerate(entries):
            entry["record_id"] = at
        return {"version": _VERSION, "pg_config": self._groups, "pg_status": {}, "entries": entries}


def _entry_of(one: dump.Entry, record: dump.Record, number: int, name: str) -> dict[str, Any]:
    sent, received = _elements(one, record)
    dtype = _DTYPES.get(one.dtype, one.dtype)
    started, ended = round(one.started * 1e9), round(one.ended * 1e9) or None
    file, _, place = one.site.partition(":")
    line, _, function = place.partition(" in ")
    return {
        "pg_id": number, "process_group": (name, record.label), "collective_seq_id": one.number, "p2p_seq_id": 0,
        "op_id": one.number, "profiling_name": f"{_LIBRARY}:{_NAMES.get(one.op, 'all_to_all')}",
        "time_created_ns": started, "time_discovered_started_ns": started, "time_discovered_completed_ns": ended,
        "input_sizes": [[sent]], "input_dtypes": [dtype], "output_sizes": [[received]], "output_dtypes": [dtype],
        "state": _STATES.get(one.state, "scheduled"), "retired": one.state == "finished", "timeout_ms": 0,
        "is_p2p": False, "frames": [{"name": function, "filename": file, "line": int(line) if line.isdigit() else 0}],
    }  # fmt: skip


def _elements(one: dump.Entry, record: dump.Record) -> tuple[int, int]:
    """Return the elements of the input and of the output, as torch's analysis compares them: those of a root, and of
    who has none, are those of all."""
    unit = max(one.unit_bytes, 1)
    sent, expected = [count // unit for count in one.sent], [count // unit for count in one.expected]
    if one.op in ("allreduce", "broadcast", "reduce"):
        return max(sent + expected), max(sent + expected)
    if one.op == "allgather":
        return max(sent), sum(expected)
    if one.op == "gather":
        return max(sent), sum(expected)
    if one.op == "reduce_scatter":
        return sum(sent), expected[record.rank]
    return sum(sent), sum(expected)
