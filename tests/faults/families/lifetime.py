"""Buffers, works and communicators that are dropped, and interpreters that end, while an exchange is in flight."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..harness import Answer, Report, attempt, connect, exchange, job_name, judge, run, worse
from ..rows import row
from .death import WAYS, Way, buffers, empty_buffers

ROUNDS = 50


def drop_tensors(rank: int, n: int, job: str, seed: str, way: Way) -> list[Answer]:
    """Every exchange loses its send tensor at once, and every second one its Work; other memory is taken meanwhile.
    What was received is compared through a view that the program keeps."""
    os.environ.update(way[0])
    comm = connect(rank, n, job)
    chance, answers = random.Random(seed), []
    for number in range(ROUNDS):
        begin, count = time.monotonic(), chance.choice([1, 1000, 30_000])
        send, recv = empty_buffers(comm, way, (n * count,), "int64")
        send.reshape(n, count)[:] = (np.arange(n) + 100 * rank + number)[:, None]
        recv.fill(-1)
        work = comm.alltoall(send, recv, async_op=True)
        del send
        drop_work = chance.random() < 0.5
        if drop_work:
            del work
        garbage = [np.full(n * count, -7) for _ in range(3)]
        gc.collect()
        if drop_work:
            comm.barrier()  # later operations end after it
        else:
            work.wait()  # type: ignore[union-attr]
        del garbage
        right = (recv.reshape(n, count).T == 100 * np.arange(n) + rank + number).all()
        answers.append(Answer("right" if right else "wrong", time.monotonic(), seconds=time.monotonic() - begin))
    comm.close()
    return answers


@row("tensors and works dropped in flight", "the right result", 50, 10_000)
def dropped(chance: random.Random) -> list[Report]:
    n, way = chance.choice([2, 3]), chance.choice(WAYS)
    ends = run(n, drop_tensors, n, job_name(), str(chance.random()), way)
    return [judge(ends, (), at=i, must_raise=False) for i in range(ROUNDS)]


def drop_communicator(rank: int, n: int, job: str, dropper: int, way: Way) -> list[Answer]:
    os.environ.update(way[0])
    comm: Any = connect(rank, n, job)
    comm.barrier()
    send, recv = buffers(comm, way)
    if rank != dropper:
        return [attempt(lambda: [comm.alltoall(send, recv) for _ in range(3)])]
    work = comm.alltoall(send, recv, async_op=True)
    comm = send = recv = None
    gc.collect()
    answer = attempt(work.wait)
    time.sleep(0.2)
    return [answer]


@row("communicator dropped in flight", "raise by name, p99 <= 1 s", 4, 300, within=1.0)
def communicator_dropped(chance: random.Random) -> Report:
    n, way = chance.choice([2, 3]), chance.choice(WAYS)
    dropper, begin = chance.randrange(n), time.monotonic()
    ends = run(n, drop_communicator, n, job_name(), dropper, way)
    # The operation may have been done already on the rank that let go.
    mine = judge(ends, ["AbortedError", "PeerLostError"], but=[r for r in range(n) if r != dropper], must_raise=False)
    return worse(mine, judge(ends, ["PeerLostError", "AbortedError"], [f"rank {dropper}"], begin, but=[dropper]))


_EXITS = """
import sys, numpy as np, a2a
rank, way = int(sys.argv[1]), sys.argv[3]
comm = a2a.init(rank=rank, size=2, job=sys.argv[2], timeout=20)
comm.barrier()
send, recv = np.zeros(2 << 17), np.zeros(2 << 17)
if rank == 0:
    work = comm.alltoall(send, recv, async_op=True)
    keep = [work, comm] if way == "kept" else None
    if way == "cycle":
        work_holder = [work]; work_holder.append(work_holder)
    if way == "raises":
        raise KeyError("a mistake")
    sys.exit(0)
try:
    comm.alltoall(send, recv); comm.barrier()
except (a2a.PeerLostError, a2a.AbortedError) as error:
    sys.exit(7 if "rank 0 " in str(error) else 8)
"""


@row("interpreter exits with work in flight", "exits at once, peer raises by name, <= 2 s", 3, 100, within=2.0)
def exits(chance: random.Random) -> Report:
    way, job = chance.choice(["kept", "dropped", "cycle", "raises"]), job_name()
    begin = time.monotonic()
    ranks = [
        subprocess.Popen([sys.executable, "-c", _EXITS, str(rank), job, way], stderr=subprocess.DEVNULL)
        for rank in range(2)
    ]
    statuses = []
    for rank in ranks:
        try:
            statuses.append(rank.wait(timeout=20))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()
            return Report("hang", text=f"{way}: the interpreter does not end")
    seconds = time.monotonic() - begin
    good = statuses == [int(way == "raises"), 7]
    crashed = any(status < 0 for status in statuses)
    return Report("clear" if good else "crash" if crashed else "unclear", seconds, f"{way}: exit codes {statuses}")


def held() -> tuple[int, int]:
    gc.collect()
    mappings = Path("/proc/self/maps").read_text().splitlines()
    return len(list(Path("/proc/self/fd").iterdir())), sum("/memfd:" in line for line in mappings)


def meet_again(rank: int, n: int, job: str, times: int) -> Answer:
    before = after = (0, 0)
    for i in range(times + 5):
        comm = connect(rank, n, f"{job}-{i}")
        assert exchange(comm, 3000, i)
        comm.close()
        del comm
        if i == 4:
            before = held()
    after = held()
    return Answer("right" if after == before else "wrong", time.monotonic(), text=f"{before} before, {after} after")


@row("init() and close(), 20 times each", "no descriptor, no mapping more", 2, 200)
def meets_again(chance: random.Random) -> Report:
    n = chance.choice([2, 3])
    return judge(run(n, meet_again, n, job_name(), 20), (), must_raise=False)
