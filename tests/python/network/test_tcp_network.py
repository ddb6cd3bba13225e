"""Ranks on several hosts that TCP connects; test_exchange.py has the values of their exchanges. Hosts are assigned by
A2A_HOSTS; test_tcp_hosts.py has hosts with addresses of their own. What the ranks do in the first part is in
mpi_ranks.py: it is the same over every network."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tcp_door
import tcp_peer
from commands import environment
from forked import apart, run, values
from networks import HUGE, assert_disagreements
from possessions import descriptors
from sample import with_full
from tcp_peer import free_address
from tcp_ranks import SECRET, join, meet

import a2a

pytestmark = pytest.mark.timeout(100)
PROGRAM = str(Path(__file__).parents[1] / "support" / "mpi_ranks.py")


def launch(hosts: str, *program: str, **changes: str) -> tuple[list[int], list[str], str]:
    """The exit statuses of ranks that torchrun could have started, the lines that they printed, sorted, and errors."""
    ranks = hosts.count(",") + 1
    host, port = free_address().split(":")
    env = environment(A2A_HOSTS=hosts, A2A_SECRET=SECRET.decode(), MASTER_ADDR=host, MASTER_PORT=str(int(port) - 1))
    env |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": "1"} | changes
    started = [
        subprocess.Popen(
            [sys.executable, PROGRAM, *program],
            env=env | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    said = [process.communicate(timeout=80) for process in started]
    lines = sorted(line for out, _ in said for line in out.splitlines())
    return [process.returncode for process in started], lines, "".join(err for _, err in said)


@pytest.mark.parametrize("hosts", ["a,b", "a,a,b,b,c", *with_full(["a,b,c", "a,a,b,b"])])
def test_repeated_exchanges(hosts: str) -> None:
    ranks = hosts.count(",") + 1
    statuses, lines, errors = launch(hosts, "repeats", str(ranks))
    assert (statuses, lines) == ([0] * ranks, [f"rank {rank} is fine" for rank in range(ranks)]), errors


@pytest.mark.timeout(200)
@pytest.mark.parametrize("size", HUGE)
def test_more_than_a_gibibyte(size: int) -> None:
    statuses, lines, errors = launch("a,b", "huge", str(size))
    assert (statuses, lines) == ([0, 0], ["rank 0 is fine", "rank 1 is fine"]), errors


@pytest.mark.smoke
def test_disagreements() -> None:
    statuses, lines, errors = launch("a,a,b,b", "disagreements")
    assert statuses == [0] * 4, errors
    assert_disagreements(lines)


@pytest.mark.parametrize("hosts", ["a,a,b,b", *with_full(["a,b,c"])])
def test_a_rank_that_does_not_come(hosts: str) -> None:
    _, lines, errors = launch(hosts, "missing")
    last = hosts.count(",")
    for rank in range(last):
        seconds, text = next(line.split(" ", 2)[1:] for line in lines if line.startswith(f"{rank} "))
        assert float(seconds) < 3 and "TimeoutError: alltoallv #2: timeout on rank" in text, lines
    assert any(f"rank {last} (" in line and "last operation alltoallv #1" in line for line in lines), [*lines, errors]
    assert any(line.startswith("afterwards TimeoutError: ") for line in lines), lines


def test_a_rank_that_leaves() -> None:
    statuses, lines, errors = launch("a,b,b", "leaves")
    assert statuses == [0] * 3 and len(lines) == 2, errors
    for line in lines:
        assert re.match(r"[01] PeerLostError: alltoallv #2: rank [01] waits for a rank that has left", line), lines


def test_ctrl_c() -> None:
    statuses, lines, errors = launch("a,a,b,b", "interrupted")
    assert statuses == [0] * 4, errors
    assert lines[1:] == [f"rank {rank} goes on" for rank in range(4)]
    assert float(lines[0].removeprefix("interrupted after ")) < 0.1


def test_memory_is_let_go_of_at_once() -> None:
    """With the communicator, though the other rank has not taken what was sent."""
    statuses, lines, errors = launch("a,b", "abandoned")
    assert statuses == [0, 0], errors
    (other,) = (line for line in lines if line.startswith("the other one: "))
    # Why rank 0 gave up is behind what was under way.
    assert re.match(r"the other one: (AbortedError|PeerLostError): ", other), other
    assert [line for line in lines if line != other] == [
        *("after abort() 2", "handed over 1", "in the end 0", "in the end 0", "without the communicator 0")
    ]


def test_messages_are_counted() -> None:
    _, lines, _ = launch("a,a,a,b,b,b", "counts_messages")
    assert lines == ["messages 0"] * 4 + ["messages 1"] * 2
    _, lines, _ = launch("a,a,a,b,b,b", "counts_messages", A2A_AGGREGATE_MAX="0")
    assert lines == ["messages 3"] * 6


def test_a_forked_child_changes_nothing() -> None:
    statuses, lines, errors = launch("a,b", "forks")
    assert (statuses, lines) == ([0, 0], ["child AbortedError"] * 2 + ["parent 0 is fine", "parent 1 is fine"]), errors


# ---- forked ranks ----------------------------------------------------------------------------------------------------


def tcp_connections() -> int:
    inodes = {target.strip("socket:[]") for target in descriptors().values() if target.startswith("socket:")}
    lines = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return sum(fields[9] in inodes for fields in lines)


def anything(rank: int, hosts: str, address: str, seed: int) -> None:
    """Uneven exchanges of random sizes, with one transfer that goes from memory to memory in several runs."""
    comm = meet(rank, hosts, address)
    random = np.random.default_rng(seed)  # the same on all ranks
    n = comm.size
    for round_ in range(4):
        scale = int(random.choice([1, 30, 2000, 40_000, 400_000]))
        counts = random.integers(0, scale + 1, (n, n)) * (random.random((n, n)) < 0.7)
        sent = [np.random.default_rng([seed, round_, r]).integers(0, 256, counts[r].sum(), np.uint8) for r in range(n)]
        starts = [np.concatenate([[0], np.cumsum(counts[r])]) for r in range(n)]
        wanted = np.concatenate([sent[p][starts[p][rank] : starts[p][rank + 1]] for p in range(n)])
        recv = np.full(counts[:, rank].sum(), 77, np.uint8)
        work = comm.alltoallv(sent[rank], counts[rank].tolist(), recv, counts[:, rank].tolist(), async_op=True)
        again = np.full_like(recv, 78)
        comm.alltoallv(sent[rank], counts[rank].tolist(), again, counts[:, rank].tolist())
        work.wait()
        assert np.array_equal(recv, wanted) and np.array_equal(again, wanted)
    experts = 3
    rows = random.integers(20, 60, (n, n, experts))
    x = np.repeat(np.arange(n * experts) + 100 * rank, rows[rank].ravel())[:, None].repeat(1000, 1)
    out = comm.global_scatter(x, rows[rank].ravel().tolist(), rows[:, rank].ravel().tolist())
    owners = [(100 * p + rank * experts + e, rows[p, rank, e]) for e in range(experts) for p in range(n)]
    assert np.array_equal(np.asarray(out)[:, 0], np.repeat([o for o, _ in owners], [k for _, k in owners]))
    comm.close()


@apart
def test_ipv6() -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError as error:
            pytest.skip(str(error))
        address = f"[::1]:{probe.getsockname()[1]}"
    values(run(3, anything, "a,b,b", address, 5))


def counts_connections(rank: int, hosts: str, address: str) -> tuple[int, int, int]:
    comm = meet(rank, hosts, address)
    comm.barrier()
    while_open = tcp_connections()
    half = comm.split(rank % 2)
    assert half is not None
    half.barrier()
    with_a_group = tcp_connections()
    comm.barrier()
    comm.close()
    half.close()
    half.close()
    del comm, half
    return while_open, with_a_group, len([d for d in descriptors().values() if "socket" in d or "eventpoll" in d])


@apart
def test_connections() -> None:
    before = len([d for d in descriptors().values() if "socket" in d or "eventpoll" in d])
    for there, with_a_group, left in values(run(4, counts_connections, "a,a,b,b", free_address())):
        assert there == with_a_group == 3 and left == before  # those of the meeting are gone
    # On one host there is none.
    for there, with_a_group, left in values(run(3, counts_connections, "a,a,a", free_address())):
        assert (there, with_a_group) == (0, 0) and left == before


def many_meetings(rank: int, hosts: str, address: str) -> list[int]:
    counts = []
    for _ in range(20):
        comm = meet(rank, hosts, address)
        comm.barrier()
        comm.close()
        del comm
        counts.append(len(descriptors()))
    return counts


@apart
def test_nothing_is_left_of_a_communicator() -> None:
    for counts in values(run(3, many_meetings, "a,b,c", free_address())):
        assert counts[1] == counts[-1], counts


# ---- faults ----------------------------------------------------------------------------------------------------------


def suffer(rank: int, hosts: str, address: str, fault: int, count: int, timeout: float) -> tuple[str, str, float]:
    """The last rank is struck while the others wait for it; what they raise, and how many seconds later."""
    comm = meet(rank, hosts, address, timeout)
    send, recv = np.zeros(comm.size * count), np.zeros(comm.size * count)
    comm.alltoall(send, recv)
    if rank == comm.size - 1:
        due = time.monotonic() + 0.1
        comm.alltoallv(send, [0] * comm.size, recv, [0] * comm.size)
        time.sleep(max(due - time.monotonic(), 0))
        os.kill(os.getpid(), fault)
    begin = time.monotonic()
    try:
        comm.alltoallv(send, [0] * comm.size, recv, [0] * comm.size)
        comm.alltoall(send, recv)
    except a2a.Error as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return "", "", 0.0


@pytest.mark.parametrize("count", [1, 2000, 200_000])
@pytest.mark.parametrize("hosts", ["a,b,c", "a,a,b,b", "a,b,c,c,d"])
@apart
def test_a_killed_rank(hosts: str, count: int) -> None:
    size = hosts.count(",") + 1
    ends = run(size, suffer, hosts, free_address(), signal.SIGKILL, count, 20)
    assert ends[-1].status == -signal.SIGKILL
    for name, text, seconds in (end.value for end in ends[:-1]):
        assert name == "PeerLostError" and f"rank {size - 1} " in text and seconds < 0.6, (name, text, seconds)


def barriers_until_one_fails(comm: a2a.Communicator) -> str:
    """The first may be it: another rank that was through it has found somebody lost, and says so."""
    with pytest.raises(a2a.PeerLostError) as info:
        while True:
            comm.barrier()
    return str(info.value)


def suffer_with_a_child(rank: int, hosts: str, address: str) -> tuple[str, float]:
    comm = meet(rank, hosts, address)
    if rank == comm.size - 1:
        comm.barrier()
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    return barriers_until_one_fails(comm), time.monotonic() - begin


@apart
def test_a_killed_rank_whose_child_lives() -> None:
    for end in run(3, suffer_with_a_child, "a,b,c", free_address())[:-1]:
        assert end.error is None, end.trace
        assert "rank 2 " in end.value[0] and end.value[1] < 1, end


def wake_up(pids: list[int]) -> None:
    time.sleep(3.5)
    os.kill(pids[-1], signal.SIGKILL)


@pytest.mark.parametrize("hosts", ["a,b,c", "a,a,b,b"])
@apart
def test_a_stopped_rank(hosts: str) -> None:
    size = hosts.count(",") + 1
    ends = run(size, suffer, hosts, free_address(), signal.SIGSTOP, 100, 1.5, during=wake_up)
    for name, text, seconds in (end.value for end in ends[:-1]):
        assert name == "TimeoutError" and 1.4 < seconds < 2.2, (name, text, seconds)
    assert any(f"rank {size - 1} (" in end.value[1] for end in ends[:-1]), ends


def abort_beside(rank: int, hosts: str, address: str) -> tuple[str, float]:
    """Rank 1 has all it needs of its own host when rank 0 aborts, and waits for rank 2, which sends no more."""
    comm = meet(rank, hosts, address)
    sends = [5000, 256_000_000 if rank == 2 else 5000, 5000, 5000]
    recvs = [5000, 5000, 256_000_000 if rank == 1 else 5000, 5000]
    begin = time.monotonic()
    try:
        work = comm.alltoallv(np.zeros(sum(sends), np.int8), sends, np.empty(sum(recvs), np.int8), recvs, async_op=True)
        while time.monotonic() < begin + (0.02 if rank == 2 else 0.3):
            work.done()
        if rank == 0:
            comm.abort("enough")
        if rank == 2:
            time.sleep(2)
        work.wait()
        outcome = "no error"
    except a2a.Error as error:
        outcome = str(error)
    seconds = time.monotonic() - begin
    time.sleep(max(0.0, 3 - seconds))  # nobody leaves before
    return outcome, seconds


@apart
def test_a_rank_that_aborts_beside_one_that_waits_for_another_host() -> None:
    said, seconds = values(run(4, abort_beside, "a,a,b,b", free_address()))[1]
    assert said == "rank 0 aborted: enough" and seconds < 1, (said, seconds)


# ---- while the ranks meet --------------------------------------------------------------------------------------------


def real_rank(rank: int, size: int, address: str, timeout: float) -> tuple[list[str], threading.Thread]:
    """A rank as a thread, and how it ended."""
    end: list[str] = []

    def body() -> None:
        try:
            a2a.init(rank, size, bootstrap=join(rank, size, address, timeout=timeout), timeout=timeout)
            end.append("met")
        except a2a.Error as error:
            end.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=body)
    thread.start()
    return end, thread


def finish(thread: threading.Thread) -> None:
    thread.join(30)
    assert not thread.is_alive()


def hosts_apart(size: int) -> None:
    os.environ["A2A_HOSTS"] = ",".join("abcdef"[:size])


@apart
def test_junk_while_meeting() -> None:
    """A thousand strangers, most of whom stay: the ranks' connections come through."""
    hosts_apart(2)
    address = free_address()
    end, thread = real_rank(0, 2, address, 20)
    peer = tcp_door.Guest(1, 2, address)
    silent = []
    begin = time.monotonic()
    for number in range(1000):
        stranger = socket.create_connection(peer.door_of(0), timeout=5)
        junk = [b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(64), b"a2a-tcp\1", b"a2a-tcp\1" + os.urandom(32)][number % 5]
        with contextlib.suppress(ConnectionError):
            stranger.sendall(junk)
        if number % 3:
            silent.append(stranger)
        else:
            stranger.close()
    assert time.monotonic() - begin < 10
    assert peer.connect(0).frame() == (tcp_peer.WELCOME, b"")
    assert not end
    peer.leave()
    finish(thread)
    assert end[0].startswith("PeerLostError: job 'job': rank 1 ("), end


