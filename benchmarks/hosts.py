"""Between hosts: a2a against mpi4py's Alltoallv, over the same MPI, in the same processes, round by round.

    mpiexec -n 8 python benchmarks/hosts.py                      # wherever mpiexec puts the ranks
    A2A_HOSTS=a,a,a,a,b,b,b,b mpiexec -n 8 python benchmarks/hosts.py   # hosts that are none: MPI still shares memory

Inputs are rewritten and outputs are checked in each iteration; with --back-to-back in each round, as other benchmarks
do: the computation in between, which ranks that share CPUs wait for, is then not in the figures. Columns as in
nccl-tests: bytes that a rank sends in all, elements, type; then for each contender the time of the slowest rank,
algbw, busbw and the number of wrong elements; ratio is mpi4py's time over a2a's, the median of the rounds with their
quartiles; msgs is how many messages all ranks together send between hosts for one exchange.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import numpy.typing as npt
from environments import cache_directory, compiled
from mpi4py import MPI

import a2a
from a2a import _core

Words = npt.NDArray[np.int64]
Call = Callable[[], None]


class Exchange:
    """An equal exchange of so many words with each rank, said with explicit counts."""

    def __init__(self, comm: a2a.Communicator, words: int, library: ctypes.CDLL) -> None:
        n = comm.size
        self.comm, self.words, self.turns = comm, words, 0
        peers = np.repeat(np.arange(n, dtype=np.int64), words)
        self.send: Words = comm.rank * 1009 + peers
        self.recv: Words = np.zeros(n * words, np.int64)
        self.counts = [words] * n
        self._first: Words = peers * 1009 + comm.rank  # what comes before the first turn; each adds 1
        self._sum = int(self._first.sum())
        places = [(ctypes.c_void_p(a.ctypes.data), ctypes.c_size_t(a.size)) for a in (self.recv, self.send)]
        self._turn: Callable[[], int] = partial(library.turn, *places[0], *places[1])

    def turn(self) -> int:
        """Reads the output and rewrites the input, in one foreign call: where ranks share CPUs, it is part of
        everybody's time. Returns how many words were wrong."""
        read = self._turn()
        self.turns += 1
        expected = self._sum + (self.turns - 1) * self.recv.size
        return 0 if read == expected else self.wrong()

    def wrong(self) -> int:
        """How many words of the output are not those of before the last turn."""
        return int(np.count_nonzero(self.recv - self._first != self.turns - 1))

    def a2a(self) -> None:
        self.comm.alltoallv(self.send, self.counts, self.recv, self.counts)

    def mpi4py(self) -> None:
        MPI.COMM_WORLD.Alltoallv([self.send, self.counts, MPI.INT64_T], [self.recv, self.counts, MPI.INT64_T])


TimeRound = Callable[[Exchange, Call, int], tuple[float, int]]


def round_us(exchange: Exchange, call: Call, iterations: int) -> tuple[float, int]:
    """The mean of this rank's times, and what was wrong. The exchanges themselves keep the ranks together: where ranks
    share CPUs, those that are still in a barrier of MPI's, which does not yield, would be counted."""
    spent, wrong = 0, 0
    MPI.COMM_WORLD.Barrier()
    for _ in range(iterations):
        start = time.perf_counter_ns()
        call()
        spent += time.perf_counter_ns() - start
        wrong += exchange.turn()
    return spent / iterations / 1e3, wrong + exchange.wrong()


def back_to_back_us(exchange: Exchange, call: Call, iterations: int) -> tuple[float, int]:
    """The same with nothing between the calls."""
    exchange.recv.fill(-1)
    MPI.COMM_WORLD.Barrier()
    call()
    start = time.perf_counter_ns()
    for _ in range(iterations):
        call()
    spent = time.perf_counter_ns() - start
    return spent / iterations / 1e3, exchange.turn() + exchange.wrong()


def slowest(times: list[float]) -> list[float]:
    return [max(of_all) for of_all in zip(*MPI.COMM_WORLD.allgather(times), strict=True)]


