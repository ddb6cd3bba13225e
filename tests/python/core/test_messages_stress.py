"""Random messages among random collectives, every byte of them compared with what NumPy says it is."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from forked import apart, connect, job_name, run, values
from tcp_peer import free_address

import a2a

Array = np.ndarray[Any, Any]
# Bytes around the limits of what fits into a letter, of what is copied at once, and of pieces and steps of copies.
LIMITS = [0, 576, 16 << 10, 64 << 10, 256 << 10, 1 << 20]
DTYPES = [np.uint8, np.int16, np.float32, np.complex128]
ANY = -77  # the tag of messages that are received from any rank


def size_of(draw: random.Random, elem_bytes: int) -> int:
    near = draw.choice(LIMITS) // elem_bytes + draw.choice([-1, 0, 0, 1, draw.randrange(100)])
    return max(0, draw.choice([near, draw.randrange(200), near]))


def content(seed: int, elems: int, dtype: Any) -> Array:
    width = np.dtype(dtype).itemsize
    first = np.random.default_rng(seed).integers(0, 256, 257, np.uint8)
    return np.resize(first, elems * width).view(dtype)


def new(comm: a2a.Communicator, draw: random.Random, elems: int, dtype: Any) -> Array:
    if draw.random() < 0.3:
        with contextlib.suppress(MemoryError):
            made: Array = comm.empty(elems, dtype)
            return made
    return np.empty(elems, dtype)


def same(left: Array, right: Array) -> bool:
    return left.tobytes() == right.tobytes()


class Message:
    def __init__(self, draw: random.Random, size: int, seed: int) -> None:
        self.seed, self.source, self.target = seed, draw.randrange(size), draw.randrange(size)
        self.tag = draw.choice([0, 1, 1, -(2**63)])
        self.dtype = draw.choice(DTYPES)
        self.elems = size_of(draw, np.dtype(self.dtype).itemsize)


def in_some_order(draw: random.Random, queues: Iterable[list[Any]]) -> list[Any]:
    """All that is in the queues; what is in one of them keeps its order."""
    waiting, merged = [queue[::-1] for queue in queues if queue], []
    while waiting:
        queue = draw.choice(waiting)
        merged.append(queue.pop())
        waiting = [queue for queue in waiting if queue]
    return merged


def queues_of(messages: list[Message], key: Callable[[Message], Any]) -> list[list[Message]]:
    queues: dict[Any, list[Message]] = {}
    for message in messages:
        queues.setdefault(key(message), []).append(message)
    return list(queues.values())


def collectives(comm: a2a.Communicator, draw: random.Random) -> list[Callable[[], Callable[[], None]]]:
    """Operations that all ranks start in this order; each returns what waits for it and checks it."""
    starts = []
    for number in range(draw.randrange(4)):
        kind, elems = draw.choice(["allreduce", "alltoall", "barrier"]), draw.choice([1, 500, 9000, 300_000])
        starts.append(lambda kind=kind, elems=elems, number=number: collective(comm, kind, elems, number))
    return starts


def collective(comm: a2a.Communicator, kind: str, elems: int, number: int) -> Callable[[], None]:
    if kind == "barrier":
        comm.barrier()
        return lambda: None
    n, rank = comm.size, comm.rank
    if kind == "allreduce":
        both = np.arange(elems, dtype=np.int64) * (rank + 1) + number
        wanted = np.arange(elems, dtype=np.int64) * (n * (n + 1) // 2) + n * number
        work = comm.allreduce(both, async_op=True)
    else:
        send = np.repeat(np.arange(n, dtype=np.int64) + 100 * rank + number, elems)
        both, wanted = np.empty_like(send), np.repeat(100 * np.arange(n) + rank + number, elems)
        work = comm.alltoall(send, both, async_op=True)
    assert work is not None

    def finish() -> None:
        work.wait()
        assert (both == wanted).all(), (kind, elems)

    return finish


def storm(comm: a2a.Communicator, seed: int, rounds: int, most: int = 40) -> None:
    """All ranks draw the same messages and collectives, and each starts its own in an order of its own."""
    draw, own = random.Random(seed), random.Random(1000 * seed + comm.rank)
    for round_ in range(rounds):
        messages = [Message(draw, comm.size, (seed * 1000 + round_) * 1000 + i) for i in range(draw.randrange(most))]
        of_any = draw.randrange(600)  # elements of those that are received from any rank
        for message in messages:
            if draw.random() < 0.1:
                message.tag, message.elems, message.dtype = ANY, of_any, np.uint8
        run_round(comm, messages, collectives(comm, draw), own)
        if any(message.tag == ANY for message in messages):
            comm.barrier()  # nobody is to receive what belongs to the next round


def run_round(
    comm: a2a.Communicator,
    messages: list[Message],
    operations: list[Callable[[], Callable[[], None]]],
    own: random.Random,
) -> None:
    sends = [m for m in messages if m.source == comm.rank]
    recvs = [m for m in messages if m.target == comm.rank]
    finishers: list[Callable[[], None]] = []
    seen: dict[int, list[Array]] = {}

    def send(m: Message) -> None:
        data = new(comm, own, m.elems, m.dtype)
        data[...] = content(m.seed, m.elems, m.dtype)
        work = comm.send(data, m.target, m.tag, async_op=True)
        assert work is not None

        def finish() -> None:
            work.wait()
            data.view(np.uint8)[...] = 0xEE  # it is this rank's again

        finishers.append(finish)

    def recv(m: Message) -> None:
        data = new(comm, own, m.elems, m.dtype)
        data.view(np.uint8)[...] = 0x77
        work = comm.recv(data, None if m.tag == ANY else m.source, m.tag, async_op=True)
        assert work is not None

        def finish() -> None:
            work.wait()
            if m.tag == ANY:
                assert work.source is not None
                seen.setdefault(work.source, []).append(data)
            else:
                assert work.source == m.source
                assert same(data, content(m.seed, m.elems, m.dtype)), (m.source, m.target, m.tag, m.elems)

        finishers.append(finish)

    own_sends = queues_of(sends, lambda m: (m.target, m.tag))
    own_recvs = queues_of(recvs, lambda m: ANY if m.tag == ANY else (m.source, m.tag))
    starts = [[lambda m=m: send(m) for m in queue] for queue in own_sends]
    starts += [[lambda m=m: recv(m) for m in queue] for queue in own_recvs]
    starts.append([lambda o=o: finishers.append(o()) for o in operations])
    for start in in_some_order(own, starts):
        start()
    of_any = [m for m in recvs if m.tag == ANY]
    if not of_any:
        own.shuffle(finishers)
    for finish in finishers:
        finish()
    for source in range(comm.size):  # those of one rank come in its order
        wanted = [content(m.seed, m.elems, m.dtype) for m in of_any if m.source == source]
        got = seen.get(source, [])
        assert len(got) == len(wanted)
        assert all(map(same, got, wanted)), source


@pytest.mark.parametrize("threads", [False, True], ids=["processes", "threads"])
@pytest.mark.parametrize("n", [2, 5])
def test_storm(run_ranks: Callable[..., Any], n: int, threads: bool) -> None:
    run_ranks(n, storm, n, int(os.environ.get("STORM_ROUNDS", "12")), threads=threads)


VARIABLES = {
    "thread": {"A2A_PROGRESS_THREAD": "1"},
    "cma": {"A2A_SHM_CMA_MIN": "600", "A2A_SHM_DIRECT_MIN": "600"},
    "hidden": {"A2A_SHM_CMA_MIN": "600"},
}


def hide() -> None:
    pr_set_dumpable = 4
    assert ctypes.CDLL(None).prctl(pr_set_dumpable, 0, 0, 0, 0) == 0


def varied(rank: int, n: int, job: str, how: str, seed: int) -> None:
    os.environ.update(VARIABLES[how])
    comm = connect(rank, n, job)
    if how == "hidden" and rank == 1:
        hide()  # from now on nobody reads its memory, and the others find out by trying
    storm(comm, seed, int(os.environ.get("STORM_ROUNDS", "8")))
    comm.close()


@apart
@pytest.mark.parametrize("how", list(VARIABLES))
def test_storm_with_variables(how: str) -> None:
    values(run(3, varied, 3, job_name(), how, int(os.environ.get("STORM_SEED", "5"))))


# ---- two threads of each rank ----------------------------------------------------------------------------------------


def two_threads(comm: a2a.Communicator, rounds: int) -> None:
    """In each rank one thread sends and another one receives, with tags of their own, and both block."""
    failures: list[BaseException] = []

    def guarded(fn: Callable[[random.Random], None], seed: int) -> None:
        try:
            fn(random.Random(seed))
        except BaseException as error:
            failures.append(error)
            comm.abort(repr(error))

    peers = [peer for peer in range(comm.size) if peer != comm.rank]

    def send(draw: random.Random) -> None:
        for i in range(rounds):
            for peer in peers:
                elems = size_of(random.Random(1000 * i + comm.rank), 1)
                comm.send(content(i + comm.rank, elems, np.uint8), peer, i)

    def recv(draw: random.Random) -> None:
        for i in range(rounds):
            for peer in draw.sample(peers, len(peers)):
                data = np.empty(size_of(random.Random(1000 * i + peer), 1), np.uint8)
                comm.recv(data, peer, i)
                assert same(data, content(i + peer, data.size, np.uint8)), (peer, i)

    threads = [threading.Thread(target=guarded, args=(fn, comm.rank)) for fn in (send, recv)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    comm.barrier()


@pytest.mark.parametrize("n", [2, 4])
def test_two_threads(run_ranks: Callable[..., Any], n: int) -> None:
    run_ranks(n, two_threads, 30)


# ---- between hosts ---------------------------------------------------------------------------------------------------


def storm_between_hosts(rank: int, hosts: str, address: str, seed: int) -> None:
    from tcp_ranks import meet

    comm = meet(rank, hosts, address)
    storm(comm, seed, int(os.environ.get("STORM_ROUNDS", "6")), 30)
    comm.close()


@apart
@pytest.mark.parametrize("hosts", ["a,b", "a,a,b,b,c"])
def test_storm_between_hosts(hosts: str) -> None:
    seed = int(os.environ.get("STORM_SEED", "3"))
    values(run(hosts.count(",") + 1, storm_between_hosts, hosts, free_address(), seed))


# ---- ranks that end in the middle ------------------------------------------------------------------------------------


def storm_with_an_end(rank: int, n: int, job: str, how: str, seed: int) -> str:
    """Rank 0 ends at any moment. The others get errors, in time, and what they receive before is right."""
    os.environ["A2A_SHM_CMA_MIN"] = "100000"
    comm = connect(rank, n, job, timeout=15)
    if rank == 0:
        threading.Timer(random.Random(seed).uniform(0, 0.15), end, (comm, how)).start()
    try:
        storm(comm, seed, 10_000)
    except a2a.Error as error:
        return type(error).__name__
    raise AssertionError("a storm without an end")


def end(comm: a2a.Communicator, how: str) -> None:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "aborts":
        comm.abort("enough")
    elif os.fork() == 0:  # a child has nothing of it, and harms nobody
        refused = 0
        for call in (lambda: comm.send(np.zeros(4), 1), lambda: comm.recv(np.zeros(4), 1)):
            with contextlib.suppress(a2a.AbortedError):
                call()
                refused -= 1
            refused += 1
        os._exit(0 if refused == 2 else 1)
    elif os.waitstatus_to_exitcode(os.wait()[1]) == 0:
        comm.abort("enough")


@apart
@pytest.mark.parametrize("how", ["killed", "aborts", "forks"])
def test_a_rank_ends_in_a_storm(how: str) -> None:
    kind = "PeerLostError" if how == "killed" else "AbortedError"
    for seed in range(int(os.environ.get("STORM_ENDS", "3"))):
        began = time.monotonic()
        ends = run(3, storm_with_an_end, 3, job_name(), how, seed)
        assert [end.value for end in ends[how == "killed" :]] == [kind] * (2 if how == "killed" else 3), ends
        assert time.monotonic() - began < 12


# ---- messages that are not taken -------------------------------------------------------------------------------------


def storm_of_refusals(comm: a2a.Communicator, seed: int, rounds: int) -> None:
    """Some receives want another number of elements, or have bad arguments: both sides hear of it, and all others are
    right. Of messages so large that their senders wait, so that everybody hears of it at once."""
    draw, own = random.Random(seed), random.Random(1000 * seed + comm.rank)
    for round_ in range(rounds):
        works = []
        for tag in range(12):
            source, target = draw.sample(range(comm.size), 2)
            elems, fate = 70_000 + draw.randrange(500_000), draw.choice(["good", "good", "short", "dtype", "refused"])
            sent = content(round_ * 100 + tag, elems, np.uint8)
            if comm.rank == source:
                works.append((comm.send(sent, target, tag, async_op=True), fate, None, sent))
            elif comm.rank == target and fate == "refused":
                with pytest.raises(a2a.InvalidArgumentError, match="objects cannot be exchanged"):
                    comm.recv(np.zeros(elems, object), source, tag)
            elif comm.rank == target:
                data = np.empty(elems - (fate == "short"), np.int8 if fate == "dtype" else np.uint8)
                works.append((comm.recv(data, source, tag, async_op=True), fate, data, sent))
        own.shuffle(works)
        for work, fate, data, sent in works:
            assert work is not None
            if fate == "good":
                work.wait()
                assert data is None or same(data, sent)
            else:
                with pytest.raises(a2a.MismatchError):
                    work.wait()
        total = np.ones(1000, np.float32)
        comm.allreduce(total)
        assert (total == comm.size).all()


@pytest.mark.parametrize("threads", [False, True], ids=["processes", "threads"])
def test_storm_of_refusals(run_ranks: Callable[..., Any], threads: bool) -> None:
    run_ranks(3, storm_of_refusals, 1, 8, threads=threads)
