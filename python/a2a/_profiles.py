"""Traces of other profilers in the timeline of ``a2a trace``, on one clock: those of ``torch.profiler`` and of JAX."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._core import InvalidArgumentError
from ._files import opened, printable

__all__ = ["Profile", "add", "find", "read"]

_MOST = 1 << 30
"""bytes of a file, unpacked"""
_ENDINGS = (".json", ".json.gz")


@dataclass(frozen=True)
class Profile:
    """One profiler's events of one process. Their times are microseconds since ``base``, nanoseconds since 1970."""

    path: Path
    host: str
    base: int
    events: list[dict[str, Any]]


def find(path: str | Path) -> list[Path]:
    """Return the traces in a folder and below, or the file itself."""
    path = Path(path)
    if not path.is_dir():
        return [path]
    return sorted(one for one in path.rglob("*") if one.name.endswith(_ENDINGS) and one.is_file())


def read(path: Path) -> Profile:
    """Read a trace. Raises InvalidArgumentError where it is none, or does not say when it began; OSError."""
    try:
        content = json.loads(_unpacked(path))
        events = content["traceEvents"]
        if not isinstance(events, list) or not all(isinstance(one, dict) for one in events):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError, EOFError, gzip.BadGzipFile, zlib.error):
        raise InvalidArgumentError(f"{path} is no trace of torch.profiler or of JAX") from None
    base = content.get("baseTimeNanoseconds")
    if isinstance(base, int) and not isinstance(base, bool):
        return Profile(path, str(content.get("host_name", "")), base, events)
    space = path.with_name(path.name.partition(".trace.json")[0] + ".xplane.pb")
    if ".trace.json" in path.name and space.is_file():
        return Profile(path, path.name.partition(".trace.json")[0], _start_of(space), events)
    raise InvalidArgumentError(
        f"{path} does not say when it began; torch.profiler says it, and for JAX the .xplane.pb that belongs beside it"
    )


def _unpacked(path: Path) -> bytes:
    with opened(path) as file:
        data = gzip.GzipFile(fileobj=file).read(_MOST + 1) if path.suffix == ".gz" else file.read(_MOST + 1)
    if len(data) > _MOST:
        raise InvalidArgumentError(f"{path} has more than {_MOST >> 20} MiB")
    return data


def _start_of(path: Path) -> int:
    """Return when a profile of JAX began, from its XSpace: a stat of the plane "Task Environment"."""
    with opened(path) as file:
        data = file.read(_MOST)
    try:
        for number, plane in _fields(data):
            if number != 1 or not isinstance(plane, bytes):
                continue
            fields = list(_fields(plane))
            if (2, b"Task Environment") not in fields:
                continue
            names = [dict(_fields(dict(_fields(entry))[2])) for field, entry in fields if field == 5]
            (wanted,) = (one[1] for one in names if one.get(2) == b"profile_start_time")
            stats = (dict(_fields(stat)) for field, stat in fields if field == 6)
            return next(int(stat[3] if 3 in stat else stat[4]) for stat in stats if stat.get(1) == wanted)
    except (ValueError, KeyError, TypeError, IndexError, StopIteration):
        pass
    raise InvalidArgumentError(f"{path} does not say when the profile began")


def _fields(data: Any) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message of protobuf: numbers, and the bytes of texts and messages."""
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        if key & 7 == 0:
            value, at = _number(data, at)
            yield key >> 3, value
        elif key & 7 == 2:
            size, at = _number(data, at)
            yield key >> 3, data[at : at + size]
            at += size
        else:
            at += {1: 8, 5: 4}[key & 7]


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return value, at


def add(timeline: dict[str, Any], origin: int, profiles: list[Profile], moved: Mapping[str, int]) -> None:
    """Add the events of profiles to a timeline of Perfetto whose times begin at ``origin``. ``moved`` has the
    nanoseconds by which the clock of a host is moved."""
    events = timeline["traceEvents"]
    free = 1 + max((one["pid"] for one in events), default=-1)
    for place, profile in enumerate(profiles):
        later = (profile.base + moved.get(profile.host, 0) - origin) / 1e3
        processes: dict[str, int] = {}
        for one in profile.events:
            event = dict(one)
            process = str(event.get("pid", ""))
            event["pid"] = processes.setdefault(process, free + len(processes))
            time = event.get("ts")
            if isinstance(time, int | float) and math.isfinite(time):
                event["ts"] = time + later
            if "id" in event:  # flows of several files have the same
                event["id"] = f"{place}.{event['id']}"
            if event.get("name") == "process_name" and isinstance(event.get("args"), dict):
                event["args"] = {"name": f"{event['args'].get('name', '')} ({printable(profile.path.name)})"}
            events.append(event)
        free += len(processes)
