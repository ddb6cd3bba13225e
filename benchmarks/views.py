"""allgather_views beside allgather, from 8 B to 64 MiB of each rank, in the same ranks, taking turns.

    python benchmarks/views.py                             # two ranks
    python benchmarks/views.py --ranks 4 -e 16M --json run.json
    python benchmarks/views.py --no-rewrite                # what the calls alone take

Every rank's tensor comes from ``comm.empty`` and is rewritten before each iteration. Ranks that have just written much
do not come at once, and their caches hold nothing else: with ``--no-rewrite`` the tensors stay as they are, which shows
that the views do not grow with the size. Columns as in nccl-tests: bytes and elements of one rank, type; then for each
of the two calls its time on the slowest rank, algbw (bytes that a rank gets / time), busbw and the number of wrong
elements; ratio is allgather's time over that of the views, the median of the rounds with their quartiles. The time of a
round is the slowest rank's median; "best" is its shortest of all, for busy machines, where the ranks do not come at
once. The time of the views is that of the call, of making an array of each, and of the release with the wait for
everybody else's. Nothing is read in it: the second ratio is that of both calls with a sum over all that was gathered.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import numpy.typing as npt

import a2a

Words = npt.NDArray[np.int64]
Read = Callable[[Sequence[Words]], int]
CALLS = ("allgather", "views")


class Gather:
    """So many words of every rank, both ways."""

    def __init__(self, comm: a2a.Communicator, words: int, rewrite: bool) -> None:
        self.comm, self.words, self.rewrite, self.round = comm, words, rewrite, 0
        self.send: Words = comm.empty(words, "int64")
        self.recv: Words = np.empty((comm.size, words), np.int64)
        self.fill()

    def begin(self) -> None:
        """Before each iteration."""
        if self.rewrite:
            self.fill()
        self.comm.barrier()

    def fill(self) -> None:
        self.round += 1
        self.send[:] = self._word(self.comm.rank)
        self.recv[:] = -1

    def wrong(self, parts: Sequence[Words]) -> int:
        return sum(int((part != self._word(rank)).sum()) for rank, part in enumerate(parts))

    def _word(self, rank: int) -> int:
        return self.round * 1_000_003 + rank

    def allgather(self, read: Read) -> int:
        self.comm.allgather(self.send, self.recv)
        return read(list(self.recv))

    def views(self, read: Read) -> int:
        views = self.comm.allgather_views(self.send)
        found = read(list(views))
        views.release()
        views.wait_released()
        return found


def nothing(_: Sequence[Words]) -> int:
    return 0


def everything(parts: Sequence[Words]) -> int:
    return sum(int(part.sum()) for part in parts)


def round_us(gather: Gather, name: str, read: Read, iterations: int) -> tuple[float, float]:
    """The median and the shortest of this rank's times, without the first: it finds the caches as the other call left
    them."""
    call, spent = getattr(gather, name), []
    for _ in range(1 + iterations):
        gather.begin()
        start = time.perf_counter_ns()
        call(read)
        spent.append(time.perf_counter_ns() - start)
    return median(spent[1:]) / 1e3, min(spent[1:]) / 1e3


def measure(
    comm: a2a.Communicator, sizes: list[int], rounds: int, seconds: float, rewrite: bool
) -> list[dict[str, Any]]:
    rows = []
    for size in sizes:
        gather = Gather(comm, size // 8, rewrite)
        kinds = [(name, read) for read in (nothing, everything) for name in CALLS]
        for name, read in kinds:
            round_us(gather, name, read, 2)
        # The pace of one rank sets how many iterations a round has, alike for all.
        pace = np.array([max(round_us(gather, name, everything, 3)[0] for name in CALLS)])
        paces = np.empty(comm.size)
        comm.allgather(pace, paces)
        iterations = max(1, min(200, int(seconds * 1e6 / rounds / len(kinds) / paces.max())))
        times = np.array([[round_us(gather, name, read, iterations) for name, read in kinds] for _ in range(rounds)])
        wrong = []
        for name in CALLS:
            gather.fill()
            comm.barrier()
            wrong.append(getattr(gather, name)(gather.wrong))
        slowest, all_wrong = np.empty((comm.size, *times.shape)), np.empty((comm.size, 2), np.int64)
        comm.allgather(times, slowest)
        comm.allgather(np.array(wrong), all_wrong)
        rows.append(row_of(size, comm.size, slowest.max(axis=0), all_wrong.sum(axis=0).tolist()))
        if comm.rank == 0:
            print(line_of(rows[-1]), flush=True)
    return rows


def row_of(size: int, ranks: int, times: npt.NDArray[np.float64], wrong: list[int]) -> dict[str, Any]:
    row: dict[str, Any] = {"size": size, "count": size // 8, "type": "int64"}
    middle, best = times[..., 0], times[..., 1].min(axis=0)
    for number, name in enumerate(CALLS):
        us = median(middle[:, number])
        algbw = size * ranks / us / 1e3
        row[name] = {"us": us, "best": best[number], "algbw": algbw, "busbw": algbw * (ranks - 1) / ranks}
        row[name]["wrong"] = wrong[number]
    row["ratio"] = quantiles(middle[:, 0] / middle[:, 1], n=4)
    row["ratio, read"] = quantiles(middle[:, 2] / middle[:, 3], n=4)
    return row


HEAD = (
    "#     size     count   type"
    + 2 * "   time us   best us    algbw    busbw #wrong"
    + "  ratio [quartiles]       ratio, read"
)


def line_of(row: dict[str, Any]) -> str:
    line = f"{row['size']:10} {row['count']:9} {row['type']:>6}"
    for name in CALLS:
        call = row[name]
        line += f" {call['us']:9.2f} {call['best']:9.2f} {call['algbw']:8.2f} {call['busbw']:8.2f} {call['wrong']:6}"
    for name in ("ratio", "ratio, read"):
        low, middle, high = row[name]
        line += f"  {middle:.2f} [{low:.2f}, {high:.2f}]"
    return line


def bytes_of(text: str) -> int:
    return int(text.rstrip("KM")) << {"K": 10, "M": 20}.get(text[-1], 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("-b", type=bytes_of, default=8, metavar="BYTES", help="smallest size (8)")
    parser.add_argument("-e", type=bytes_of, default=64 << 20, metavar="BYTES", help="largest size (64M)")
    parser.add_argument("-f", type=int, default=8, help="factor between sizes (8)")
    parser.add_argument("--rounds", type=int, default=9, help="in which the calls take turns (9)")
    parser.add_argument("--seconds", type=float, default=2, help="for each size (2)")
    parser.add_argument("--no-rewrite", action="store_true", help="write the tensors once instead of before each call")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.b < 8 or options.f < 2 or options.rounds < 2:
        parser.error("at least 8 bytes, a factor of 2, and 2 rounds")
    sizes = [options.b]
    while sizes[-1] * options.f <= options.e:
        sizes.append(sizes[-1] * options.f)
    if sizes[-1] < options.e:
        sizes.append(options.e)
    load = os.getloadavg()[0]
    rewrite = not options.no_rewrite
    cpus, how = len(os.sched_getaffinity(0)), "" if rewrite else ", nothing rewritten"
    print(f"# {options.ranks} ranks, {cpus} CPUs, load {load:.1f}, {options.rounds} rounds{how}")
    print(HEAD)
    rows = a2a.spawn(measure, options.ranks, sizes, options.rounds, options.seconds, rewrite)[0]
    if options.json:
        run = {"ranks": options.ranks, "load": load, "rewrite": rewrite, "rows": rows}
        options.json.write_text(json.dumps(run, indent=2) + "\n")
    if any(row[name]["wrong"] for row in rows for name in CALLS):
        raise SystemExit("wrong elements")


if __name__ == "__main__":
    main()
