"""Reductions and rooted operations between ranks on several hosts, over TCP and over MPI. The hosts are assigned by
A2A_HOSTS."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from folds import COMPLEX, FLOATS, INTEGERS, OPS, check, defined
from folds import values as random_values
from forked import apart, run, values
from mpi import INSTALLED
from rank_pool import Pool
from sample import with_full
from tcp_peer import free_address
from tcp_ranks import meet

import a2a
from a2a import testing

pytestmark = pytest.mark.timeout(100)

Arrays = Sequence[np.ndarray[Any, Any]]


def fold(hosts: str, sends: Arrays, op: Any) -> np.ndarray[Any, Any]:
    """What the ranks of each host make of it in rank order, folded in the order of the hosts. An average counts as
    often as its host has ranks."""
    of_host: dict[str, list[np.ndarray[Any, Any]]] = {}
    for host, send in zip(hosts.split(","), sends, strict=True):
        of_host.setdefault(host, []).append(send)
    folded = [[testing.fold(ranks, op)] * (len(ranks) if op == "avg" else 1) for ranks in of_host.values()]
    return testing.fold(list(itertools.chain(*folded)), op)


# So that some operations have few bytes of a pair, others many, and some too few for every rank to have a part.
ELEMS = (0, 1, 37, 3001, 70_001)
PLACES = ["a,b,a,c,b,a", "a,b,b", "a,b,c"]
POOLS = [*(Pool(hosts.count(",") + 1, hosts=hosts) for hosts in PLACES)]
POOLS += with_full(Pool(hosts.count(",") + 1, hosts=hosts) for hosts in ("a,a,b,b", "a,b"))
POOLS += [Pool(4, hosts="a,a,b,b", mpi=mpi) for mpi in INSTALLED]
POOLS += with_full(Pool(3, hosts="a,b,a", mpi=mpi) for mpi in INSTALLED)


@pytest.fixture(scope="module", params=POOLS, ids=repr)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with request.param as made:
        yield made


def every_dtype(comm: a2a.Communicator, hosts: str, elems: int) -> None:
    for dtype in [*INTEGERS, *FLOATS, *COMPLEX, "bool"]:
        sends = random_values(comm.rank, comm.size, elems, dtype)
        for op in filter(lambda op: defined(op, dtype), OPS):
            send = sends[comm.rank].copy()
            recv = testing.poison(np.empty_like(send))
            comm.allreduce(send, recv, op)
            check(recv, fold(hosts, sends, op), f"allreduce of {elems} {dtype} with {op}")
            check(send, sends[comm.rank], "the input")
            comm.allreduce(send, op=op)
            check(send, fold(hosts, sends, op), f"allreduce in place of {elems} {dtype} with {op}")


@pytest.mark.parametrize("elems", [1, 37, 20_001])
def test_every_dtype_and_operation(pool: Pool, elems: int) -> None:
    pool.run(every_dtype, pool.hosts, elems)


class Calls:
    """Each call on random elements: starts it, and returns how to look at what came of it."""

    def __init__(self, comm: a2a.Communicator, hosts: str, seed: int) -> None:
        self.comm, self.hosts, self.random = comm, hosts, np.random.default_rng(seed)

    def sends(self, elems: int) -> list[np.ndarray[Any, Any]]:
        return [self.random.uniform(0.5, 2, elems).astype(np.float32) for _ in range(self.comm.size)]

    def allreduce(self, elems: int, root: int, op: Any, async_op: bool) -> Any:
        sends = self.sends(elems)
        recv = sends[self.comm.rank].copy()
        work = self.comm.allreduce(recv, op=op, async_op=async_op)
        return work, lambda: check(recv, fold(self.hosts, sends, op), "allreduce")

    def reduce_scatter(self, elems: int, root: int, op: Any, async_op: bool) -> Any:
        sends, rank = self.sends(elems * self.comm.size), self.comm.rank
        send = sends[rank].copy()
        recv = send[rank * elems : (rank + 1) * elems]
        work = self.comm.reduce_scatter(send, recv, op, async_op=async_op)
        folded = fold(self.hosts, sends, op)
        return work, lambda: check(recv, folded[rank * elems : (rank + 1) * elems], "reduce_scatter")

    def reduce_scatterv(self, elems: int, root: int, op: Any, async_op: bool) -> Any:
        counts = [int(c) for c in self.random.integers(0, 2 * elems + 1, self.comm.size)]
        counts[root] = 0
        sends, rank = self.sends(sum(counts)), self.comm.rank
        recv = np.zeros(counts[rank], np.float32)
        work = self.comm.reduce_scatterv(sends[rank].copy(), counts, recv, op, async_op=async_op)
        expected = np.split(fold(self.hosts, sends, op), np.cumsum(counts)[:-1])[rank]
        return work, lambda: check(recv, expected, "reduce_scatterv")

    def reduce(self, elems: int, root: int, op: Any, async_op: bool) -> Any:
        sends = self.sends(elems)
        send = sends[self.comm.rank].copy()
        work = self.comm.reduce(send, None, root, op, async_op=async_op)
        expected = fold(self.hosts, sends, op) if root == self.comm.rank else sends[self.comm.rank]
        return work, lambda: check(send, expected, "reduce")

    def broadcast(self, elems: int, root: int, op: Any, async_op: bool) -> Any:
        sends = self.sends(elems)
        tensor = sends[self.comm.rank].copy()
        work = self.comm.broadcast(tensor, root, async_op=async_op)
        return work, lambda: check(tensor, sends[root], "broadcast")

    def gather(self, elems: int, root: int, op: Any, async_op: bool) -> Any:
        sends, rank = self.sends(elems), self.comm.rank
        recv = np.zeros(elems * self.comm.size, np.float32) if rank == root else None
        work = self.comm.gather(sends[rank].copy(), recv, root, async_op=async_op)
        expected = np.concatenate(sends) if rank == root else None
        return work, lambda: check(recv, expected, "gather") if rank == root else None

    def scatter(self, elems: int, root: int, op: Any, async_op: bool) -> Any:
        sends, rank = self.sends(elems * self.comm.size), self.comm.rank
        recv = np.zeros(elems, np.float32)
        work = self.comm.scatter(sends[rank].copy() if rank == root else None, recv, root, async_op=async_op)
        return work, lambda: check(recv, np.split(sends[root], self.comm.size)[rank], "scatter")

    def allgather(self, elems: int, root: int, op: Any, async_op: bool) -> Any:
        sends = self.sends(elems)
        recv = np.zeros(elems * self.comm.size, np.float32)
        work = self.comm.allgather(sends[self.comm.rank].copy(), recv, async_op=async_op)
        return work, lambda: check(recv, np.concatenate(sends), "allgather")

    def allgatherv(self, elems: int, root: int, op: Any, async_op: bool) -> Any:
        counts = [int(c) for c in self.random.integers(0, 2 * elems + 1, self.comm.size)]
        counts[root] = 0
        displs = [sum(counts[r:]) for r in range(1, self.comm.size + 1)]  # the last rank's first
        sends = [self.random.uniform(0.5, 2, count).astype(np.float32) for count in counts]
        recv = np.zeros(sum(counts), np.float32)
        work = self.comm.allgatherv(sends[self.comm.rank].copy(), recv, counts, displs, async_op=async_op)
        return work, lambda: check(recv, np.concatenate(sends[::-1]), "allgatherv")

    def alltoall(self, elems: int, root: int, op: Any, async_op: bool) -> Any:
        sends = self.sends(elems * self.comm.size)
        recv = np.zeros(elems * self.comm.size, np.float32)
        work = self.comm.alltoall(sends[self.comm.rank].copy(), recv, async_op=async_op)
        expected = np.concatenate([np.split(send, self.comm.size)[self.comm.rank] for send in sends])
        return work, lambda: check(recv, expected, "alltoall")


NAMES = [name for name in vars(Calls) if not name.startswith("_") and name != "sends"]


def every_call(comm: a2a.Communicator, hosts: str, seed: int) -> None:
    calls = Calls(comm, hosts, seed)
    for name in NAMES:
        for elems in ELEMS:
            for root in (0, comm.size - 1):
                for op in ("sum", "max", "avg"):
                    _, look = getattr(calls, name)(elems, root, op, False)
                    look()


def test_every_call(pool: Pool) -> None:
    pool.run(every_call, pool.hosts, 3)


def several_at_once(comm: a2a.Communicator, hosts: str, seed: int) -> None:
    """Any operations, up to five in flight, the same ones again and again, waited for in any order."""
    calls = Calls(comm, hosts, seed)
    for _ in range(25):
        flights = []
        for _ in range(calls.random.integers(1, 6)):
            name = str(calls.random.choice(NAMES))
            elems, root = int(calls.random.choice(ELEMS)), int(calls.random.integers(comm.size))
            flights.append(getattr(calls, name)(elems, root, str(calls.random.choice(["sum", "avg"])), True))
        for at in np.random.default_rng([seed, comm.rank]).permutation(len(flights)):
            work, look = flights[at]
            if at % 2:
                while not all(work.arrived(peer) for peer in range(comm.size)):
                    pass
                look()
            work.wait()
            look()


@pytest.mark.parametrize("seed", range(3))
def test_several_at_once(pool: Pool, seed: int) -> None:
    pool.run(several_at_once, pool.hosts, seed)


def same_bits(comm: a2a.Communicator, elems: int) -> bytes:
    x = np.random.default_rng(comm.rank).standard_normal(elems).astype(np.float16)
    results: list[bytes] = []
    for _ in range(3):
        y = x.copy()
        comm.allreduce(y)
        results.append(y.tobytes())
    assert len(set(results)) == 1
    return results[0]


@pytest.mark.parametrize("elems", [100, 50_001])
def test_every_rank_gets_the_same_bits(pool: Pool, elems: int) -> None:
    assert len(set(pool.run(same_bits, elems))) == 1


# ---- disagreements ---------------------------------------------------------------------------------------------------


def disagreements(comm: a2a.Communicator, elems: int) -> list[tuple[str, str]]:
    """How each call ended in which rank 1 is wrong. The next one is right."""
    odd, n = comm.rank == 1, comm.size
    x, large = np.ones(elems, np.float32), np.zeros(n * elems, np.float32)
    counts = [2 * elems, *[elems] * (n - 2), 0][:: -1 if odd else 1]
    calls = {
        "op": lambda: comm.allreduce(x.copy(), op="max" if odd else "sum"),
        "avg": lambda: comm.allreduce(x.copy(), op="sum" if odd else "avg"),
        "dtype": lambda: comm.allreduce(x.astype(np.int32) if odd else x.copy()),
        "size": lambda: comm.allreduce(np.ones(elems - 8 if odd else elems, np.float32)),
        "much less": lambda: comm.allreduce(np.ones(2 if odd else elems, np.float32)),
        "root of broadcast": lambda: comm.broadcast(x.copy(), 1 if odd else 0),
        "root of reduce": lambda: comm.reduce(x.copy(), None, 1 if odd else 0),
        "size of reduce": lambda: comm.reduce(np.ones(2 if odd else elems, np.float32)),
        "counts": lambda: comm.reduce_scatterv(large.copy(), counts, np.zeros(counts[comm.rank], np.float32)),
        "operation": lambda: comm.broadcast(x.copy()) if odd else comm.allreduce(x.copy()),
        "alltoall": lambda: comm.alltoall(large, large.copy()) if odd else comm.allreduce(x.copy()),
        "refused": lambda: comm.allreduce(x.copy(), op="mean" if odd else "sum"),
        "half of them": lambda: comm.broadcast(x.copy()) if comm.rank % 2 else comm.allreduce(x.copy()),
        "half of them, others": lambda: (
            comm.allgather(x, large.copy()) if comm.rank < n // 2 else comm.reduce_scatter(large.copy(), x.copy())
        ),
    }
    said = []
    for name, call in calls.items():
        try:
            call()
            said.append((name, "no error"))
        except a2a.Error as error:
            said.append((name, f"{type(error).__name__}: {error}"))
        y = np.full(elems, comm.rank + 1, np.float32)
        comm.allreduce(y)
        assert (y == n * (n + 1) / 2).all(), name
    return said


@pytest.mark.parametrize("elems", [16, 60_000])
def test_disagreements(pool: Pool, elems: int) -> None:
    pairwise = elems == 16 or pool.hosts not in ("a,a,b,b", "a,b,a,c,b,a")
    for rank, said in enumerate(pool.run(disagreements, elems)):
        for name, text in said:
            kind = "InvalidArgumentError" if name == "refused" and rank == 1 else "MismatchError"
            if text == "no error":
                # Where that saves nothing between hosts, only those pairs disagree that exchange something.
                assert pairwise and name in ("root of broadcast", "root of reduce", "size of reduce", "counts"), name
                continue
            assert text.startswith(f"{kind}: "), (rank, name, text)
            assert "rank 1" in text or name.startswith("half of them"), (rank, name, text)


def keeps_its_input(comm: a2a.Communicator) -> None:
    """Of an operation that fails in place nothing is written, wherever those live that disagree."""
    for odd in range(comm.size):
        x = np.full(60_000, comm.rank + 1, np.float32)
        with pytest.raises(a2a.MismatchError):
            comm.allreduce(x, op="max" if comm.rank == odd else "sum")
        assert (x == comm.rank + 1).all()


def test_what_fails_in_place_keeps_its_input(pool: Pool) -> None:
    pool.run(keeps_its_input)


# ---- faults ----------------------------------------------------------------------------------------------------------


def suffer(rank: int, hosts: str, address: str, name: str, struck: int, after: float) -> tuple[str, str, float]:
    """That rank is killed in the middle of many large operations; what the others raise, and how much later."""
    comm = meet(rank, hosts, address)
    calls = Calls(comm, hosts, 1)
    if rank == struck:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, after)
    due = time.monotonic() + after
    try:
        while True:
            flights = [getattr(calls, name)(300_000, 0, "sum", True)[0] for _ in range(2)]
            for work in flights:
                work.wait()
    except a2a.Error as error:
        return type(error).__name__, str(error), time.monotonic() - due


@pytest.mark.parametrize(
    ("name", "hosts"), [("allreduce", "a,a,b,b"), ("allreduce", "a,b,b,c,a"), ("broadcast", "a,a,b,b")]
)
@pytest.mark.parametrize("struck", [0, 3])
@apart
def test_a_killed_rank(hosts: str, name: str, struck: int) -> None:
    size = hosts.count(",") + 1
    ends = run(size, suffer, hosts, free_address(), name, struck, 0.3)
    assert ends[struck].status == -signal.SIGKILL
    for end in ends[:struck] + ends[struck + 1 :]:
        assert end.error is None, end.trace
        kind, text, seconds = end.value
        assert kind == "PeerLostError" and f"rank {struck} " in text and seconds < 3, end.value
        assert f"{name} #" in text, text


def aborts(rank: int, hosts: str, address: str) -> str:
    comm = meet(rank, hosts, address)
    x = np.ones(3_000_000, np.float32)
    with pytest.raises(a2a.AbortedError) as caught:
        comm.allreduce(x)
        if rank == 1:
            comm.abort("enough")
        comm.allreduce(x)
    return str(caught.value)


@apart
def test_abort() -> None:
    for text in values(run(4, aborts, "a,a,b,b", free_address())):
        assert "enough" in text


def misses(rank: int, hosts: str, address: str, name: str) -> str:
    """The last rank does not come."""
    comm = meet(rank, hosts, address, 1.5)
    calls = Calls(comm, hosts, 1)
    getattr(calls, name)(100_000, 0, "sum", False)
    if rank == comm.size - 1:
        time.sleep(2.5)
        return "timeout"
    with pytest.raises(a2a.TimeoutError) as caught:
        getattr(calls, name)(100_000, 0, "sum", False)
    with contextlib.suppress(a2a.Error):
        comm.close()
    time.sleep(0.5)
    return str(caught.value)


@pytest.mark.parametrize("name", ["allreduce", "broadcast"])
@apart
def test_a_rank_that_does_not_come(name: str) -> None:
    for text in values(run(5, misses, "a,a,b,b,b", free_address(), name)):
        assert "timeout" in text
