"""Messages between two ranks: send and recv."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from forked import apart, connect, job_name, run, values
from tcp_peer import free_address

import a2a

SIZES = [0, 1, 100, 144, 145, 5000, 20_000, 300_001, 3_000_000]  # float32: around the limits of each way


def new(comm: a2a.Communicator, array: np.ndarray[Any, Any], shared: bool) -> np.ndarray[Any, Any]:
    if not shared:
        return array.copy()
    made: np.ndarray[Any, Any] = comm.empty(array.shape, array.dtype)
    made[...] = array
    return made


def content(source: int, elems: int) -> np.ndarray[Any, Any]:
    return np.arange(elems, dtype=np.float32) + source


def ring(comm: a2a.Communicator, shared: bool) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for elems in SIZES:
        send, recv = new(comm, content(comm.rank, elems), shared), new(comm, content(-1, elems), shared)
        work = comm.send(send, right, tag=7, async_op=True)
        assert comm.recv(recv, left, tag=7) == left
        assert work is not None
        work.wait()
        np.testing.assert_array_equal(recv, content(left, elems))
        send[...] = -1  # the sender's again
        comm.barrier()


@pytest.mark.ranks(3, threads=(False, True))
@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_sizes(comm: a2a.Communicator, shared: bool) -> None:
    ring(comm, shared)


@pytest.mark.ranks(1, 2, threads=(False, True))
def test_gaps(comm: a2a.Communicator) -> None:
    """Either side may have gaps, and nothing is written between the columns."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for rows in (1, 9, 1000, 30_000, 300_000):
        wanted = content(left, 2 * rows).reshape(rows, 2)
        for gaps_here, gaps_there in ((True, False), (False, True), (True, True)):
            send, recv = np.full((2, rows, 5), -1, np.float32)
            sent = send[:, 1:3] if gaps_here else np.empty((rows, 2), np.float32)
            received = recv[:, 2:4] if gaps_there else np.empty((rows, 2), np.float32)
            sent[...] = content(comm.rank, 2 * rows).reshape(rows, 2)
            work = comm.send(sent, right, tag=7, async_op=True)
            assert comm.recv(received, left, tag=7) == left
            assert work is not None
            work.wait()
            np.testing.assert_array_equal(received, wanted)
            if gaps_there:
                assert (recv[:, :2] == -1).all() and (recv[:, 4:] == -1).all()
            comm.barrier()


def out_of_order(comm: a2a.Communicator, elems: int) -> None:
    tags = range(20)
    if comm.rank == 0:
        works = [comm.send(content(tag, elems), 1, tag, async_op=True) for tag in tags]
        again = [comm.send(content(100 + i, elems), 1, tag=-5, async_op=True) for i in range(3)]
        for work in [*works, *again]:
            assert work is not None
            work.wait()
    elif comm.rank == 1:
        recv = np.zeros(elems, np.float32)
        for i in range(3):  # of one tag in the order of the sends
            comm.recv(recv, 0, tag=-5)
            np.testing.assert_array_equal(recv, content(100 + i, elems))
        recvs = {tag: np.zeros(elems, np.float32) for tag in tags}
        works = [comm.recv(recvs[tag], 0, tag, async_op=True) for tag in reversed(tags)]
        for work in works:
            assert work is not None
            work.wait()
            assert work.source == 0
        for tag in tags:
            np.testing.assert_array_equal(recvs[tag], content(tag, elems))
    comm.barrier()


@pytest.mark.ranks(3)
@pytest.mark.parametrize("elems", [3, 10_000, 400_000])
def test_tags_in_any_order(comm: a2a.Communicator, elems: int) -> None:
    out_of_order(comm, elems)


def any_source(comm: a2a.Communicator) -> None:
    if comm.rank > 0:
        for elems in (1, 50_000):
            comm.send(content(comm.rank, elems), 0)
            comm.barrier()
    else:
        for elems in (1, 50_000):
            seen = set()
            for _ in range(comm.size - 1):
                recv = np.zeros(elems, np.float32)
                source = comm.recv(recv)
                assert source is not None
                np.testing.assert_array_equal(recv, content(source, elems))
                seen.add(source)
            assert seen == set(range(1, comm.size))
            comm.barrier()


