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
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

import a2a
from a2a import _core

Words = npt.NDArray[np.int64]
Call = Callable[[], None]


class Exchange:
    """An equal exchange of so many words with each rank, said with explicit counts. Filling and checking are a few
    calls on whole arrays: where ranks share CPUs, they are part of everybody's time."""

    def __init__(self, comm: a2a.Communicator, words: int) -> None:
        n = comm.size
        self.comm, self.words, self.round = comm, words, 0
        self.send: Words = np.empty(n * words, np.int64)
        self.recv: Words = np.empty(n * words, np.int64)
        self.counts = [words] * n
        peers = np.repeat(np.arange(n, dtype=np.int64), words)
        self._sent: Words = comm.rank * 1009 + peers
        self._expected: Words = peers * 1009 + comm.rank
        self._differs = np.empty(n * words, np.bool_)

    def fill(self) -> None:
        self.round += 1
        np.add(self._sent, self.round * 1_000_003, out=self.send)
        self.recv.fill(-1)

    def wrong(self) -> int:
        self.recv -= self.round * 1_000_003
        np.not_equal(self.recv, self._expected, out=self._differs)
        return int(np.count_nonzero(self._differs))

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
        exchange.fill()
        start = time.perf_counter_ns()
        call()
        spent += time.perf_counter_ns() - start
        wrong += exchange.wrong()
    return spent / iterations / 1e3, wrong


def back_to_back_us(exchange: Exchange, call: Call, iterations: int) -> tuple[float, int]:
    """The same with nothing between the calls."""
    exchange.fill()
    MPI.COMM_WORLD.Barrier()
    call()
    start = time.perf_counter_ns()
    for _ in range(iterations):
        call()
    return (time.perf_counter_ns() - start) / iterations / 1e3, exchange.wrong()


def slowest(times: list[float]) -> list[float]:
    return [max(of_all) for of_all in zip(*MPI.COMM_WORLD.allgather(times), strict=True)]


def messages(comm: a2a.Communicator, exchange: Exchange) -> int:
    before = _core.host_facts(comm)["messages"]
    exchange.fill()
    exchange.a2a()
    return MPI.COMM_WORLD.allreduce(_core.host_facts(comm)["messages"] - before)  # type: ignore[no-any-return]


def measure(comm: a2a.Communicator, size: int, rounds: int, time_round: TimeRound) -> dict[str, Any]:
    exchange = Exchange(comm, max(1, size // 8))
    iterations = max(3, min(50, 2_000_000 // size))
    calls = {"a2a": exchange.a2a, "mpi4py": exchange.mpi4py}
    times: dict[str, list[float]] = {name: [] for name in calls}
    wrong = dict.fromkeys(calls, 0)
    for call in calls.values():
        time_round(exchange, call, 2)
    for _ in range(rounds):
        for name, call in calls.items():
            time_us, bad = time_round(exchange, call, iterations)
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
        "messages": messages(comm, exchange),
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

    comm = a2a.init(bootstrap=MPI.COMM_WORLD)
    facts = _core.host_facts(comm)
    if comm.rank == 0:
        print(f"# {comm.size} ranks on {facts['hosts']} hosts; {MPI.Get_library_version().splitlines()[0]}")
        contender = f"{'time(us)':>11} {'algbw':>7} {'busbw':>7} {'#wrong':>6}"
        print(f"#{'size(B)':>11} {'count':>12} {'type':>6} {contender} {contender} {'ratio':>7} {'quartiles':^13} msgs")
    time_round = back_to_back_us if options.back_to_back else round_us
    points, size = [], options.b
    while size <= options.e:
        points.append(measure(comm, size, options.rounds, time_round))
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
