"""Ranks that call different things: each says so in that very call, naming the other, and the next call is right."""

from __future__ import annotations

import ctypes
import os
import random
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import a2a

from ..harness import (
    Answer,
    End,
    NotRun,
    Report,
    attempt,
    between_hosts,
    connect,
    exchange,
    job_name,
    judge,
    run,
    worse,
)
from ..rows import row
from .death import WAYS, Way, empty_buffers

MISMATCH = ("MismatchError",)
ROUNDS = 25
POISON = 0xEE


def rounds_of(ends: list[End], rounds: int, judge_round: Callable[[int], Report]) -> list[Report]:
    """One report for each round; ranks that did not come so far are judged by how they ended."""
    return [judge_round(i) for i in range(rounds)]


# ---- counts ----------------------------------------------------------------------------------------------------------


class Traffic:
    """What ranks send to each other and what each believes of it: one pair disagrees in one direction."""

    def __init__(self, n: int, most: int, chance: random.Random) -> None:
        self.sent = np.array([[chance.randint(0, most) * (chance.random() < 0.8) for _ in range(n)] for _ in range(n)])
        self.expected = self.sent.copy()
        self.pair = a, b = tuple(chance.sample(range(n), 2))
        view = self.sent if chance.random() < 0.5 else self.expected
        others = {0, 1, most, max(int(view[a, b]) - 1, 0), min(int(view[a, b]) + 1, most)} - {int(view[a, b])}
        view[a, b] = chance.choice(sorted(others))

    def names(self) -> list[str]:
        a, b = self.pair
        return [f"rank {a} sends {self.sent[a, b]} rows to rank {b}, which expects {self.expected[a, b]}"]