@pytest.mark.ranks(4)
def test_any_source(comm: a2a.Communicator) -> None:
    any_source(comm)


def between_operations(comm: a2a.Communicator) -> None:
    """Messages and operations do not hold each other up, and a send to oneself needs nobody."""
    total, big = np.ones(100_000, np.float32), content(comm.rank, 200_000)
    recv = np.zeros(200_000, np.float32)
    later = comm.recv(recv, (comm.rank - 1) % comm.size, 3, async_op=True)
    for _ in range(5):
        comm.allreduce(total)
        total[...] = 1
    sent = comm.send(big, (comm.rank + 1) % comm.size, 3, async_op=True)
    comm.allreduce(total)
    assert later is not None and sent is not None
    later.wait()
    sent.wait()
    np.testing.assert_array_equal(recv, content((comm.rank - 1) % comm.size, 200_000))
    for elems in (5, 100_000):
        own = np.zeros(elems, np.float32)
        work = comm.send(content(9, elems), comm.rank, async_op=True)
        assert comm.recv(own, comm.rank) == comm.rank
        assert work is not None
        work.wait()
        np.testing.assert_array_equal(own, content(9, elems))


@pytest.mark.ranks(1, 2)
def test_between_operations(comm: a2a.Communicator) -> None:
    between_operations(comm)


