"""How ranks meet, and fail to: wrong numbers, missing ranks, strangers, odd names, limits of the system."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import re
import resource
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import apart, assert_usable, connect, job_name, raised, run, values
from possessions import descriptors

import a2a
from a2a import _core

pytestmark = pytest.mark.timeout(60)


def join_as(rank: int, facts: list[tuple[int, int]], job: str, timeout: float) -> tuple[str, str, float]:
    time.sleep(0.05 * rank)  # so that it is known who comes last
    begin = time.monotonic()
    try:
        comm = connect(*facts[rank], job, timeout)
        comm.barrier()
        comm.close()
    except a2a.Error as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return "", "", time.monotonic() - begin


@apart
def test_same_rank_twice() -> None:
    ends = values(run(3, join_as, [(0, 3), (1, 3), (1, 3)], job_name(), 5))
    for name, text, seconds in (ends[0], ends[2]):
        assert name == "InvalidArgumentError" and re.search(r"rank 1 joined twice, from pid \d+ and pid \d+", text), (
            text
        )
        assert seconds < 2


# Rank 0 closes a connection with bytes that it has not read, so that the kernel reports a reset before its last words.
@apart
def test_everybody_learns_why_ranks_do_not_meet() -> None:
    for facts in ([(0, 3), (1, 3), (1, 3)], [(0, 3), (1, 3), (2, 4)]) * 6:
        for name, text, _ in values(run(3, join_as, facts, job_name(), 5)):
            assert name == "InvalidArgumentError", (name, text)


@apart
def test_rank_0_twice() -> None:
    job = job_name()
    ends = values(run(3, join_as, [(0, 3), (1, 3), (0, 3)], job, 2))
    late = [text for name, text, seconds in ends if name == "InvalidArgumentError" and seconds < 1]
    assert len(late) == 1 and "rank 0 is already there (pid " in late[0] and job in late[0], ends
    # The others do not notice: rank 2 never came.
    assert sorted(name for name, _, _ in ends)[1:] != ["", ""], ends


@apart
def test_sizes_differ() -> None:
    ends = values(run(3, join_as, [(0, 3), (1, 3), (2, 4)], job_name(), 5))
    for name, text, seconds in (ends[0], ends[2]):
        assert name == "InvalidArgumentError", (name, text)
        assert "rank 2 was started with size 4, rank 0 with size 3" in text and seconds < 2, text


@apart
def test_rank_0_does_not_come() -> None:
    for name, text, seconds in values(run(2, join_as, [(1, 3), (2, 3)], job_name(), 0.6)):
        assert name == "TimeoutError" and "timed out waiting for rank 0" in text, (name, text)
        assert 0.59 <= seconds < 1, seconds


# ---- strangers of the same user --------------------------------------------------------------------------------------


def listeners_of(pids: list[int]) -> Iterator[str]:
    """Abstract names on which these processes, and no others, listen."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.update(re.findall(r"socket:\[(\d+)\]", str(entry.readlink())))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) == 8 and fields[6] in inodes and fields[7].startswith("@"):
            yield fields[7][1:]


def harass(n: int, done: mmap.mmap, manner: str) -> int:
    """Connects to whatever the ranks listen on, several times, and keeps the connections open until they have met."""
    siblings = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children")
    found, held = set[str](), []
    while bytes(done[:n]) != b"d" * n:
        for name in set(listeners_of([int(p) for p in siblings.read_text().split() if int(p) != os.getpid()])) - found:
            found.add(name)
            for _ in range(3):
                stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                stranger.setblocking(False)
                with contextlib.suppress(OSError):
                    stranger.connect("\0" + name)
                    if manner == "junk":
                        stranger.send(os.urandom(64))
                    if manner == "descriptors":
                        socket.send_fds(stranger, [b"x" * 24], [0, 0])
                    if manner == "hangs up":
                        stranger.close()
                held.append(stranger)
        done[n] = len(found)
        time.sleep(0.001)
    return len(found)


