"""The ranks of other hosts for ``a2a status``: each host says what it sees, asked by ssh or a program like it. Clocks
of hosts differ, so times travel as ages."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from ._status_pages import Entry, Page, Wait
from ._status_ranks import Facts, Rank, Sample

__all__ = ["RSH", "Remote", "merged", "pack", "unpack"]

RSH = "ssh -o BatchMode=yes -o ConnectTimeout=5"
_LIMIT = 10.0
_TIMES = ("opened", "started", "ended_at")


def pack(samples: Iterable[Sample]) -> str:
    """Return samples as one line for unpack(), on any host."""
    return json.dumps(
        [{"age": time.monotonic() - one.at, "ranks": [_packed(r, one.at) for r in one.ranks]} for one in samples]
    )


def unpack(line: str, away: str, now: float) -> list[Sample]:
    """Return the samples of a host, with times of the clock of this one. Raises ValueError for what pack() did not
    write."""
    try:
        return [_sample(one, away, now - one["age"]) for one in json.loads(line)]
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"its answer is none of this version of a2a: {error!r}") from None


def merged(here: Sample, others: Iterable[Sample]) -> Sample:
    """Return one sample of the ranks of all hosts, each rank once."""
    ranks: dict[tuple[str, int, int], Rank] = {}
    for rank in [rank for one in (here, *others) for rank in one.ranks]:
        ranks.setdefault(rank.key, rank)
    return Sample(here.at, tuple(ranks.values()))


class Remote:
    """Looks that are under way on other hosts."""

    def __init__(self, hosts: Sequence[str], rsh: str) -> None:
        self._started: dict[str, subprocess.Popen[str] | OSError] = {}
        for host in dict.fromkeys(hosts):
            command = [*shlex.split(rsh), host, sys.executable, "-m", "a2a", "status", "--sample"]
            try:
                self._started[host] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
            except OSError as error:
                self._started[host] = error

    def samples(self) -> tuple[list[list[Sample]], list[str]]:
        """Wait for all. Returns the samples of each host that has answered, and a line about each that has not."""
        until = time.monotonic() + _LIMIT
        found, problems = [], []
        for host, process in self._started.items():
            try:
                if isinstance(process, OSError):
                    raise process
                out, told = process.communicate(timeout=max(0.0, until - time.monotonic()))
                if process.returncode != 0:
                    raise ValueError((told.strip() or f"exited with {process.returncode}").splitlines()[-1])
                found.append(unpack(out, host, time.monotonic()))
            except subprocess.TimeoutExpired:
                problems.append(f"{host}: no answer within {_LIMIT:.0f} s")
            except (OSError, ValueError) as error:
                problems.append(f"{host}: {error}")
        self.end()
        return found, problems

    def end(self) -> None:
        """End those that have not answered."""
        for process in self._started.values():
            if isinstance(process, subprocess.Popen):
                process.kill()
                process.communicate()


def _packed(rank: Rank, at: float) -> dict[str, Any]:
    """Return a rank with ages in the place of times."""
    packed = asdict(rank)
    del packed["page"]["entries"]
    for entry in packed["entries"]:
        for one in [(entry, name) for name in _TIMES] + [
            (w, name) for w in entry["waits"] for name in ("since", "seen")
        ]:
            one[0][one[1]] = at - one[0][one[1]]
    return packed


def _sample(packed: dict[str, Any], away: str, at: float) -> Sample:
    return Sample(at, tuple(_rank(one, away, at) for one in packed["ranks"]))


def _rank(packed: dict[str, Any], away: str, at: float) -> Rank:
    entries = tuple(_entry(one, at) for one in packed["entries"])
    page = Page(**packed["page"], entries=entries)
    facts = Facts(**packed["facts"])
    return Rank(packed["pid"], page, entries, packed["thread"], facts, packed["shared_bytes"], away)


def _entry(packed: dict[str, Any], at: float) -> Entry:
    first, second = (_wait(one, at) for one in packed["waits"])
    known = {one.name: packed[one.name] for one in fields(Entry)}
    return Entry(**known | {name: at - packed[name] for name in _TIMES} | {"waits": (first, second)})


def _wait(packed: dict[str, Any], at: float) -> Wait:
    wait = Wait(**packed)
    return replace(wait, since=at - wait.since, seen=at - wait.seen, ranks=tuple(wait.ranks))