def disagrees(comm: a2a.Communicator, elems: int) -> None:
    send, recv = content(0, elems), np.zeros(elems // 2, np.float32)
    for wrong in (recv, np.zeros(elems, np.int32)):
        if comm.rank == 0:
            with pytest.raises(a2a.MismatchError, match=r"rank 0 sends .* rank 1 receives"):
                comm.send(send, 1, 2)
                comm.barrier()
                comm.send(send, 1, 2)  # where the first one was done with
            if elems > 16384:
                comm.barrier()
        else:
            with pytest.raises(a2a.MismatchError, match=r"rank 0 sends .* rank 1 receives"):
                comm.recv(wrong, 0, 2)
            comm.barrier()
        comm.barrier()
    if comm.rank == 0:
        comm.send(send, 1, 2)
    else:
        right = np.zeros(elems, np.float32)
        comm.recv(right, 0, 2)
        np.testing.assert_array_equal(right, send)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("elems", [4, 10_000, 500_000])
def test_disagreement(comm: a2a.Communicator, elems: int) -> None:
    disagrees(comm, elems)


def refuses(comm: a2a.Communicator) -> None:
    x = np.zeros((400, 400), np.float32)
    if comm.rank == 0:
        with pytest.raises(a2a.InvalidArgumentError, match="objects cannot be exchanged"):
            comm.send(x.astype(object), 1)
        with pytest.raises(a2a.InvalidArgumentError, match=r"may share memory|read-only"):
            comm.recv(np.broadcast_to(x[0], x.shape), 1, 4)
        for bad in (lambda: comm.send(x, 2), lambda: comm.send(x, -1), lambda: comm.send(x, 1, tag="a")):  # type: ignore[arg-type]
            with pytest.raises(a2a.InvalidArgumentError):
                bad()
    else:
        with pytest.raises(a2a.MismatchError, match="rank 0 does not take part"):
            comm.recv(x, 0)
        with pytest.raises(a2a.MismatchError, match="rank 0 does not take part"):
            comm.send(x, 0, 4)
    comm.barrier()


@pytest.mark.ranks(2)
def test_bad_arguments_are_told_to_the_peer(comm: a2a.Communicator) -> None:
    refuses(comm)


def refuses_behind_letters(comm: a2a.Communicator) -> float:
    """The receiver has sent as much as the sender has room for. It does not go before that one can hear of the
    refusal."""
    began = time.monotonic()
    small = np.zeros(4, np.float32)
    if comm.rank == 0:
        work = comm.send(content(0, 100_000), 1, async_op=True)
        time.sleep(0.3)
        assert work is not None
        with pytest.raises(a2a.MismatchError):
            work.wait()
        took = time.monotonic() - began
        for _ in range(8):
            comm.recv(small, 1)
    else:
        for _ in range(8):
            comm.send(small, 0)
        with pytest.raises(a2a.MismatchError):
            comm.recv(small, 0)
        took = 0.0
        time.sleep(2)  # computes
    comm.barrier()
    return took


def test_a_refusal_is_told_at_once(run_ranks: Callable[..., Any]) -> None:
    assert run_ranks(2, refuses_behind_letters)[0] < 1.5


@pytest.mark.ranks(2)
def test_tensors_are_let_go_when_a_message_is_over(comm: a2a.Communicator) -> None:
    for elems in (3, 10_000, 300_000):
        tensors = [content(comm.rank, elems), content(-1, elems)]
        works = [comm.send(tensors[0], 1 - comm.rank, async_op=True), comm.recv(tensors[1], async_op=True)]
        held = [weakref.ref(tensor) for tensor in tensors]
        tensors.clear()
        for work in works:
            assert work is not None
            work.wait()
        del work
        works.clear()
        assert all(tensor() is None for tensor in held)


@pytest.mark.ranks(1)
def test_threads_of_one_rank_wake_each_other(comm: a2a.Communicator) -> None:
    sent: list[float] = []

    def send() -> None:
        for _ in range(15):
            time.sleep(0.015)  # the receiver sleeps
            sent.append(time.monotonic())
            comm.send(content(0, 4), 0)

    thread = threading.Thread(target=send)
    thread.start()
    delays = []
    for i in range(15):
        comm.recv(np.zeros(4, np.float32), 0)
        delays.append(time.monotonic() - sent[i])
    thread.join()
    assert statistics.median(delays) < 2e-3, delays


def waits(rank: int, n: int, job: str, how: str) -> str:
    comm = connect(rank, n, job)
    recv = np.zeros(4, np.float32)
    big = np.zeros(1_000_000, np.float32)
    if rank == 1:
        if how == "leaves":
            comm.send(recv + 5, 0, 1)
        elif how == "dies":
            comm.send(recv + 5, 0, 1)
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            with contextlib.suppress(a2a.Error):
                comm.barrier(timeout=30)
        del comm
        return "left"
    if how != "late":  # what was sent before is received
        assert comm.recv(recv, 1, 1) == 1
        assert recv[0] == 5
    error = a2a.TimeoutError if how == "late" else a2a.PeerLostError
    with pytest.raises(error, match="rank 1") as caught:
        if how == "dies":
            comm.send(big, 1, timeout=20)
        else:
            comm.recv(recv, 1, timeout=1 if how == "late" else 20)
    with pytest.raises(a2a.Error, match="broken"):
        comm.recv(recv)
    return str(caught.value)


@apart
@pytest.mark.parametrize("how", ["leaves", "dies", "late"])
def test_a_peer_that_does_not_come(how: str) -> None:
    results = run(2, waits, 2, job_name(), how)
    assert "with tag 0: " in str(results[0].value), results


def more_than_there_is_room_for(comm: a2a.Communicator, elems: int) -> None:
    """The receiver takes the last message first. A send that waits is not lost, and one to this rank itself neither."""
    number = 700
    if comm.rank == 0:
        works = [comm.send(content(i, elems), 1, 9, async_op=True) for i in range(number)]
        comm.send(content(-1, elems), 1, 1)
        for work in works:
            work.wait()
    elif comm.rank == 1:
        recv = np.zeros(elems, np.float32)
        comm.recv(recv, 0, 1)
        assert (recv == content(-1, elems)).all()
        for i in range(number):
            comm.recv(recv, 0, 9)
            assert (recv == content(i, elems)).all(), i
    works = [comm.send(content(i, elems), comm.rank, 2, async_op=True) for i in range(100)]
    for i in range(100):
        recv = np.zeros(elems, np.float32)
        comm.recv(recv, comm.rank, 2)
        assert (recv == content(i, elems)).all(), i
    for work in works:
        work.wait()


def waits_for_room(comm: a2a.Communicator, elems: int, most: int) -> None:
    """Rank 1 receives nothing of that tag: rank 0 soon has to wait."""
    if comm.rank == 0:
        works = [comm.send(content(i, elems), 1, 9, async_op=True) for i in range(most + 2)]
        deadline = time.monotonic() + 20
        while sum(work.done() for work in works) < most and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.05)
        assert sum(work.done() for work in works) == most
        comm.send(content(0, 1), 1, 1)
    else:
        comm.recv(np.zeros(1, np.float32), 0, 1)
        works = [comm.recv(np.zeros(elems, np.float32), 0, 9, async_op=True) for _ in range(most + 2)]
    for work in works:
        work.wait()