def messages(exchange: Exchange) -> int:
    before = _core.host_facts(exchange.comm)["messages"]
    exchange.a2a()
    return MPI.COMM_WORLD.allreduce(_core.host_facts(exchange.comm)["messages"] - before)  # type: ignore[no-any-return]


def measure(exchange: Exchange, size: int, rounds: int, time_round: TimeRound) -> dict[str, Any]:
    """A contender's round lasts 0.2 s, 5 iterations at least: with fewer, what the ranks do before the first and after
    the last one counts."""
    calls = {"a2a": exchange.a2a, "mpi4py": exchange.mpi4py}
    times: dict[str, list[float]] = {name: [] for name in calls}
    wrong = dict.fromkeys(calls, 0)
    warm = [time_round(exchange, call, 3)[0] for call in calls.values()]
    iterations = max(5, int(0.2e6 / max(slowest(warm))))
    for number in range(rounds):
        for name in sorted(calls, reverse=number % 2 == 1):  # who comes first the next one follows
            time_us, bad = time_round(exchange, calls[name], iterations)
            times[name].append(time_us)
            wrong[name] += bad
    worst = {name: slowest(values) for name, values in times.items()}
    ratios = [mpi / ours for ours, mpi in zip(worst["a2a"], worst["mpi4py"], strict=True)]
    return {
        "size": size,
        "words": exchange.words,
        "time_us": {name: median(values) for name, values in worst.items()},
        "wrong": {name: MPI.COMM_WORLD.allreduce(bad) for name, bad in wrong.items()},
        "ratio": median(ratios),
        "quartiles": quantiles(ratios, n=4)[::2],
        "messages": messages(exchange),
    }


def row(point: dict[str, Any], ranks: int) -> str:
    total = point["size"] * ranks
    text = f"{total:>12} {point['words'] * ranks:>12} {'int64':>6}"
    for name, time_us in point["time_us"].items():
        algbw = total / time_us / 1e3
        text += f" {time_us:>11.1f} {algbw:>7.3f} {algbw * (ranks - 1) / ranks:>7.3f} {point['wrong'][name]:>6}"
    low, high = point["quartiles"]
    return f"{text} {point['ratio']:>7.2f} {low:>6.2f}-{high:<6.2f} {point['messages']:>5}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-b", type=int, default=8, help="smallest size: bytes for each peer")
    parser.add_argument("-e", type=int, default=1 << 20, help="largest size")
    parser.add_argument("-f", type=int, default=4, help="factor between sizes")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--back-to-back", action="store_true", help="nothing between the calls")
    parser.add_argument("-J", "--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()

    library = ctypes.CDLL(str(compiled(cache_directory(), "barrier.cc", library=True)))
    library.turn.restype = ctypes.c_int64
    comm = a2a.init(bootstrap=MPI.COMM_WORLD)
    facts = _core.host_facts(comm)
    if comm.rank == 0:
        print(f"# {comm.size} ranks on {facts['hosts']} hosts; {MPI.Get_library_version().splitlines()[0]}")
        contender = f"{'time(us)':>11} {'algbw':>7} {'busbw':>7} {'#wrong':>6}"
        print(f"#{'size(B)':>11} {'count':>12} {'type':>6} {contender} {contender} {'ratio':>7} {'quartiles':^13} msgs")
    time_round = back_to_back_us if options.back_to_back else round_us
    points, size = [], options.b
    while size <= options.e:
        exchange = Exchange(comm, max(1, size // 8), library)
        points.append(measure(exchange, size, options.rounds, time_round))
        if comm.rank == 0:
            print(row(points[-1], comm.size), flush=True)
        size *= options.f
    if comm.rank == 0 and options.json:
        options.json.write_text(json.dumps({"ranks": comm.size, **facts, "points": points}, indent=1))
    wrong = sum(sum(point["wrong"].values()) for point in points)
    comm.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