def meet_strangers(rank: int, n: int, job: str, done: mmap.mmap, manner: str) -> int:
    if rank == n:
        return harass(n, done, manner)
    patience = time.monotonic() + 5
    while done[n] < min(rank, 2) and time.monotonic() < patience:  # rank 0's meeting place, then rank 1's listener
        time.sleep(0.001)
    comm = connect(rank, n, job, timeout=10)
    assert_usable(comm)
    comm.close()
    done[rank] = ord("d")
    return 0


@pytest.mark.parametrize("manner", ["silent", "junk", "hangs up", "descriptors"])
@apart
def test_strangers(manner: str) -> None:
    n = 4
    for _ in range(3):
        begin = time.monotonic()
        found = values(run(n + 1, meet_strangers, n, job_name(), mmap.mmap(-1, mmap.PAGESIZE), manner))[n]
        assert found >= 2, "the meeting place and a rank's listener were there to be found"
        assert time.monotonic() - begin < 5


# ---- names -----------------------------------------------------------------------------------------------------------


@apart
def test_odd_names() -> None:
    unique = job_name()
    for name in ["", " ", "a b\n\t", "../../etc", "@", "ü€😀" * 10, "x" * 90, "x" * 5000, "%s%n", "\udc80"]:
        values(run(2, lambda rank, job: assert_usable(connect(rank, 2, job)), unique + name))