@pytest.mark.parametrize("threads", [False, True], ids=["processes", "threads"])
def test_messages_that_nobody_receives_yet(run_ranks: Callable[..., Any], threads: bool) -> None:
    for elems in (0, 5, 144, 1000):
        run_ranks(2, more_than_there_is_room_for, elems, threads=threads)
    # Eight more than the receiver keeps lie in its letter box.
    run_ranks(2, waits_for_room, 20, 256 + 16, threads=threads)


def closes_with_a_send(comm: a2a.Communicator, elems: int, received: bool) -> None:
    part = comm.split(0)
    assert part is not None
    if comm.rank == 0:
        work = part.send(content(0, elems), 1, 5, async_op=True)
    elif received:
        part.recv(np.empty(elems, np.float32), 0, 5)
    if comm.rank == 0 and not received:
        # The receiver may have left a moment before.
        with pytest.raises((a2a.AbortedError, a2a.PeerLostError), match="send to rank 1 with tag 5"):
            part.close()
        with pytest.raises((a2a.AbortedError, a2a.PeerLostError)):
            work.wait()
    else:
        part.close()
    assert part.closed


@pytest.mark.parametrize("threads", [False, True], ids=["processes", "threads"])
def test_close_with_a_send_that_nobody_receives(run_ranks: Callable[..., Any], threads: bool) -> None:
    for received in (False, True):
        run_ranks(2, closes_with_a_send, 2 << 20, received, threads=threads)


def between_hosts(rank: int, hosts: str, address: str) -> None:
    from tcp_ranks import meet

    comm = meet(rank, hosts, address)
    ring(comm, False)
    if comm.size > 1:
        out_of_order(comm, 10_000)
    any_source(comm)
    between_operations(comm)
    if comm.size == 2:
        for elems in (4, 20_000):
            disagrees(comm, elems)
        refuses(comm)
        for elems in (0, 20):
            more_than_there_is_room_for(comm, elems)
        waits_for_room(comm, 20, 256)
        for received in (False, True):
            closes_with_a_send(comm, 200_000, received)
    comm.close()


def leaves_between_hosts(rank: int, hosts: str, address: str, how: str) -> str:
    from tcp_ranks import meet

    comm = meet(rank, hosts, address)
    recv = np.zeros(40_000, np.float32)
    if rank == 1:
        comm.send(recv + 5, 0, 1)
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        return "left"
    assert comm.recv(recv, None, 1) == 1
    with pytest.raises(a2a.PeerLostError, match="rank 1") as caught:
        comm.recv(recv, 1, timeout=20)
    return str(caught.value)


@apart
@pytest.mark.parametrize("hosts", ["a,b", "a,b,a", "a,a,b,b"])
def test_between_hosts(hosts: str) -> None:
    values(run(hosts.count(",") + 1, between_hosts, hosts, free_address()))


@apart
@pytest.mark.parametrize("how", ["leaves", "dies"])
def test_a_peer_on_another_host_that_does_not_come(how: str) -> None:
    results = run(2, leaves_between_hosts, "a,b", free_address(), how)
    assert "recv from rank 1 with tag 0: " in str(results[0].value), results


def closes_early(rank: int, address: str, source: int) -> None:
    """Who has received from any rank may leave: the others go on."""
    from tcp_ranks import meet

    comm = meet(rank, "a,a,b,a", address)
    x = np.zeros(4, np.float32)
    if rank == 0:
        assert comm.recv(x) == source
        return
    if rank == source:
        time.sleep(0.1)
        comm.send(x, 0)
    if rank == 1:
        comm.recv(x, 3)
    elif rank == 3:
        time.sleep(0.5)
        comm.send(x, 1)


@apart
@pytest.mark.parametrize("source", [1, 2])
def test_who_has_received_from_any_rank_may_leave(source: int) -> None:
    values(run(4, closes_early, free_address(), source))
