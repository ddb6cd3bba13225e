"""How much of an exchange hides behind what the program does meanwhile: ``python benchmarks/overlap.py``.

Each rank starts an alltoall, works for about as long as the exchange takes alone, and waits. ``elsewhere`` is work that
needs no CPU of the host, as on a device: it sleeps. ``here`` is NumPy's. "hidden" is what the two together save, in per
cent of what they could save at most: 0 one after the other, 100 the shorter one for nothing. With ``one rank``, rank 0
alone works, as ``here``, and the others wait at once. "others" is when they are through, in per cent of the exchange
alone: about 100 says that they needed nothing of rank 0 after its start, 200 that they waited for its work to end; what
is hidden there was done by them. Every round measures everything in turn. Times in microseconds of the slowest rank,
medians of the rounds with their quartiles. Outputs are checked.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import a2a

MIB = 1 << 20
SIZES = (MIB, 4 * MIB, 16 * MIB, 64 * MIB)
PILOT_ROUNDS = 5


def work_here(seconds: float) -> None:
    block = np.ones(4096)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        np.multiply(block, 1.0000001, out=block)


Work = Callable[[], object]
ONE = "one rank"
KINDS: dict[str, Callable[[float], None]] = {"elsewhere": time.sleep, "here": work_here, ONE: work_here}
COLUMNS = ("exchange", "work", "both", "hidden", "others")


class Exchange:
    """An equal exchange of ``size`` bytes per pair of ranks, beside work."""

    def __init__(self, comm: a2a.Communicator, size: int) -> None:
        self.comm, self.words, self.turn, self.wrong = comm, size // 8, 0, 0
        self.recv = np.zeros(comm.size * self.words, np.int64)
        self.send = np.empty_like(self.recv)

    def alone(self) -> float:
        """Seconds, as of all of these."""
        return self.beside(lambda: None)

    def beside(self, work: Work) -> float:
        def body() -> None:
            operation = self.comm.alltoall(self.send, self.recv, async_op=True)
            assert operation is not None
            work()
            operation.wait()

        spent = self.timed(body)
        right = np.repeat(100 * np.arange(self.comm.size) + self.comm.rank, self.words) + 10_000 * self.turn
        self.wrong += int((self.recv != right).sum())
        return spent

    def timed(self, body: Work) -> float:
        self.turn += 1
        self.send[:] = np.repeat(np.arange(self.comm.size) + 100 * self.comm.rank, self.words) + 10_000 * self.turn
        self.comm.barrier()
        begin = time.perf_counter()
        body()
        return time.perf_counter() - begin


def of_all(comm: a2a.Communicator, own: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The same of every rank, [rank, ...]."""
    own = np.asarray(own, np.float64)
    result = np.empty((comm.size, *own.shape))
    comm.allgather(own, result)
    return result


def measure(comm: a2a.Communicator, size: int, rounds: int) -> dict[str, Any]:
    """Quartiles over the rounds, in microseconds: the exchange alone, and per kind of work the work alone and both."""
    exchange = Exchange(comm, size)
    seconds = of_all(comm, [exchange.alone() for _ in range(PILOT_ROUNDS)]).max(axis=0)
    length = statistics.median(seconds[1:].tolist())  # the first one touches new memory
    own = []
    for _ in range(rounds):
        own.append([exchange.alone()])
        for kind, kind_of_work in KINDS.items():
            idle = kind == ONE and comm.rank > 0
            work = partial(kind_of_work, 0.0 if idle else length)
            own[-1] += [exchange.timed(work), exchange.beside(work)]
    times = 1e6 * of_all(comm, own)  # [rank, round, what]
    alone, *pairs = times.max(axis=0).T
    result: dict[str, Any] = {"exchange": quartiles(alone)}
    for kind, worked, both in zip(KINDS, pairs[::2], pairs[1::2], strict=True):
        hidden = (alone + worked - both) / np.minimum(alone, worked)
        result[kind] = {"work": quartiles(worked), "both": quartiles(both), "hidden": quartiles(100 * hidden)}
    result[ONE]["others"] = quartiles(100 * times[1:, :, -1].max(axis=0) / alone)
    return result | {"wrong": int(of_all(comm, exchange.wrong).sum())}


def quartiles(values: npt.NDArray[np.float64]) -> list[float]:
    return statistics.quantiles(values.tolist(), n=4)


def told(values: list[float]) -> str:
    low, middle, high = values
    return f"{middle:.0f} [{low:.0f}, {high:.0f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes per pair of ranks")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.ranks < 2 or options.rounds < 2:
        parser.error("at least 2 ranks and 2 rounds")
    print(f"# {options.ranks} ranks, {len(os.sched_getaffinity(0))} CPUs")
    print(f"{'bytes':>10} {'thread':>6} {'work':>9}", *(f"{name:>22}" for name in COLUMNS), "#wrong")
    rows = []
    for size in options.sizes:
        for thread in ("0", "1"):
            os.environ["A2A_PROGRESS_THREAD"] = thread
            row = a2a.spawn(measure, options.ranks, size, options.rounds)[0] | {"size": size, "thread": int(thread)}
            rows.append(row)
            for kind in KINDS:
                figures = {"exchange": row["exchange"], **row[kind]}
                cells = (f"{told(figures[name]) if name in figures else '':>22}" for name in COLUMNS)
                print(f"{size:>10} {thread:>6} {kind:>9}", *cells, f"{row['wrong']:>6}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
