"""Ranks that try again, give up, die or do not read while they meet on one host: the next attempt finds the others, and
whoever gives up says who never came."""

from __future__ import annotations

import mmap
import os
import re
import selectors
import signal
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from forked import apart, connect, job_name, run, values

import a2a

pytestmark = pytest.mark.timeout(60)


def try_again(rank: int, n: int, job: str, timeout: float) -> float:
    """When this rank has met the others, having tried for as long as it takes."""
    patience = time.monotonic() + 6
    while True:
        try:
            comm = connect(rank, n, job, timeout)
            met = time.monotonic()
            comm.barrier(timeout=20)
            return met
        except (a2a.TimeoutError, a2a.PeerLostError):
            if time.monotonic() > patience:
                raise


def try_late(rank: int, late: list[float], timeouts: list[float], job: str) -> float:
    time.sleep(late[rank])
    return try_again(rank, len(late), job, timeouts[rank])


# Attempts of 0.3 s by ranks that are out of step by more than one of them, or that have other deadlines.
@pytest.mark.parametrize(
    ("late", "timeouts"),
    [
        ([0, 0.5], [0.3, 0.3]),
        ([0.5, 0], [0.3, 0.3]),
        ([0, 0.1, 0.8], [0.3, 0.3, 0.3]),
        ([0.1, 0.8, 0], [0.2, 5, 0.35]),
        ([0, 0, 0, 0.9], [5, 0.15, 0.2, 0.25]),
    ],
)
@apart
def test_ranks_out_of_step_meet(late: list[float], timeouts: list[float]) -> None:
    begin = time.monotonic()
    met = values(run(len(late), try_late, late, timeouts, job_name()))
    assert max(met) - begin - max(late) < 0.5 + max(timeouts[1:]) * (timeouts[0] > 1), met


def await_word(board: mmap.mmap, at: int) -> None:
    while board[at] == 0:
        time.sleep(0.001)


def await_joined(job: str) -> None:
    """Waits until a rank has connected to rank 0 of that job."""
    connected = " 0005 03 "  # type and state, as the kernel prints them
    while not any(job in line and connected in line for line in Path("/proc/net/unix").read_text().splitlines()):
        time.sleep(0.005)


def die_while_meeting(i: int, job: str, board: mmap.mmap) -> None:
    """Rank 0, and a rank 2 that is killed as it waits; another rank 2, and rank 1, are started after that."""
    if i == 1:
        connect(2, 3, job)
    if i > 1:
        await_word(board, 0)
    if i == 3:
        time.sleep(0.1)  # comes last: with it the others have met
    try_again([0, 2, 2, 1][i], 3, job, 0.5)


@pytest.mark.parametrize("early", [False, True])
@apart
def test_rank_restarted_while_ranks_meet(early: bool) -> None:
    board = mmap.mmap(-1, mmap.PAGESIZE)
    job = job_name()

    def during(pids: list[int]) -> None:
        await_joined(job)
        time.sleep(0.1)
        if early:  # it is still ending when the next one comes
            board[0] = 1
            time.sleep(0.05)
        os.kill(pids[1], signal.SIGKILL)
        board[0] = 1

    ends = run(4, die_while_meeting, job, board, during=during)
    assert ends[1].status == -signal.SIGKILL
    values([ends[0], *ends[2:]])


def die_after_meeting(i: int, job: str, board: mmap.mmap) -> None:
    """Ranks that have met; one dies, the others notice and try again, and it is started again."""
    if i < 3:
        comm = connect(i, 3, job)
        comm.barrier()
        if i == 2:
            board[0] = 1
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(a2a.PeerLostError):
            comm.barrier()
    await_word(board, 0)
    try_again(min(i, 2), 3, job, 0.5)


@apart
def test_rank_restarted_after_ranks_met() -> None:
    ends = run(4, die_after_meeting, job_name(), mmap.mmap(-1, mmap.PAGESIZE))
    assert ends[2].status == -signal.SIGKILL
    values([*ends[:2], ends[3]])


def interrupted(rank: int, n: int, job: str, who: int, board: mmap.mmap) -> None:
    """Ctrl-C ends an attempt of one rank, which tries again at once; the last rank comes after that."""
    if rank == n - 1:
        await_word(board, 0)
        try_again(rank, n, job, 0.5)
        return
    if rank == who:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            connect(rank, n, job, 30)
        assert 0.2 < time.monotonic() - begin < 0.6
        board[0] = 1
    while True:
        try:
            try_again(rank, n, job, 5)
            return
        except a2a.AbortedError as error:
            text = str(error)
        assert who == 0 and "rank 0 was interrupted" in text


@pytest.mark.parametrize("who", [0, 1])
@apart
def test_interrupted_attempt_is_not_in_the_way(who: int) -> None:
    values(run(3, interrupted, 3, job_name(), who, mmap.mmap(-1, mmap.PAGESIZE)))


