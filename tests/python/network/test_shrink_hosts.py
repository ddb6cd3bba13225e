"""shrink() of ranks on several hosts, and the progress thread there."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import numpy as np
import pytest
from forked import apart
from members import Me, Members

pytestmark = pytest.mark.timeout(90)


def connect(me: Me, handles: list[str], generation: int) -> int:
    me.comm = me.endpoint.connect(handles, generation, timeout=15)
    return int(me.comm.rank)


def exchange(me: Me, rows: int = 20_000) -> tuple[int, int]:
    comm = me.comm
    total = np.full(rows, float(comm.rank))
    comm.allreduce(total, timeout=15)
    assert np.array_equal(total, np.full(rows, comm.size * (comm.size - 1) / 2))
    recv = np.zeros(comm.size * 3)
    comm.alltoall(np.repeat(np.arange(comm.size) + 10.0 * comm.rank, 3), recv, timeout=15)
    assert np.array_equal(recv, np.repeat(10.0 * np.arange(comm.size) + comm.rank, 3))
    return int(comm.rank), int(comm.size)


def shrink(me: Me, timeout: float = 15.0) -> tuple[int, int]:
    me.comm = me.comm.shrink(timeout=timeout)
    return exchange(me)


def values(answers: list[Any]) -> list[Any]:
    assert not any(answer.error for answer in answers), answers
    return [answer.value for answer in answers]


@apart
@pytest.mark.parametrize(("hosts", "dying"), [("aabb", [1, 0]), ("abcab", [0, 2]), ("abcd", [3, 1, 0]), ("aab", [2])])
def test_survivors_go_on(hosts: str, dying: list[int]) -> None:
    with Members(len(hosts), hosts) as members:
        living = list(range(len(hosts)))
        values(members.run(living, connect, members.handles, 1))
        values(members.run(living, exchange))
        for dead in dying:
            living.remove(dead)
            for member in living:
                members.start(member, exchange)
            members.kill(dead)
            answers = [members.answer(member) for member in living]
            assert {answer.error for answer in answers} <= {"PeerLostError", "AbortedError"}, answers
            assert values(members.run(living, shrink)) == [(rank, len(living)) for rank in range(len(living))]


@apart
def test_a_death_during_the_agreement() -> None:
    with Members(4, "abab") as members:
        values(members.run(range(4), connect, members.handles, 1))
        members.kill(3)
        for member in (0, 1):
            members.start(member, shrink)
        time.sleep(0.2)
        members.kill(2)  # it has not come to shrink()
        assert values([members.answer(member) for member in (0, 1)]) == [(0, 2), (1, 2)]


@apart
def test_one_that_does_not_come_is_named_and_may_come_later() -> None:
    with Members(3, "abc") as members:
        values(members.run(range(3), connect, members.handles, 1))
        members.kill(0)
        answer = members.run([1], shrink, 0.5)[0]
        assert answer.error == "TimeoutError" and "rank 2" in answer.text and "shrink again" in answer.text
        assert values(members.run([1, 2], shrink)) == [(0, 2), (1, 2)]


@apart
@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("hosts", ["abc", "aab"])
def test_one_that_lets_go_is_left_out(hosts: str, drop: bool) -> None:
    with Members(3, hosts) as members:
        values(members.run(range(3), connect, members.handles, 1))
        members.run([1], leave, drop)
        if drop:
            assert {answer.error for answer in members.run([0, 2], exchange)} == {"PeerLostError"}
        assert values(members.run([0, 2], shrink)) == [(0, 2), (1, 2)]


def leave(me: Me, drop: bool) -> None:
    """It lives on. Its endpoint, which the communicator knows, stays as well."""
    if not drop:
        me.comm.abort("this rank leaves")
        me.comm.close()
    me.comm = None
    gc.collect()


BYTES = 3 << 20


def sleep_through(me: Me, handles: list[str]) -> bool:
    """Whether all bytes have come while every rank slept."""
    os.environ["A2A_PROGRESS_THREAD"] = "1"
    comm = me.endpoint.connect(handles, 1, timeout=15)
    send, recv = (
        np.repeat(np.arange(comm.size, dtype=np.uint8) + 10 * comm.rank, BYTES),
        np.zeros(comm.size * BYTES, np.uint8),
    )
    expected = np.repeat(10 * np.arange(comm.size, dtype=np.uint8) + comm.rank, BYTES)
    work = comm.alltoall(send, recv, async_op=True)
    until = time.monotonic() + 20
    while not (come := bool(np.array_equal(recv, expected))) and time.monotonic() < until:
        time.sleep(0.05)
    work.wait()
    comm.close()
    return come


@apart
@pytest.mark.parametrize("hosts", ["ab", "aab"])
def test_operations_go_on_while_ranks_sleep(hosts: str) -> None:
    with Members(len(hosts), hosts) as members:
        assert values(members.run(range(len(hosts)), sleep_through, members.handles)) == [True] * len(hosts)
