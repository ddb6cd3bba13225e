"""How much of an exchange hides behind what the program does meanwhile: ``python benchmarks/overlap.py``.

Each rank starts an alltoallv, works for about as long as the exchange takes alone, and waits. ``elsewhere`` is work
that needs no CPU of the host, as on a device: it sleeps. ``here`` is NumPy's. "hidden" is what the two together save,
of what they could save at most: 0 % one after the other, 100 % the shorter one for nothing. Outputs are checked.
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

import a2a

MIB = 1 << 20
SIZES = (MIB, 4 * MIB, 16 * MIB, 64 * MIB)


def work_here(seconds: float) -> None:
    block = np.ones(4096)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        np.multiply(block, 1.0000001, out=block)


WORK: dict[str, Callable[[float], None]] = {"elsewhere": time.sleep, "here": work_here}


def measure(comm: a2a.Communicator, size: int, rounds: int) -> dict[str, Any]:
    """Microseconds of the slowest rank: the exchange alone, and per kind of work the work alone and both."""
    n, words = comm.size, size // 8
    recv = np.zeros(n * words, np.int64)
    send = np.empty_like(recv)
    wrong = 0

    def exchange(work: Callable[[], None] | None) -> None:
        operation = comm.alltoall(send, recv, async_op=True)
        assert operation is not None
        if work is not None:
            work()
        operation.wait()

    def slowest(body: Callable[[], None], moves: bool = True) -> float:
        nonlocal wrong
        times = []
        for turn in range(rounds):
            send[:] = np.repeat(np.arange(n) + 100 * comm.rank, words) + 10_000 * turn
            comm.barrier()
            begin = time.perf_counter()
            body()
            times.append(time.perf_counter() - begin)
            right = np.repeat(100 * np.arange(n) + comm.rank, words) + 10_000 * turn
            wrong += int((recv != right).sum()) if moves else 0
        medians = np.zeros(n)
        comm.allgather(np.array([statistics.median(times)]), medians)
        return float(medians.max())

    exchange(None)
    alone = slowest(partial(exchange, None))
    result: dict[str, Any] = {"exchange": alone * 1e6}
    for kind, kind_of_work in WORK.items():
        work = partial(kind_of_work, alone)
        worked, together = slowest(work, moves=False), slowest(partial(exchange, work))
        hidden = (alone + worked - together) / min(alone, worked)
        result[kind] = {"work": worked * 1e6, "both": together * 1e6, "hidden": hidden}
    return result | {"wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes per pair of ranks")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"# {options.ranks} ranks, {len(os.sched_getaffinity(0))} CPUs; times in us")
    print(f"{'bytes':>10} {'thread':>6} {'exchange':>9}", *(f"{k + ' both':>15} {'hidden':>7}" for k in WORK), "#wrong")
    rows = []
    for size in options.sizes:
        for thread in ("0", "1"):
            os.environ["A2A_PROGRESS_THREAD"] = thread
            figures = a2a.spawn(measure, options.ranks, size, options.rounds)
            row = figures[0] | {"wrong": sum(each["wrong"] for each in figures), "size": size, "thread": int(thread)}
            rows.append(row)
            kinds = (f"{row[k]['both']:>15.0f} {row[k]['hidden']:>7.0%}" for k in WORK)
            print(f"{size:>10} {thread:>6} {row['exchange']:>9.0f}", *kinds, f"{row['wrong']:>6}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