def disagree_in_counts(rank: int, n: int, job: str, seed: str, way: Way) -> list[Answer]:
    os.environ.update(way[0])
    comm = connect(rank, n, job)
    chance, most = random.Random(seed), max(way[1] // 64, 5)
    shape = (n * (most + 1), 4)
    send, recv = empty_buffers(comm, way, shape, "uint16")
    displs = np.arange(n) * (most + 1)
    answers = []
    for number in range(ROUNDS):
        traffic = Traffic(n, most, chance)
        send.reshape(n, -1)[:] = 100 * rank + np.arange(n)[:, None] + 1000 * number
        recv.fill(POISON)
        call = (send, traffic.sent[rank], recv, traffic.expected[:, rank], displs, displs)
        answers.append(attempt(comm.alltoallv, *call))
        quarrels = traffic.pair[1 - traffic.pair.index(rank)] if rank in traffic.pair else -1
        for peer, part in enumerate(recv.reshape(n, most + 1, 4)):
            rows = int(traffic.expected[peer, rank]) if peer != quarrels else 0
            good = (part[:rows] == (100 * peer + rank + 1000 * number) % 65536).all() and (part[rows:] == POISON).all()
            if not good:
                answers[-1].kind = "wrong"
        if not exchange(comm, 10, number):
            answers[-1].kind = "wrong"
    comm.close()
    return answers


@row("counts differ", "MismatchError naming both, nothing silent", 100, 2500)
def counts(chance: random.Random) -> list[Report]:
    return counts_in(job_name(), WAYS, chance)


def counts_in(job: str, ways: Sequence[Way], chance: random.Random) -> list[Report]:
    n, way, seed = chance.choice([2, 3, 4]), chance.choice(ways), str(chance.random())
    ends = run(n, disagree_in_counts, n, job, seed, way)
    again, most = random.Random(seed), max(way[1] // 64, 5)

    def judge_round(i: int) -> Report:
        traffic = Traffic(n, most, again)
        others = [rank for rank in range(n) if rank not in traffic.pair]
        both = judge(ends, MISMATCH, traffic.names(), but=others, at=i)
        return worse(both, judge(ends, (), but=traffic.pair, at=i, must_raise=False)) if others else both

    return rounds_of(ends, ROUNDS, judge_round)


# ---- what is called --------------------------------------------------------------------------------------------------

Call = Callable[[a2a.Communicator], Any]


def call_of(operation: str, dtype: str) -> Call:
    """A call of 40 elements for each pair."""

    def zeros(c: a2a.Communicator) -> Any:
        return np.zeros(c.size * 40, dtype)

    def equal(c: a2a.Communicator) -> Any:
        return [40] * c.size

    calls: dict[str, Call] = {
        "alltoall": lambda c: c.alltoall(zeros(c), zeros(c)),
        "allgather": lambda c: c.allgather(zeros(c)[:40], zeros(c)),
        "alltoall_list": lambda c: c.alltoall_list(*([np.zeros(40, dtype) for _ in range(c.size)] for _ in "sr")),
        "exchange": lambda c: c.exchange(zeros(c), equal(c)),
        "global_scatter": lambda c: c.global_scatter(zeros(c), equal(c), equal(c)),
        "global_gather": lambda c: c.global_gather(zeros(c), equal(c), equal(c)),
        "allreduce": lambda c: c.allreduce(zeros(c)),
        "reduce_scatter": lambda c: c.reduce_scatter(zeros(c), zeros(c)[:40].copy()),
        "reduce": lambda c: c.reduce(zeros(c), root=c.size - 1),
        "broadcast": lambda c: c.broadcast(zeros(c)),
        "gather": lambda c: c.gather(zeros(c)[:40], zeros(c) if c.rank == 0 else None),
        "scatter": lambda c: c.scatter(zeros(c) if c.rank == 0 else None, zeros(c)[:40]),
        "allgatherv": lambda c: c.allgatherv(zeros(c)[:40], zeros(c), equal(c)),
        "allgather_views": lambda c: c.allgather_views(c.empty(c.size * 40, dtype)).release(),
        "barrier": lambda c: c.barrier(),
        "split": lambda c: c.split(0),
        "group": lambda c: c.group([0]),
    }
    return calls[operation]


TENSOR_CALLS = [
    *("alltoall", "allgather", "alltoall_list", "exchange", "global_scatter", "global_gather"),
    *("allreduce", "reduce_scatter", "reduce", "broadcast", "gather", "scatter", "allgatherv"),
]
ON_ONE_HOST = "allgather_views"
DTYPES = ["float32", "int32", "uint32", "float64", "int64", "complex64", "float16", "int16", "uint8", "bool"]


def calls(job: str, *more: str) -> list[str]:
    """Those with a tensor that ranks of this job have, and ``more``."""
    return [*TENSOR_CALLS, *([] if between_hosts(job) else [ON_ONE_HOST]), *more]


def odd_rounds(aspect: str, n: int, job: str, seed: str) -> list[tuple[int, tuple[str, str], tuple[str, str]]]:
    """For each round who is odd, what it calls, what the others call: (operation, dtype)."""
    chance, rounds = random.Random(seed), []
    for _ in range(ROUNDS):
        if aspect == "dtype":
            operation = chance.choice(calls(job))
            mine, theirs = chance.sample(DTYPES, 2)
            rounds.append((chance.randrange(n), (operation, mine), (operation, theirs)))
        else:
            one, other = chance.sample(calls(job, "barrier", "split", "group"), 2)
            rounds.append((chance.randrange(n), (one, "float32"), (other, "float32")))
    return rounds


def call_differently(rank: int, n: int, job: str, aspect: str, seed: str) -> list[Answer]:
    comm = connect(rank, n, job)
    answers = []
    for odd, mine, theirs in odd_rounds(aspect, n, job, seed):
        answers.append(attempt(call_of(*(mine if rank == odd else theirs)), comm))
        if not exchange(comm, 10):
            answers[-1].kind = "wrong"
    comm.close()
    return answers


def whole_calls(aspect: str, chance: random.Random, job: str) -> list[Report]:
    n, seed = chance.choice([2, 3, 4]), str(chance.random())
    ends = run(n, call_differently, n, job, aspect, seed)
    rounds = odd_rounds(aspect, n, job, seed)

    def judge_round(i: int) -> Report:
        odd, mine, theirs = rounds[i]
        verb, which = ("uses dtype", 1) if aspect == "dtype" else ("calls", 0)
        return judge(ends, MISMATCH, [f"rank {odd} {verb} {mine[which]}", f"{verb} {theirs[which]}"], at=i)

    return rounds_of(ends, ROUNDS, judge_round)


@row("dtype differs", "MismatchError naming both, nothing silent", 100, 2500)
def dtypes(chance: random.Random) -> list[Report]:
    return whole_calls("dtype", chance, job_name())


@row("operation differs", "MismatchError naming both, nothing silent", 100, 2500)
def operations(chance: random.Random) -> list[Report]:
    return whole_calls("operation", chance, job_name())


# ---- order -----------------------------------------------------------------------------------------------------------


def orders_of(job: str, seed: str) -> tuple[list[str], list[str]]:
    """What rank 0 calls, in this order, and what all others call; different at every place."""
    chance = random.Random(seed)
    usual = chance.sample(calls(job, "barrier"), chance.randint(2, 7))
    shift = chance.randrange(1, len(usual))
    return [*usual[shift:], *usual[:shift]], usual


def call_in_order(rank: int, n: int, job: str, seed: str) -> list[Answer]:
    comm = connect(rank, n, job)
    odd, usual = orders_of(job, seed)
    answers = [attempt(call_of(name, "float32"), comm) for name in (odd if rank == 0 else usual)]
    if not exchange(comm, 10):
        answers[-1].kind = "wrong"
    comm.close()
    return answers


@row("order of calls differs", "MismatchError naming both, p99 <= 100 ms", 20, 2000, within=0.1)
def orders(chance: random.Random) -> list[Report]:
    return orders_in(job_name(), chance)


def orders_in(job: str, chance: random.Random) -> list[Report]:
    n, seed = chance.choice([2, 3, 4]), str(chance.random())
    ends = run(n, call_in_order, n, job, seed)
    odd, usual = orders_of(job, seed)

    def judge_round(i: int) -> Report:
        report = judge(ends, MISMATCH, [f"rank 0 calls {odd[i]}", f"calls {usual[i]}"], at=i)
        # What one rank waits for may be that another has not been started yet.
        taken = [end.answers[i].seconds for end in ends if i > 0 and len(end.answers) > i]
        report.seconds = max(taken, default=0.0)
        return report

    return rounds_of(ends, len(usual), judge_round)


# ---- memory ----------------------------------------------------------------------------------------------------------


def doubles() -> dict[str, str]:
    """The doubles of Ascend's libraries, which the build with fault points has made."""
    folder = Path(os.environ["A2A_FAULTS_BUILD"]) / "fakes"
    if not (folder / "libhccl.so").is_file():
        raise NotRun(f"no double of an accelerator's library in {folder}")
    libraries = {"A2A_HCCL_LIBRARY": "libhccl.so", "A2A_ASCENDCL_LIBRARY": "libascendcl.so"}
    return {name: str(folder / file) for name, file in libraries.items()} | {"A2A_TEST_DOUBLES": "1"}


def use_other_memory(rank: int, n: int, job: str, odd: int, on_device: bool, environment: dict[str, str]) -> Answer:
    os.environ.update(environment)
    comm = connect(rank, n, job)
    comm.connect(f"npu:{rank}")
    host = np.zeros(n * 40, np.float32)
    if (rank == odd) != on_device:
        return attempt(comm.alltoall, host, host.copy())
    memory = a2a.from_pointer(_allocate(n * 160, rank), (n * 40,), "float32", device=(12, rank), owner=host)
    return attempt(
        comm.alltoall, memory, a2a.from_pointer(_allocate(n * 160, rank), (n * 40,), "float32", (12, rank), host)
    )


def _allocate(size: int, device: int) -> int:
    acl, address = ctypes.CDLL(os.environ["A2A_ASCENDCL_LIBRARY"]), ctypes.c_void_p()
    acl.aclInit(None)
    assert acl.aclrtSetDevice(device) == 0 and acl.aclrtMalloc(ctypes.byref(address), ctypes.c_size_t(size), 0) == 0
    return address.value or 0


@row("memory kind differs (double of a device)", "MismatchError naming both, nothing silent", 4, 200)
def memories(chance: random.Random) -> Report:
    n = chance.choice([2, 3])
    odd, on_device, environment = chance.randrange(n), chance.random() < 0.5, doubles()
    ends = run(n, use_other_memory, n, job_name(), odd, on_device, environment)
    return judge(ends, MISMATCH, [f"rank {odd} uses memory of kind", "memory of kind host", "memory of kind npu"])


# ---- calls that never come -------------------------------------------------------------------------------------------


def miss_a_call(rank: int, n: int, job: str, odd: int, other_group: bool) -> Answer | None:
    comm = connect(rank, n, job)
    elsewhere = comm.split(0)
    assert elsewhere is not None
    comm.barrier()
    if rank == odd and not other_group:
        time.sleep(0.5)
        return None
    group = elsewhere if rank == odd else comm
    answer = attempt(group.alltoall, np.zeros(n), np.zeros(n), timeout=0.3)
    time.sleep(0.3)  # whoever leaves at once is to the others a rank that left
    return answer


def missing(chance: random.Random, other_group: bool, job: str) -> Report:
    n = chance.choice([2, 3, 4])
    odd = chance.randrange(n)
    ends = run(n, miss_a_call, n, job, odd, other_group)
    report = judge(ends, ["TimeoutError"], [f"rank {odd} (", "last operation barrier #"], but=[odd])
    report.seconds = max(end.value.seconds for end in ends if isinstance(end.value, Answer))
    if not other_group:
        return report
    others = [f"rank {rank} (" for rank in range(n) if rank != odd]
    alone = judge(ends, ["TimeoutError"], [*others, "last operation none"], but=[r for r in range(n) if r != odd])
    return worse(report, alone)


@row("a call is missing", "TimeoutError naming each last operation", 3, 150, exactly=0.3)
def never_called(chance: random.Random) -> Report:
    return missing(chance, other_group=False, job=job_name())


@row("a call went to another group", "TimeoutError naming each last operation", 3, 150, exactly=0.3)
def called_elsewhere(chance: random.Random) -> Report:
    return missing(chance, other_group=True, job=job_name())


# ---- refused ---------------------------------------------------------------------------------------------------------


def refuse(rank: int, n: int, job: str, seed: str) -> list[Answer]:
    comm = connect(rank, n, job)
    chance, answers = random.Random(seed), []
    for _ in range(ROUNDS):
        odd, operation = chance.randrange(n), chance.choice(calls(job))
        if rank != odd:
            answers.append(attempt(call_of(operation, "float32"), comm))
        elif chance.random() < 0.5:
            answers.append(attempt(comm.alltoallv, np.zeros(n), [-5] * n, np.zeros(n), [1] * n))
        else:
            arguments = 3 if operation in ("allgatherv", "global_scatter", "global_gather") else 2
            answers.append(attempt(getattr(comm, operation), *[None] * arguments))
        chance = random.Random(f"{seed}{len(answers)}")  # the same on every rank again
        if not exchange(comm, 10):
            answers[-1].kind = "wrong"
    comm.close()
    return answers


@row("arguments refused on one rank", "every peer raises, naming it", 50, 2500)
def refused(chance: random.Random) -> list[Report]:
    return refused_in(job_name(), chance)


def refused_in(job: str, chance: random.Random) -> list[Report]:
    n, seed = chance.choice([2, 3, 4]), str(chance.random())
    ends = run(n, refuse, n, job, seed)
    again = random.Random(seed)

    def judge_round(i: int) -> Report:
        nonlocal again
        odd = again.randrange(n)
        again = random.Random(f"{seed}{i + 1}")
        peers = judge(ends, MISMATCH, [f"rank {odd} does not take part, its arguments were refused"], but=[odd], at=i)
        mine = judge(ends, ["InvalidArgumentError"], [f"rank {odd}: "], but=[r for r in range(n) if r != odd], at=i)
        return worse(peers, mine)

    return rounds_of(ends, ROUNDS, judge_round)


# ---- what all of that costs ------------------------------------------------------------------------------------------


def exchange_4_kib(rank: int, job: str) -> Answer:
    """``note``: the median time of an exchange of 4 KiB for each pair, planned once, in nanoseconds."""
    comm = connect(rank, 2, job)
    send, recv = np.zeros(8192, np.uint8), np.zeros(8192, np.uint8)
    plan = comm.plan_alltoall(send, recv)
    taken = []
    for _ in range(20_000):
        begin = time.perf_counter_ns()
        plan.run(send, recv)
        taken.append(time.perf_counter_ns() - begin)
    return Answer("right", time.monotonic(), note=float(np.median(taken)))


@row("cost of comparing at 4 KiB", "at most 3 % of the exchange", 0, 5)
def cost(chance: random.Random) -> Report:
    """What a rank does for each pair to be able to compare, and the comparison, beside the fastest way to exchange."""
    program = Path(os.environ["A2A_FAULTS_BUILD"]) / "tests" / "cpp" / "core" / "facts_test"
    if not program.is_file():
        raise NotRun(f"{program} has not been built")
    said = subprocess.run([program, "nanoseconds"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"costs ([0-9.]+) ns", said)
    assert found is not None, said
    exchange_ns = min(end.value.note for end in run(2, exchange_4_kib, job_name()))
    note = f"{float(found[1]):.0f} ns of {exchange_ns:.0f} ns"
    return Report("right" if float(found[1]) <= 0.03 * exchange_ns else "unclear", text=note, note=note)
