"""Very many exchanges with random plans: no wrong byte, and memory does not grow."""

from __future__ import annotations

import ctypes
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import a2a

from ..harness import Answer, Report, connect, job_name, judge, run
from ..rows import row

GROWTH_LIMIT = 1 << 20
WARM_UP = 3  # batches in which everything that is kept is made


@dataclass(frozen=True)
class Size:
    """Exchanges of a batch, how many of them share a plan, and the most elements for a pair."""

    batch: int
    per_plan: int
    most: int


def resident() -> int:
    """Bytes, without what other processes share; shared segments are counted by the page that is touched."""
    fields = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return int(fields["Rss"].split()[0]) * 1024


def return_memory_at_once() -> None:
    """The C library gives large arrays back to the system at once, so that its own store is no growth."""
    m_mmap_threshold = -3
    ctypes.CDLL(None).mallopt(m_mmap_threshold, 1 << 16)


def wrong_of_batch(comm: a2a.Communicator, chance: np.random.Generator, size: Size, send_: Any, recv_: Any) -> int:
    """How many exchanges of a batch were wrong. Each plan has random counts and runs often."""
    n, rank, wrong = comm.size, comm.rank, 0
    for _ in range(size.batch // size.per_plan):
        counts = chance.integers(0, size.most + 1, (n, n))
        send, recv = send_[: counts[rank].sum()], recv_[: counts[:, rank].sum()]
        plan = comm.plan_alltoallv(send, counts[rank], recv, counts[:, rank])
        base = np.repeat(np.arange(n, dtype=np.int32) + 16 * rank, counts[rank])
        expected = np.repeat(16 * np.arange(n, dtype=np.int32) + rank, counts[:, rank])
        for i in range(size.per_plan):
            np.add(base, 256 * i, out=send)
            plan.run(send, recv)
            wrong += not np.array_equal(recv, expected + 256 * i)
    return wrong


def exchange_many(rank: int, n: int, job: str, seed: str, batches: int, size: Size, seconds: float) -> list[Answer]:
    """One answer for each batch."""
    end = time.monotonic() + seconds
    return_memory_at_once()
    comm = connect(rank, n, job)
    chance = np.random.default_rng(random.Random(seed).getrandbits(63))
    send, recv = np.full(n * size.most, 1, np.int32), np.full(n * size.most, 1, np.int32)  # all of it touched
    for _ in range(WARM_UP):
        wrong_of_batch(comm, chance, size, send, recv)
    answers, before, over = [], resident(), np.zeros(n, bool)
    while len(answers) < batches and not over.any():
        wrong = wrong_of_batch(comm, chance, size, send, recv)
        answers.append(Answer("wrong" if wrong else "right", time.monotonic()))
        comm.allgather(np.array([time.monotonic() > end]), over)
    grown = resident() - before
    if grown > GROWTH_LIMIT:
        answers[-1] = Answer("error", time.monotonic(), "MemoryGrowth", f"resident memory grew by {grown} bytes")
    answers[-1].note = grown
    comm.close()
    return answers


def soak(chance: random.Random, batches: int, seconds: float, size: Size) -> list[Report]:
    ends = run(2, exchange_many, 2, job_name(), str(chance.random()), batches, size, seconds, limit=seconds + 60)
    reports = [judge(ends, (), at=i, must_raise=False) for i in range(max(len(end.answers) for end in ends))]
    grown = max((end.answers[-1].note or 0 for end in ends if isinstance(end.value, list)), default=0)
    reports[-1].note = f"resident memory {grown / 1024:+.0f} KiB"
    return reports


@row("soak: small exchanges, batches of 10,000", "0 wrong bytes, resident memory +<= 1 MiB", 3, 1000, long=True)
def small(chance: random.Random, batches: int, seconds: float) -> list[Report]:
    return soak(chance, batches, seconds, Size(10_000, 50, 64))


@row("soak: large exchanges, batches of 100", "0 wrong bytes, resident memory +<= 1 MiB", 1, 100, long=True)
def large(chance: random.Random, batches: int, seconds: float) -> list[Report]:
    return soak(chance, batches, seconds, Size(100, 10, 1 << 18))
