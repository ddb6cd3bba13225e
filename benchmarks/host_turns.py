"""The driver of host_ranks.py: contenders whose ranks connect to it take turns, and what it measures."""

from __future__ import annotations

import json
import random
import socket
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

TURN_SECONDS = 90.0  # after which a contender that does not answer is left out
MOST_ITERATIONS = 500
Case = tuple[str, int]  # operation, bytes of the tensor of each rank


@dataclass
class Contender:
    name: str
    library: str = ""
    ranks: list[Any] = field(default_factory=list)  # files of their sockets, by rank
    failed: str = ""
    peak_kib: int = 0
    descriptors: int = 0

    def turn(self, case: Case, iterations: int) -> tuple[list[float], int]:
        """Seconds of the slowest rank for each iteration, and how many elements were wrong."""
        for lines in self.ranks:
            print(json.dumps([*case, iterations]), file=lines, flush=True)
        answers = [answer_of(lines) for lines in self.ranks]
        for answer in answers:
            if "error" in answer:
                raise RuntimeError(answer["error"])
        self.peak_kib = max(answer["peak_kib"] for answer in answers)
        self.descriptors = max(answer["descriptors"] for answer in answers)
        slowest = [max(times) for times in zip(*(answer["seconds"] for answer in answers), strict=True)]
        return slowest, sum(answer["wrong"] for answer in answers)

    def dismiss(self) -> None:
        """Its ranks end."""
        for lines in self.ranks:
            lines.close()

    def __str__(self) -> str:
        used = f"{self.peak_kib >> 10} MiB and {self.descriptors} descriptors of a rank at most"
        return f"{self.name}: {self.failed or self.library}; {used}"


def listen(address: str = "", port: int = 0) -> socket.socket:
    return socket.create_server((address, port), backlog=256)


def await_ranks(door: socket.socket, sizes: dict[str, int], seconds: float) -> list[Contender]:
    """The contenders, of so many ranks each. They meet when all have come, or after so many seconds; those of which
    ranks are missing then have failed."""
    came: dict[str, list[Any]] = {name: [] for name in sizes}
    until = time.monotonic() + seconds
    while sum(map(len, came.values())) < sum(sizes.values()) and (left := until - time.monotonic()) > 0:
        door.settimeout(left)
        try:
            connection, _ = door.accept()
        except TimeoutError:
            break
        connection.settimeout(TURN_SECONDS)
        lines = connection.makefile("rw")
        connection.close()  # the file keeps it
        came[lines.readline().strip()].append(lines)
    return [_met(Contender(name), came[name], size) for name, size in sizes.items()]


def _met(contender: Contender, ranks: list[Any], size: int) -> Contender:
    if len(ranks) < size:
        contender.failed = f"{len(ranks)} of {size} ranks came"
        return contender
    for lines in ranks:
        print("meet", file=lines, flush=True)
    by_rank = {}
    for lines in ranks:
        told = answer_of(lines)
        if "error" in told:
            contender.failed = told["error"]
        else:
            contender.library = told["library"]
            by_rank[told["rank"]] = lines
    contender.ranks = [by_rank[rank] for rank in sorted(by_rank)]
    return contender


def answer_of(lines: Any) -> dict[str, Any]:
    try:
        return json.loads(lines.readline() or '{"error": "a rank has ended"}')  # type: ignore[no-any-return]
    except TimeoutError:
        return {"error": f"a rank has not answered for {TURN_SECONDS:.0f} s"}


def measure(contenders: list[Contender], case: Case, seconds: float, rounds: int) -> dict[str, Any]:
    """Every contender once in each round, in a random order. The first, short round warms up."""
    times: dict[str, list[float]] = {}
    wrong: dict[str, int] = {}
    usual: dict[str, float] = {}
    living = [one for one in contenders if not one.failed]
    share = seconds / max(len(living), 1) / (rounds + 0.5)
    order = random.Random(1)
    for turn in range(rounds + 1):
        for one in order.sample(living, len(living)):
            if one.failed:
                continue
            iterations = 2 if turn == 0 else max(2, min(MOST_ITERATIONS, int(share / usual[one.name])))
            try:
                took, bad = one.turn(case, iterations)
            except (RuntimeError, OSError) as error:
                one.failed = f"{case[0]} of {case[1]} bytes: {error}"
                continue
            wrong[one.name] = wrong.get(one.name, 0) + bad
            usual[one.name] = median(took)
            if turn > 0:
                times.setdefault(one.name, []).append(median(took))
    return {"op": case[0], "bytes": case[1], "seconds": times, "wrong": wrong}


def bound(op: str, nbytes: int, hosts: int, each: int, rate: float | None) -> float | None:
    """Seconds that the links need: both directions at once, each host's ranks share one."""
    if rate is None or op not in ("allreduce", "alltoall"):
        return None
    parts = (hosts - 1) / hosts
    return (2 * parts if op == "allreduce" else each * parts) * nbytes / rate


def header(names: list[str]) -> str:
    columns = "".join(f"{name:>34}" for name in names)
    return f"{'operation':>10} {'bytes':>9} {'bound us':>9}{columns}\n{'':>30}" + len(names) * (
        f"{'us [lowest, highest]':>24} {'/bound':>6}  "
    )


def line(point: dict[str, Any], names: list[str], least: float | None) -> str:
    text = f"{point['op']:>10} {point['bytes']:>9} " + (f"{1e6 * least:>9.0f}" if least else f"{'-':>9}")
    for name in names:
        rounds = point["seconds"].get(name)
        if not rounds:
            text += f"{'-':>24}{'':>10}"
            continue
        middle = median(rounds)
        figures = f"{1e6 * middle:.0f} [{1e6 * min(rounds):.0f}, {1e6 * max(rounds):.0f}]"
        text += f"{figures:>24} {f'{middle / least:.2f}' if least else '-':>6}" + (
            "  " if not point["wrong"][name] else " !"
        )
    return text


def verdicts(points: list[dict[str, Any]], ours: str) -> list[str]:
    """How many times as long the others took as ``ours``, by round."""
    lines = []
    for point in points:
        mine = point["seconds"].get(ours)
        for name, theirs in point["seconds"].items():
            if not mine or name == ours:
                continue
            ratios = sorted(other / own for other, own in zip(theirs, mine, strict=False))
            lines.append(
                f"{point['op']:>10} {point['bytes']:>9}  {name} / {ours}: {median(ratios):.2f} "
                f"[{ratios[0]:.2f}, {ratios[-1]:.2f}]"
            )
    return lines