@apart
def test_wrong_proofs() -> None:
    """Neither a stranger's, nor one of the bootstrap's, nor one that was made for another rank's door or meeting."""
    hosts_apart(3)
    address = free_address()
    real = [real_rank(rank, 3, address, 20) for rank in range(2)]
    guest = tcp_door.Guest(2, 3, address)
    for door in range(2):
        key = guest.door_key(door)
        others = guest.door_key(1 - door), guest.door_key(door, meeting=bytes(32))
        for wrong in (b"x" * 32, SECRET, guest.network_key, *others):
            assert guest.connect(door, wrong).frame() is None
        for rank, size in ((door, 3), (3, 3), (2**31, 3), (2, 4)):
            assert guest.connect(door, key, rank, size).frame() is None
    welcome = [guest.connect(door).frame() for door in range(2)]
    assert welcome == [(tcp_peer.WELCOME, b"")] * 2
    guest.leave()
    for _, thread in real:
        finish(thread)


@apart
def test_a_rank_that_does_not_connect() -> None:
    hosts_apart(3)
    address = free_address()
    end, thread = real_rank(0, 3, address, 1)
    first, _ = tcp_door.together(address, 3)
    assert socket.create_connection(first.door_of(0), timeout=5)
    finish(thread)
    assert "TimeoutError: job 'job': rank 0 timed out waiting for a connection of rank 1, 2" in end[0], end


