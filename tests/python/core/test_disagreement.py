"""Ranks that call different things, or the same with different numbers: both ranks of a pair say so in that very call,
nothing of the pair is written, the other pairs are right, and so is the next call."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from forked import apart, assert_usable, connect, job_name, raised, run, values

import a2a

pytestmark = pytest.mark.timeout(60)

POISON = 0xEE
# How the bytes travel: environment, most rows of 8 bytes for a peer, and of (send, receive) which lie in shared memory.
PATHS: dict[str, tuple[dict[str, str], int, tuple[bool, bool]]] = {
    "inline": ({}, 10, (False, False)),
    "staged": ({"A2A_SHM_CMA": "0"}, 30_000, (False, False)),
    "direct": ({"A2A_SHM_DIRECT_MIN": "1"}, 8_000, (True, False)),
    "both": ({"A2A_SHM_DIRECT_MIN": "1"}, 8_000, (True, True)),
    "remote": ({"A2A_SHM_CMA_MIN": "1"}, 8_000, (False, False)),
    "default": ({}, 30_000, (True, False)),
}


def use_path(path: str) -> tuple[int, tuple[bool, bool]]:
    for name in ("A2A_SHM_CMA", "A2A_SHM_DIRECT_MIN", "A2A_SHM_CMA_MIN"):
        os.environ.pop(name, None)
    environment, most, shared = PATHS[path]
    os.environ.update(environment)
    return most, shared


class Traffic:
    """What ranks send to each other, and what each believes of it; the same on every rank."""

    def __init__(self, n: int, most: int, chance: np.random.Generator) -> None:
        self.n, self.most = n, most
        agreed = chance.integers(0, most + 1, (n, n)) * (chance.random((n, n)) < 0.8)
        self.sent, self.expected = agreed.copy(), agreed.copy()  # [from, to]
        for _ in range(int(chance.integers(0, n + 1))):
            a, b = chance.choice(n, 2, replace=False)
            view = self.sent if chance.random() < 0.5 else self.expected
            # Too many, too few, or some instead of none.
            view[a, b] = chance.choice([0, 1, most, max(int(view[a, b]) - 1, 0), min(int(view[a, b]) + 1, most)])

    def agree(self, a: int, b: int) -> bool:
        return bool(self.sent[a, b] == self.expected[a, b] and self.sent[b, a] == self.expected[b, a])

    def quarrels(self, rank: int) -> list[int]:
        return [peer for peer in range(self.n) if not self.agree(rank, peer)]

    def assert_named(self, rank: int, text: str) -> None:
        """Every peer of a quarrel has a sentence with both ranks and both numbers; nobody else has one."""
        sentences = text.split(": ", 1)[1].split("; ")
        assert len(sentences) == len(self.quarrels(rank)), text
        for peer in self.quarrels(rank):
            wanted = [
                f"rank {a} sends {self.sent[a, b]} rows to rank {b}, which expects {self.expected[a, b]} (row = 8 bytes"
                for a, b in ((rank, peer), (peer, rank))
                if self.sent[a, b] != self.expected[a, b]
            ]
            assert any(words in text for words in wanted), (text, wanted)


def disagree_at_random(rank: int, n: int, job: str, path: str, rounds: int) -> int:
    most, shared = use_path(path)
    comm = connect(rank, n, job)
    chance = np.random.default_rng(n)
    shape = (n * (most + 1), 4)
    send, recv = (np.asarray(comm.empty(shape, "uint16")) if way else np.empty(shape, np.uint16) for way in shared)
    displs = np.arange(n) * (most + 1)
    mismatches = 0
    for number in range(1, 2 * rounds, 2):
        traffic = Traffic(n, most, chance)
        send.reshape(n, -1)[:] = 100 * rank + np.arange(n)[:, None] + 1000 * number
        recv.fill(POISON)
        call = (send, traffic.sent[rank], recv, traffic.expected[:, rank], displs, displs)
        if traffic.quarrels(rank):
            mismatches += 1
            text = raised(a2a.MismatchError, comm.alltoallv, *call, timeout=20)
            assert text.startswith(f"alltoallv #{number}: "), text
            traffic.assert_named(rank, text)
        else:
            comm.alltoallv(*call, timeout=20)
        for peer, part in enumerate(recv.reshape(n, most + 1, 4)):
            rows = int(traffic.expected[peer, rank]) if traffic.agree(peer, rank) else 0
            assert (part[:rows] == (100 * peer + rank + 1000 * number) % 65536).all(), (number, peer)
            assert (part[rows:] == POISON).all(), (number, peer)
        part = comm.alltoall(np.full(n, rank), got := np.empty(n, np.int64))
        assert part is None and (got == np.arange(n)).all()
    assert_usable(comm)
    comm.close()
    return mismatches


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("path", PATHS)
@apart
def test_counts(path: str, n: int) -> None:
    mismatches = values(run(n, disagree_at_random, n, job_name(), path, 15))
    assert sum(mismatches) >= 10, mismatches


def disagree_with_chunks_under_way(rank: int, job: str, rounds: int) -> None:
    """Both fill all chunks of the pair before they find out. What one of them sends next is more than those."""
    use_path("staged")
    comm = connect(rank, 2, job)
    rows, peer = 120_000, 1 - rank
    send, recv = np.arange(rows, dtype=np.uint64), np.zeros(rows, np.uint64)
    for number in range(rounds):
        counts = [0, 0]
        counts[peer] = rows
        wrong = [count - 1 if count else 0 for count in counts]
        raised(a2a.MismatchError, comm.alltoallv, send, counts, recv, wrong, timeout=20)
        sends, recvs = (counts, [0, 0]) if rank == number // 2 % 2 else ([0, 0], counts)
        recv.fill(0)
        comm.alltoallv(send + number, sends, recv, recvs, timeout=20)
        assert (recv == (send + number if sum(recvs) else 0)).all(), number
    comm.close()


@apart
def test_chunks_under_way_come_back() -> None:
    values(run(2, disagree_with_chunks_under_way, job_name(), 12))


def zeros(c: a2a.Communicator, dtype: str, rows: int = 40) -> np.ndarray[Any, Any]:
    return np.zeros(c.size * rows, dtype)


def equal_parts(c: a2a.Communicator, dtype: str) -> None:
    c.alltoall(zeros(c, dtype), zeros(c, dtype))


def gather(c: a2a.Communicator, elems: int) -> None:
    c.allgather(np.zeros(elems, "f4"), zeros(c, "f4", elems))


def scatter(c: a2a.Communicator, counts: list[int], back: bool = False) -> None:
    call = c.global_gather if back else c.global_scatter
    call(zeros(c, "f4"), counts * c.size, counts * c.size)


def list_of(c: a2a.Communicator, elems: int) -> None:
    c.alltoall_list(*([np.zeros(elems, "f4") for _ in range(c.size)] for _ in range(2)))


# What rank 1 calls, what the others call, what the messages hold.
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[str]]] = {
    "dtype": (
        lambda c: equal_parts(c, "f4"),
        lambda c: equal_parts(c, "i4"),
        ["alltoall #1: rank", "rank 1 uses dtype float32", "uses dtype int32"],
    ),
    "dtype of another width": (
        lambda c: equal_parts(c, "f8"),
        lambda c: equal_parts(c, "f4"),
        ["alltoall #1: rank", "rank 1 uses dtype float64", "uses dtype float32"],
    ),
    "operation": (
        lambda c: c.alltoallv(zeros(c, "f4"), [40] * c.size, zeros(c, "f4"), [40] * c.size),
        lambda c: gather(c, 40),
        ["operation #1: rank", "rank 1 calls alltoallv", "calls allgather"],
    ),
    "barrier": (
        lambda c: c.barrier(),
        lambda c: equal_parts(c, "f4"),
        ["operation #1: rank", "rank 1 calls barrier", "calls alltoall"],
    ),
    "split": (
        lambda c: c.split(0),
        lambda c: c.group([0]),
        ["operation #1: rank", "rank 1 calls split", "calls group"],
    ),
    "allgather": (
        lambda c: gather(c, 3),
        lambda c: gather(c, 2),
        ["allgather #1: rank", "3", "2", "(element = 4 bytes, float32)"],
    ),
    "exchange": (
        lambda c: c.exchange(zeros(c, "f4"), [1] * c.size),
        lambda c: c.exchange(zeros(c, "i4"), [1] * c.size),
        ["exchange #1: rank", "rank 1 uses dtype float32", "uses dtype int32"],
    ),
    "list": (lambda c: list_of(c, 7), lambda c: list_of(c, 8), ["alltoall_list #1: rank", "7", "8"]),
    "segments": (  # as many rows for each rank, but otherwise divided among its experts
        lambda c: scatter(c, [1, 3]),
        lambda c: scatter(c, [2, 2]),
        ["global_scatter #1: rank", "different numbers for each expert"],
    ),
    "experts": (  # one segment for each rank, of as many rows, for another expert
        lambda c: scatter(c, [0, 4]),
        lambda c: scatter(c, [4, 0]),
        ["global_scatter #1: rank", "different numbers for each expert"],
    ),
    "experts on the way back": (
        lambda c: scatter(c, [0, 4], back=True),
        lambda c: scatter(c, [4, 0], back=True),
        ["global_gather #1: rank", "different numbers for each expert"],
    ),
    "scaled and not": (
        lambda c: c.allreduce(zeros(c, "f4"), op="premul_sum"),
        lambda c: c.allreduce(zeros(c, "f4"), op="sum"),
        ["allreduce #1: rank", "rank 1 reduces with premul_sum", "reduces with sum"],
    ),
}


def call_differently(rank: int, n: int, job: str, name: str) -> str:
    comm = connect(rank, n, job)
    odd, usual, _ = CASES[name]
    text = raised(a2a.MismatchError, odd if rank == 1 else usual, comm)
    assert not comm.broken
    assert_usable(comm)
    comm.close()
    return text


@pytest.mark.parametrize("name", CASES)
@apart
def test_what_is_called(name: str) -> None:
    texts = values(run(3, call_differently, 3, job_name(), name))
    for rank, text in enumerate(texts):
        peers = [1] if rank != 1 else [0, 2]
        assert all(f"rank {r}" in text for r in [rank, *peers]), text
        assert all(words in text for words in CASES[name][2]), text
        assert len(text.split("; ")) == len(peers), text


def call_in_another_order(rank: int, n: int, job: str) -> list[str]:
    comm = connect(rank, n, job)
    send = np.full(n, rank)
    calls = [lambda: comm.alltoall(send, np.empty_like(send)), comm.barrier, lambda: comm.allgather(send[:1], send * 0)]
    order = [1, 2, 0] if rank == 2 else [0, 1, 2]
    texts = [raised(a2a.MismatchError, calls[i]) for i in order]
    assert_usable(comm)
    comm.close()
    return texts


@apart
def test_order() -> None:
    n = 3
    names = ["alltoall", "barrier", "allgather"]
    for rank, texts in enumerate(values(run(n, call_in_another_order, n, job_name()))):
        for i, text in enumerate(texts):
            assert text.startswith(f"operation #{i + 1}: "), text
            assert f"rank {rank} calls {names[(i + 1) % 3 if rank == 2 else i]}" in text, text
            assert f"rank 2 calls {names[(i + 1) % 3]}" in text, text


def run_another_plan(rank: int, n: int, job: str) -> tuple[str, str]:
    comm = connect(rank, n, job)
    data, recv = np.full(n, rank), np.full(n, -1)
    plans = [comm.plan_alltoall(data, recv) for _ in range(2)]
    text = raised(a2a.MismatchError, plans[rank == 1].run, data, recv)
    # A call without a plan is another thing than a call with one.
    other = raised(a2a.MismatchError, comm.alltoall if rank == 1 else plans[0].run, data, recv)
    assert (recv[:1] == -1).all() or rank != 1
    plans[1].run(data, recv)
    assert (recv == np.arange(n)).all()
    comm.close()
    return text, other


@apart
def test_plan() -> None:
    for rank, (text, other) in enumerate(values(run(3, run_another_plan, 3, job_name()))):
        assert "rank 1 runs plan 2" in text and "runs plan 1" in text and f"rank {rank} runs" in text, text
        assert "rank 1 runs no plan" in other and "runs plan 1" in other, other


def refuse(rank: int, n: int, job: str, path: str) -> str:
    most, shared = use_path(path)
    comm = connect(rank, n, job)
    send = comm.empty(n * most, "int64") if shared else np.empty(n * most, np.int64)
    np.asarray(send)[:] = rank
    recv = np.full(n * most, -1)
    counts = [most] * n
    if rank == 1:
        text = raised(a2a.InvalidArgumentError, comm.alltoallv, send, [*counts[1:], -5], recv, counts)
        assert (recv == -1).all()
    else:
        text = raised(a2a.MismatchError, comm.alltoallv, send, counts, recv, counts)
        expected = np.repeat([-1 if peer == 1 else peer for peer in range(n)], most)
        assert (recv == expected).all()
    comm.alltoall(send, recv)
    assert (recv.reshape(n, most) == np.arange(n)[:, None]).all()
    assert_usable(comm)
    comm.close()
    return text


@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("path", PATHS)
@apart
def test_bad_arguments_on_one_rank(path: str, n: int) -> None:
    for text in values(run(n, refuse, n, job_name(), path)):
        assert "rank 1" in text and "-5" in text and "send_counts" in text, text


def disagree_in_flight(rank: int, n: int, job: str, path: str) -> list[str]:
    most, _ = use_path(path)
    comm = connect(rank, n, job)
    sends = [np.full(n * most, 10 * k + rank) for k in range(5)]
    recvs = [np.full(n * most, -1) for _ in sends]
    works = []
    for k, (send, recv) in enumerate(zip(sends, recvs, strict=True)):
        counts = [most - (k == 1 and rank == 0 and peer == 1) for peer in range(n)]
        works.append(comm.alltoallv(send, counts, recv, [most] * n, async_op=True))
    texts = [raised(a2a.MismatchError, works.pop(1).wait)] if rank < 2 else []
    for work in works:
        work.wait()
    for k, recv in enumerate(recvs):
        expected = np.arange(n) + 10 * k
        if k == 1 and rank < 2:
            expected[1 - rank] = -1
        assert (recv.reshape(n, most) == expected[:, None]).all(), (k, rank)
    comm.close()
    return texts


@pytest.mark.parametrize("path", PATHS)
@apart
def test_one_of_several_in_flight(path: str) -> None:
    for texts in values(run(3, disagree_in_flight, 3, job_name(), path)):
        assert all(t.startswith("alltoallv #2: rank 0 sends ") and "to rank 1, which expects" in t for t in texts), (
            texts
        )


def several_in_flight(rank: int, n: int, job: str, path: str, rank_pair_bytes: int) -> None:
    use_path(path)
    comm = connect(rank, n, job)
    elems = rank_pair_bytes // 8
    sends = [np.full(n * elems, 1000 * k + rank) for k in range(5)]
    recvs = [np.full(n * elems, -1) for _ in sends]
    works = [comm.alltoall(send, recv, async_op=True) for send, recv in zip(sends, recvs, strict=True)]
    for k, (work, recv) in enumerate(zip(works, recvs, strict=True)):
        work.wait()
        assert (recv.reshape(n, elems) == np.arange(n)[:, None] + 1000 * k).all(), k
    comm.close()


@pytest.mark.parametrize("path", ["staged", "default"])
@apart
def test_several_in_flight(path: str) -> None:
    for n in (2, 3, 5):
        for kib in (64, 100, 120, 257, 1024):
            values(run(n, several_in_flight, n, job_name(), path, kib << 10))
