"""Very many exchanges with random plans: no wrong byte, and memory does not grow."""

from __future__ import annotations

import ctypes
import random
import time
from pathlib import Path

import numpy as np

from ..harness import Answer, Report, connect, job_name, judge, run
from ..rows import row

GROWTH_LIMIT = 1 << 20
BATCH, LARGE_BATCH = 10_000, 100
WARM_UP = 4  # batches in which everything that is kept is made


def resident() -> int:
    """Bytes, without what other processes share; shared segments are counted by the page that is touched."""
    fields = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return int(fields["Rss"].split()[0]) * 1024


def return_memory_at_once() -> None:
    """The C library gives large arrays back to the system at once, so that its own store is no growth."""
    m_mmap_threshold = -3
    ctypes.CDLL(None).mallopt(m_mmap_threshold, 1 << 16)


def exchange_many(
    rank: int, n: int, job: str, seed: str, batches: int, per_plan: int, most: int, seconds: float
) -> list[Answer]:
    """Each batch has plans with random counts, each of which runs often. One answer for each batch."""
    end = time.monotonic() + seconds
    return_memory_at_once()
    comm = connect(rank, n, job)
    chance = np.random.default_rng(random.Random(seed).getrandbits(63))
    answers, before = [], 0
    space_send, space_recv = np.full(n * most, 1, np.int32), np.full(n * most, 1, np.int32)  # all of it touched
    batch = BATCH if per_plan > 10 else LARGE_BATCH
    for number in range(batches + WARM_UP):
        wrong = 0
        for _ in range(batch // per_plan):
            counts = chance.integers(0, most + 1, (n, n))
            send, recv = space_send[: counts[rank].sum()], space_recv[: counts[:, rank].sum()]
            plan = comm.plan_alltoallv(send, counts[rank], recv, counts[:, rank])
            base = np.repeat(np.arange(n, dtype=np.int32) + 16 * rank, counts[rank])
            expected = np.repeat(16 * np.arange(n, dtype=np.int32) + rank, counts[:, rank])
            for i in range(per_plan):
                np.add(base, 256 * i, out=send)
                plan.run(send, recv)
                wrong += not np.array_equal(recv, expected + 256 * i)
        if number == WARM_UP - 1:
            before = resident()
        elif number >= WARM_UP:
            answers.append(Answer("wrong" if wrong else "right", time.monotonic()))
        over = np.zeros(n, bool)
        comm.allgather(np.array([number > WARM_UP and time.monotonic() > end]), over)
        if over.any():
            break
    grown = resident() - before
    answers[-1].note = grown
    if grown > GROWTH_LIMIT:
        answers[-1] = Answer("error", time.monotonic(), "MemoryGrowth", f"resident memory grew by {grown} bytes")
    comm.close()
    return answers


def soak(chance: random.Random, batches: int, seconds: float, per_plan: int, most: int) -> list[Report]:
    program = (exchange_many, 2, job_name(), str(chance.random()), batches, per_plan, most, seconds)
    ends = run(2, *program, limit=seconds + 60)
    return [judge(ends, (), at=i, must_raise=False) for i in range(max(len(end.answers) for end in ends))]


@row("soak: small exchanges, batches of 10,000", "0 wrong bytes, resident memory +<= 1 MiB", 3, 1000, long=True)
def small(chance: random.Random, batches: int, seconds: float) -> list[Report]:
    return soak(chance, batches, seconds, 50, 64)


@row("soak: large exchanges, batches of 100", "0 wrong bytes, resident memory +<= 1 MiB", 1, 100, long=True)
def large(chance: random.Random, batches: int, seconds: float) -> list[Report]:
    return soak(chance, batches, seconds, 10, 1 << 18)