@apart
def test_a_rank_that_dies_before_it_connects() -> None:
    hosts_apart(3)
    address = free_address()
    end, thread = real_rank(0, 3, address, 20)
    other, other_thread = real_rank(1, 3, address, 20)
    begin = time.monotonic()
    tcp_door.Guest(2, 3, address).leave()
    finish(thread), finish(other_thread)
    assert time.monotonic() - begin < 3
    for text in (end[0], other[0]):
        assert text.startswith("PeerLostError: job 'job': rank 2 ("), text


@apart
def test_nobody_listens_where_a_rank_says() -> None:
    hosts_apart(2)
    address = free_address()
    end, thread = real_rank(1, 2, address, 1)
    guest = tcp_door.Guest(0, 2, address)
    finish(thread)
    wanted = f"TimeoutError: job 'job': rank 1 timed out waiting for rank 0 at 127.0.0.1 port {guest.port} (Connection"
    assert end[0].startswith(wanted), end


def interrupted_while_meeting(rank: int, address: str) -> float:
    hosts_apart(2)
    if rank == 1:
        guest = tcp_door.Guest(1, 2, address)
        time.sleep(1)
        guest.leave()
        return 0.0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    due = time.monotonic() + 0.5
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        a2a.init(0, 2, bootstrap=join(0, 2, address), timeout=20)
    return time.monotonic() - due


@apart
def test_ctrl_c_while_meeting() -> None:
    # Rank 0 gives the others 0.2 s to hear of it. A loaded machine takes longer, but not as long as the ranks may.
    assert values(run(2, interrupted_while_meeting, free_address()))[0] < 3