@apart
def test_long_names_are_told_apart() -> None:
    name = job_name() + "x" * 200
    ends = run(4, lambda rank: assert_usable(connect(rank % 2, 2, name + "ab"[rank // 2])))
    values(ends)


# ---- what is left ----------------------------------------------------------------------------------------------------


def held() -> tuple[int, int]:
    gc.collect()
    mappings = Path("/proc/self/maps").read_text().splitlines()
    return len(list(Path("/proc/self/fd").iterdir())), sum("/memfd:" in line for line in mappings)


def meet_again(rank: int, n: int, job: str) -> tuple[tuple[int, int], tuple[int, int]]:
    before = (0, 0)
    for i in range(100):
        comm = connect(rank, n, f"{job}-{i}")
        comm.alltoall(np.zeros(n * 10_000), np.zeros(n * 10_000))
        comm.close()
        del comm
        if i == 4:
            before = held()
    return before, held()


@apart
def test_init_and_close_100_times() -> None:
    for before, after in values(run(3, meet_again, 3, job_name(), timeout=50)):
        assert after == before


def meet_on_one_cpu(rank: int, n: int, job: str) -> int:
    """In how many of 400 meetings something that was still open after init() is closed later."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # where the thread that met seldom ends before init() does
    late = 0
    for i in range(400):
        with connect(rank, n, f"{job}-{i}"):
            at_once = descriptors()
            time.sleep(0.002)
            late += descriptors() != at_once
    return late


@apart
def test_nothing_of_the_meeting_outlives_init() -> None:
    assert values(run(2, meet_on_one_cpu, 2, job_name())) == [0, 0]


# ---- a bootstrap written in Python -----------------------------------------------------------------------------------


class Through:
    """Ranks meet through a communicator that they have already, and something goes wrong on the way."""

    def __init__(self, comm: a2a.Communicator, change: Callable[[list[bytes]], Any]) -> None:
        self.comm, self.change = comm, change

    def allgather(self, mine: bytes) -> Any:
        return self.change(self.comm.allgather_bytes(mine))


def fail(_: list[bytes]) -> None:
    raise KeyError("no meeting")


CHANGES: dict[str, tuple[Callable[[list[bytes]], Any], type[BaseException], str]] = {
    "raises": (fail, KeyError, "no meeting"),
    "one too few": (lambda all_: all_[1:], a2a.InvalidArgumentError, "2 items for 3 ranks"),
    "one too many": (lambda all_: [*all_, b""], a2a.InvalidArgumentError, "4 items for 3 ranks"),
    "none": (lambda _: [], a2a.InvalidArgumentError, "0 items for 3 ranks"),
    "cut": (lambda all_: [item[:-1] for item in all_], a2a.UnsupportedError, "another version"),
    "empty": (lambda all_: [b"" for _ in all_], a2a.UnsupportedError, "another version"),
    "no bytes": (lambda _: ["a", "b", "c"], TypeError, "bytes-like"),
    "no list": (lambda _: None, TypeError, "iterable"),
}


def meet_badly(rank: int, n: int, job: str, change: str) -> str:
    comm = connect(rank, n, job)
    bad, kind, _ = CHANGES[change]
    if rank == 1:
        text = raised(kind, a2a.init, rank, n, bootstrap=Through(comm, bad), timeout=1)
    else:
        try:
            a2a.init(rank, n, bootstrap=Through(comm, lambda all_: all_), timeout=1)
        except (a2a.PeerLostError, a2a.TimeoutError) as error:
            text = str(error)
    assert_usable(comm)
    comm.close()
    return text


@pytest.mark.parametrize("change", CHANGES)
@apart
def test_bootstrap_in_python(change: str) -> None:
    texts = values(run(3, meet_badly, 3, job_name(), change))
    assert CHANGES[change][2] in texts[1], texts


def linger(all_: list[bytes]) -> list[bytes]:
    """Knows the others, but does not come to connect to them for a while."""
    time.sleep(1)
    return all_


def interrupt_meeting(rank: int, n: int, job: str, interrupted: int) -> float:
    comm = connect(rank, n, job)
    if rank != interrupted:
        with contextlib.suppress(a2a.PeerLostError):
            a2a.init(rank, n, bootstrap=Through(comm, linger if rank == 0 else lambda all_: all_)).close()
        return 0.0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pid, due = os.getpid(), time.monotonic() + 0.3

    def interrupt() -> None:
        time.sleep(0.3)
        os.kill(pid, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        a2a.init(rank, n, bootstrap=Through(comm, lambda all_: all_))
    return time.monotonic() - due


@apart
@pytest.mark.parametrize("interrupted", [1, 2])
def test_ctrl_c_while_ranks_connect(interrupted: int) -> None:
    delays = values(run(3, interrupt_meeting, 3, job_name(), interrupted))
    assert max(delays) <= 0.1, delays


# ---- limits of the system --------------------------------------------------------------------------------------------


def meet_under_limit(rank: int, n: int, job: str, limit: int, value: int) -> tuple[str, str]:
    if rank == 1:
        resource.setrlimit(limit, (value, value))
    try:
        comm = connect(rank, n, job, timeout=3)
        assert_usable(comm)
        comm.barrier()
        comm.close()
    except a2a.Error as error:
        return type(error).__name__, str(error)
    return "", ""


def assert_clear(results: list[tuple[str, str]]) -> bool:
    """Either all is well, or the rank with the limit says what is wrong and the others that they miss it."""
    if not any(name for name, _ in results):
        return True
    for rank, (name, text) in enumerate(results):
        allowed = ("BackendError",) if rank == 1 else ("BackendError", "PeerLostError", "TimeoutError", "AbortedError")
        assert (name in allowed and "rank" in text) or rank == 1, results
        assert name in allowed, results
    return False


@apart
def test_few_descriptors() -> None:
    fine = []
    for value in (3, 8, 9, 10, 11, 12, 14, 16, 18, 20, 24, 64):
        ends = run(3, meet_under_limit, 3, job_name(), resource.RLIMIT_NOFILE, value)
        if ends[1].value is None:  # not even a pipe could be used; but no signal
            assert ends[1].status == 0, ends[1]
            continue
        fine.append(assert_clear(values(ends)))
    assert fine[-1] and not fine[0], fine


@apart
def test_small_files() -> None:
    for value, works in ((0, False), (4096, False), (1 << 20, False), (64 << 20, True)):
        results = values(run(3, meet_under_limit, 3, job_name(), resource.RLIMIT_FSIZE, value))
        assert assert_clear(results) == works, (value, results)
        if not works:
            assert "file sizes" in results[1][1], results


@apart
def test_little_address_space() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for extra, works in ((4 << 20, False), (24 << 20, False), (128 << 20, None), (4 << 30, None)):
        results = values(run(3, meet_under_limit, 3, job_name(), resource.RLIMIT_AS, used + extra))
        assert works in (None, assert_clear(results)), (extra, results)


# ---- deadlines -------------------------------------------------------------------------------------------------------

WAITS: dict[str, Callable[[a2a.Communicator, np.ndarray[Any, Any]], Any]] = {
    "barrier": lambda c, x: c.barrier(timeout=0.5),
    "alltoall": lambda c, x: c.alltoall(x, x.copy(), timeout=0.5),
    "alltoallv": lambda c, x: c.alltoallv(x[:4], [1] * 4, x[4:8].copy(), [1] * 4, timeout=0.5),
    "alltoall_list": lambda c, x: c.alltoall_list([x] * 4, [x.copy() for _ in range(4)], timeout=0.5),
    "allgather": lambda c, x: c.allgather(x[:5], x[:20].copy(), timeout=0.5),
    "exchange": lambda c, x: c.exchange(x, [1] * 4, timeout=0.5),
    "global_scatter": lambda c, x: c.global_scatter(x, [1] * 4, [1] * 4, timeout=0.5),
    "split": lambda c, x: c.split(0, timeout=0.5),
    "group": lambda c, x: c.group([0, 1], timeout=0.5),
    "allgather_bytes": lambda c, x: c.allgather_bytes(b"x", timeout=0.5),
    "close": lambda c, x: c.close(timeout=0.5),
    "work": lambda c, x: c.alltoall(x, x.copy(), async_op=True, timeout=0.5).wait(),  # type: ignore[union-attr]
    "plan": lambda c, x: c.plan_alltoall(x, x.copy()).run(x, x.copy(), timeout=0.5),
}


def wait_in_vain(rank: int, n: int, job: str, name: str) -> tuple[str, float]:
    comm = connect(rank, n, job)
    comm.barrier()
    if rank == n - 1:
        time.sleep(0.8)
        return "", 0.5
    send = np.zeros(4 * 20_000)
    begin = time.monotonic()
    text = raised(a2a.TimeoutError, WAITS[name], comm, send)
    return text, time.monotonic() - begin


@pytest.mark.full
@apart
def test_every_call_ends_at_its_deadline() -> None:
    lateness = []
    for name in WAITS:
        for text, seconds in values(run(4, wait_in_vain, 4, job_name(), name))[:3]:
            named = r"rank 3 \(pid \d+, alive\): last operation barrier #1; ranks (0, 1|0, 2|1, 2) have come;"
            assert " #2" in text and re.search(named, text), text
            lateness.append(seconds - 0.5)
    assert min(lateness) >= -0.05, lateness
    assert statistics.median(lateness) <= 0.05 and max(lateness) <= 0.3, lateness


# ---- threads ---------------------------------------------------------------------------------------------------------


@apart
@pytest.mark.parametrize("rounds", [0, 1])
def test_a_thread_that_drops_its_bootstrap_is_missed_at_once(rounds: int) -> None:
    bootstraps = dict(enumerate(_core.thread_bootstraps(3)))
    errors: list[str] = []

    def rank(number: int) -> None:
        for _ in range(rounds):
            bootstraps[number].allgather(b"%d" % number)
        if number == 1:
            bootstraps.pop(number)
            return
        try:
            _core.connect(number, 3, bootstrap=bootstraps[number], timeout=20)
        except a2a.PeerLostError as error:
            errors.append(str(error))

    began = time.monotonic()
    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == ["rank 1 left before all threads had met"] * 2
    assert time.monotonic() - began < 5