@apart
def test_threads_of_a_rank_meet_one_after_the_other() -> None:
    def meet_twice(rank: int, job: str) -> int:
        comms: list[a2a.Communicator] = []
        threads = [threading.Thread(target=lambda: comms.append(connect(rank, 2, job))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(comms)

    assert values(run(2, meet_twice, job_name())) == [3, 3]


# ---- who is named ----------------------------------------------------------------------------------------------------


def miss(rank: int, begins: list[float], timeouts: list[float], lingers: float, job: str) -> tuple[str, str, float]:
    """What a rank says that waits for rank 2, which is never there. It lives on for a while."""
    time.sleep(begins[rank])
    begin = time.monotonic()
    with pytest.raises(a2a.Error) as caught:
        connect(rank, 3, job, timeouts[rank])
    seconds = time.monotonic() - begin
    time.sleep(lingers)
    return type(caught.value).__name__, str(caught.value), seconds


@pytest.mark.parametrize("lingers", [0, 2])
@pytest.mark.parametrize(
    ("begins", "timeouts"), [([0.3, 0], [0.6, 0.6]), ([0, 0.3], [0.6, 0.6]), ([0, 0], [0.6, 0.6]), ([0, 0], [1.2, 0.3])]
)
@apart
def test_rank_that_never_came_is_named(begins: list[float], timeouts: list[float], lingers: float) -> None:
    for name, text, seconds in values(run(2, miss, begins, timeouts, lingers, job_name())):
        assert name == "TimeoutError" and re.search(r"waiting for rank 2\b", text), text
        assert "lost" not in text and not re.search(r"waiting for rank [01]\b", text), text
        assert seconds < 1.5, (seconds, text)


def exit_early(rank: int, job: str) -> tuple[str, str]:
    if rank == 2:
        os._exit(0)
    name, text, _ = miss(rank, [0, 0], [0.5, 0.5], 0, job)
    return name, text


@apart
def test_rank_that_exits_before_it_joins_is_named() -> None:
    ends = run(3, exit_early, job_name())
    for name, text in values(ends[:2]):
        assert name == "TimeoutError" and "waiting for rank 2" in text, text


def wait_for_thread(rank: int) -> str:
    bootstraps = a2a._core.thread_bootstraps(4)
    texts: list[str] = []

    def meet(i: int) -> None:
        with pytest.raises(a2a.TimeoutError) as caught:
            a2a.init(i, 4, bootstrap=bootstraps[i], timeout=0.3)
        texts.append(str(caught.value))

    threads = [threading.Thread(target=meet, args=(i,)) for i in (0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return " / ".join(texts)


@apart
def test_missing_threads_are_named() -> None:
    (text,) = values(run(1, wait_for_thread))
    assert text.count("rank 1, 3") == 2, text


# ---- ranks that do not read ------------------------------------------------------------------------------------------

HELLO, WELCOME, REFUSAL, DATA = range(4)
MAGIC = 0x61326103


def packet(kind: int, rank: int, size: int, text: bytes = b"") -> bytes:
    return struct.pack("<IIiii", MAGIC, kind, rank, size, os.getpid()) + text


def join_by_hand(n: int, job: str) -> list[socket.socket]:
    """Ranks 1 to n - 1, which rank 0 has welcomed."""
    name, ranks, patience = f"\0a2a-{os.geteuid()}-{job}", [], time.monotonic() + 10
    for rank in range(1, n):
        ranks.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        while True:
            try:
                ranks[-1].connect(name)
                break
            except (ConnectionRefusedError, BlockingIOError):
                assert time.monotonic() < patience
                time.sleep(0.005)
        ranks[-1].send(packet(HELLO, rank, n))
        ranks[-1].settimeout(10)
    for rank in ranks:
        assert struct.unpack("<IIiii", rank.recv(1 << 17)[:20])[1] == WELCOME
    return ranks


def take_everything(ranks: list[socket.socket], seconds: float) -> int:
    """How many of them get the last packet of the strings in time."""
    selector, complete, until = selectors.DefaultSelector(), 0, time.monotonic() + seconds
    for rank in ranks:
        selector.register(rank, selectors.EVENT_READ)
    while selector.get_map() and time.monotonic() < until:
        for key, _ in selector.select(0.1):
            data = key.fileobj.recv(1 << 17)  # type: ignore[union-attr]
            _, kind, _, last, _ = struct.unpack("<IIiii", data[:20]) if data else (0, REFUSAL, 0, 0, 0)
            if kind != DATA or last:
                complete += kind == DATA
                selector.unregister(key.fileobj)
    return complete


def wait_for_reader(rank: int, n: int, bytes_each: int, job: str, interrupt: bool) -> Any:
    if rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt if interrupt else a2a.TimeoutError) as caught:
            connect(0, n, job, 30 if interrupt else 2.5)
        return time.monotonic() - begin, str(caught.value)
    ranks = join_by_hand(n, job)
    for i, peer in enumerate(ranks, 1):
        peer.send(packet(DATA, i, 0, bytes(bytes_each)))
    complete = take_everything(ranks[1:], 2.4)
    if interrupt:
        os.kill(pid_of_other_end(ranks[0]), signal.SIGINT)
    time.sleep(0.3 if interrupt else 3)
    return complete


def pid_of_other_end(end: socket.socket) -> int:
    return int(struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


@pytest.mark.parametrize("interrupt", [False, True])
@pytest.mark.parametrize(("n", "bytes_each"), [(8, 60_000), (256, 1600), (800, 500)])
@apart
def test_rank_that_does_not_read(n: int, bytes_each: int, interrupt: bool) -> None:
    (seconds, text), complete = values(run(2, wait_for_reader, n, bytes_each, job_name(), interrupt))
    assert complete == n - 2
    if not interrupt:
        assert re.search(r"rank 0 timed out waiting for rank 1 \(pid \d+, alive\) to take what", text), text
    assert seconds < 3.2, seconds
