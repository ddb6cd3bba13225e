"""Endpoints: groups of any members, one generation after the other."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import apart
from members import Answer, Me, Members

import a2a

pytestmark = pytest.mark.timeout(90)

PLACES = ["unix", "tcp", "threads", "abab", "abc"]


def connect(me: Me, handles: list[str], generation: int, timeout: float = 15.0) -> tuple[int, int, list[int]]:
    me.comm = me.endpoint.connect(handles, generation, timeout=timeout)
    assert me.comm.generation == generation == me.endpoint.generation
    assert me.comm.handles == handles and me.comm.endpoint is me.endpoint
    return me.comm.rank, me.comm.size, me.comm.joined


def exchange(me: Me, rows: int = 1000) -> list[int]:
    """Every byte of two operations is as expected. Returns the members by rank."""
    comm = me.comm
    members = np.zeros(comm.size, np.int64)
    comm.allgather(np.array([me.number]), members, timeout=15)
    send = np.repeat(np.arange(comm.size) + 100.0 * me.number, rows)
    recv = np.zeros_like(send)
    comm.alltoall(send, recv, timeout=15)
    assert np.array_equal(recv, np.repeat(100.0 * members + comm.rank, rows))
    total = np.full(rows, float(me.number))
    comm.allreduce(total, timeout=15)
    assert np.array_equal(total, np.full(rows, float(members.sum())))
    return [int(member) for member in members]


def values(answers: list[Answer]) -> list[Any]:
    assert not any(answer.error for answer in answers), answers
    return [answer.value for answer in answers]


def meet(members: Members, listed: list[int], generation: int) -> list[Any]:
    met = values(members.run(listed, connect, members.list(listed), generation))
    assert values(members.run(listed, exchange)) == [listed] * len(listed)
    return met


@apart
@pytest.mark.parametrize("place", PLACES)
def test_generations(place: str) -> None:
    with Members(4, place) as members:
        assert meet(members, [0, 1, 2, 3], 0) == [(rank, 4, []) for rank in range(4)]
        assert meet(members, [3, 1], 5) == [(0, 2, []), (1, 2, [])]
        assert meet(members, [1, 0, 3], 6) == [(rank, 3, [1]) for rank in range(3)]  # member 0 comes from generation 0
        late = members.add()
        assert meet(members, [late, 3, 2, 1, 0], 9)[0] == (0, 5, [0, 2])
        assert meet(members, [2], 10) == [(0, 1, [])]
        assert meet(members, [2, late], 2**63 - 1) == [(0, 2, [1]), (1, 2, [1])]


@apart
@pytest.mark.parametrize("place", ["unix", "abab"])
def test_groups_split_and_merge_at_the_same_time(place: str) -> None:
    with Members(6, place) as members:
        for round_ in range(5):
            halves = [[0, 2, 4], [5, 3, 1]]
            for generation, half in enumerate(halves, 100 * round_):
                for member in half:
                    members.start(member, connect, members.list(half), generation)
            values([members.answer(member) for member in range(6)])
            assert values(members.run(range(6), exchange)) == [halves[member % 2] for member in range(6)]
            meet(members, [5, 0, 4, 1, 2, 3], 100 * round_ + 50)


@apart
def test_disjoint_groups_may_have_the_same_number() -> None:
    with Members(4) as members:
        for half in ([0, 1], [2, 3]):
            meet(members, half, 7)
        assert meet(members, [0, 1, 2, 3], 8) == [(rank, 4, [2, 3]) for rank in range(4)]


def begin(me: Me) -> None:
    """Make a plan, and leave an operation and a message in flight."""
    comm = me.comm
    counts = np.full(comm.size, 2)
    send, recv = np.zeros((2, 2 * comm.size))
    plan = comm.plan_alltoallv(send, counts, recv, counts)
    work = comm.allreduce(np.zeros(4), async_op=True) if comm.rank == 0 else None
    message = comm.recv(np.zeros(3), (comm.rank + 1) % comm.size, tag=7, async_op=True)
    me.kept.update(plan=plan, buffers=(send, recv), work=work, message=message)


def former(me: Me) -> str:
    """What becomes of everything of a generation that is over."""
    comm, kept = me.comm, me.kept
    connect(me, kept["next"], comm.generation + 1)
    for call in (
        lambda: comm.barrier(),
        lambda: kept["plan"].run(*kept["buffers"]),
        lambda: kept["work"].wait() if kept["work"] else comm.barrier(),
        lambda: kept["message"].wait(),
        lambda: comm.split(0),
    ):
        with pytest.raises(a2a.AbortedError, match=f"generation {comm.generation} is over") as raised:
            call()
        assert f"generation {me.comm.generation}" in str(raised.value)
    return "ok"


def keep(me: Me, name: str, value: Any) -> None:
    me.kept[name] = value


@apart
@pytest.mark.parametrize("place", ["unix", "threads", "ab"])
def test_the_former_communicator_is_aborted(place: str) -> None:
    with Members(3, place) as members:
        members.run(range(3), keep, "next", members.list(range(3)))
        meet(members, [0, 1, 2], 1)
        values(members.run(range(3), begin))
        assert values(members.run(range(3), former)) == ["ok"] * 3
        assert values(members.run(range(3), exchange)) == [[0, 1, 2]] * 3


def count(folder: str) -> int:
    return len(list(Path("/proc/self", folder).iterdir()))


def possessions(me: Me) -> tuple[int, int]:
    """The descriptors of this process, and the bytes that it has mapped of segments."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = [line.split()[0].split("-") for line in maps if "/memfd:a2a" in line]
    return count("fd"), sum(int(end, 16) - int(begin, 16) for begin, end in mapped)


def many(me: Me, handles: list[str], begin: int, end: int) -> list[tuple[int, int]]:
    seen = []
    for generation in range(begin, end):
        connect(me, handles, generation)
        exchange(me, 10)
        seen.append(possessions(me))
    return seen


def assert_nothing_grows(place: str, generations: int) -> None:
    with Members(3, place) as members:
        for seen in values(members.run(range(3), many, members.list(range(3)), 0, generations)):
            assert len(set(seen[5:])) == 1, (seen[0], seen[5], seen[-1])


@apart
@pytest.mark.parametrize("place", ["unix", "tcp", "abab"])
def test_nothing_grows(place: str) -> None:
    assert_nothing_grows(place, 100)


@apart
@pytest.mark.full
@pytest.mark.parametrize("place", ["unix", "tcp", "abab"])
def test_nothing_grows_in_a_thousand_generations(place: str) -> None:
    assert_nothing_grows(place, 1000)


# ---- those that do not come ----------------------------------------------------------------------------------------


@apart
@pytest.mark.parametrize(("place", "seconds"), [("unix", 0.1), ("tcp", 1.0), ("abab", 1.0)])
def test_a_dead_member(place: str, seconds: float) -> None:
    with Members(4, place) as members:
        meet(members, [0, 1, 2, 3], 1)
        members.kill(2)
        for generation in (2, 2):  # a generation that has failed may be tried again
            answers = members.run([0, 1, 3], connect, members.handles, generation)
            assert {answer.error for answer in answers} == {"PeerLostError"}
            assert all(f"rank 2 (pid {members.pid(2)} on " in answer.text for answer in answers)
            assert max(answer.seconds for answer in answers) < 5 * seconds  # other tests run beside this one
        meet(members, [0, 1, 3], 2)


@apart
@pytest.mark.parametrize("place", ["unix", "abab"])
def test_death_in_the_meeting(place: str) -> None:
    with Members(4, place) as members:
        for member in (0, 1, 3):
            members.start(member, connect, members.handles[:4], 1, 0.5)
        time.sleep(0.2)
        members.start(2, connect, members.handles[:4], 1, 0.0)  # it gives up at once
        members.answer(2)
        for member in (0, 1, 3):
            assert members.answer(member).error in ("TimeoutError", "")
        for member in (0, 1, 2):
            members.start(member, connect, members.handles[:4], 2)
        time.sleep(0.1)
        members.kill(1)
        answers = [members.answer(member) for member in (0, 2)]
        assert [answer.error for answer in answers] == ["PeerLostError"] * 2
        assert all(f"pid {members.pid(1)} on " in answer.text for answer in answers)
        new = members.add()
        meet(members, [0, new, 2, 3], 3)


@apart
@pytest.mark.parametrize("place", ["unix", "threads", "abab"])
def test_one_that_does_not_come(place: str) -> None:
    with Members(3, place) as members:
        answers = members.run([0, 1], connect, members.handles, 1, 0.5)
        assert [answer.error for answer in answers] == ["TimeoutError"] * 2
        assert all("timed out waiting for rank 2 (pid " in answer.text for answer in answers), answers
        assert max(answer.seconds for answer in answers) < 3
        meet(members, [0, 1, 2], 1)


@apart
def test_one_that_is_stopped_is_named() -> None:
    with Members(3) as members:
        members.kill(2, signal.SIGSTOP)
        answers = members.run([0, 1], connect, members.handles, 1, 0.5)
        members.kill(2, signal.SIGCONT)
        assert all("rank 2" in answer.text and "is stopped" in answer.text for answer in answers), answers
        meet(members, [0, 1, 2], 1)


# ---- disagreement --------------------------------------------------------------------------------------------------


@apart
@pytest.mark.parametrize("place", PLACES)
def test_lists_disagree(place: str) -> None:
    with Members(4, place) as members:
        for generation, (first, second) in enumerate([([0, 1], [1, 0]), ([0, 1], [0, 1, 2]), ([0, 1, 3], [2, 1, 0])]):
            members.start(0, connect, members.list(first), generation)
            members.start(1, connect, members.list(second), generation)
            answers = [members.answer(member) for member in (0, 1)]
            assert [answer.error for answer in answers] == ["MismatchError"] * 2, answers
            for answer in answers:
                assert f"has {len(first)} (" in answer.text and f"has {len(second)} (" in answer.text, answer
        meet(members, [0, 1, 2, 3], 7)


@apart
@pytest.mark.parametrize("place", ["unix", "threads", "abab"])
def test_generations_disagree(place: str) -> None:
    with Members(2, place) as members:
        members.start(0, connect, members.handles, 7)
        members.start(1, connect, members.handles, 8)
        answers = [members.answer(member) for member in (0, 1)]
        assert [answer.error for answer in answers] == ["MismatchError"] * 2, answers
        assert all("in generation 7" in answer.text and "in generation 8" in answer.text for answer in answers)
        meet(members, [0, 1], 8)


@apart
def test_a_third_one_hears_of_a_disagreement_among_two() -> None:
    with Members(3) as members:
        members.start(2, connect, members.list([0, 1, 2]), 1)
        time.sleep(0.1)
        members.start(0, connect, members.list([0, 1, 2]), 1)
        members.start(1, connect, members.list([1, 0, 2]), 1)
        answers = [members.answer(member) for member in range(3)]
        assert [answer.error for answer in answers] == ["MismatchError"] * 3, answers


# ---- wrong arguments -----------------------------------------------------------------------------------------------


def wrong_list(me: Me, handles: list[str], how: str) -> list[Any]:
    own = handles.index(me.endpoint.handle)
    flipped = handles[0][:-1] + ("0" if handles[0][-1] != "0" else "1")
    return {
        "without the own": handles[:own] + handles[own + 1 :],
        "twice": [*handles, handles[0]],
        "no handle": [*handles, "hello"],
        "a part": [*handles, handles[0][:40]],
        "changed": [flipped, *handles[1:]],
        "of another version": [*handles, handles[0].replace("endpoint-1:", "endpoint-2:")],
        "of another job": [*handles, a2a.Endpoint(address="127.0.0.1", secret="another secret, as long").handle],
        "no text": [*handles, 5],
        "no list": handles[0],
        "none": None,
        "empty": [],
        "too many": [*handles, *(a2a.Endpoint().handle if i < 20 else f"{handles[0]}" for i in range(10_000))],
    }[how]


def connect_wrongly(me: Me, handles: list[str], how: str, generation: Any = 1) -> None:
    me.endpoint.connect(wrong_list(me, handles, how) if how else handles, generation, timeout=10)


WRONG_LISTS = [
    ("without the own", "does not have the handle of this endpoint"),
    ("twice", "is the same as handles[0]"),
    ("no handle", "handles[2] is no handle"),
    ("a part", "handles[2] is no handle"),
    ("changed", "handles[0] was changed on its way, or is of another job"),
    ("of another version", "handles[2] is of version 2"),
    ("of another job", "handles[2] was changed on its way, or is of another job"),
    ("no text", "handles[2] is 5"),
    ("no list", "pass a list"),
    ("none", "handles is None"),
    ("empty", "handles is empty"),
    ("too many", "a group has at most"),
]


@apart
@pytest.mark.parametrize("place", ["unix", "tcp"])
def test_wrong_lists(place: str) -> None:
    with Members(2, place) as members:
        for how, text in WRONG_LISTS:
            answer = members.run([0], connect_wrongly, members.handles, how)[0]
            assert answer.error == "InvalidArgumentError" and text in answer.text, (how, answer)
        meet(members, [0, 1], 1)


@apart
def test_wrong_generations() -> None:
    with Members(2) as members:
        for generation in (-1, True, 1.0, "1", None, 2**63):
            answer = members.run([0], connect_wrongly, members.handles, "", generation)[0]
            assert answer.error == "InvalidArgumentError" and "generation is" in answer.text, answer
        meet(members, [0, 1], 3)
        answer = members.run([0], connect_wrongly, members.handles, "", 3)[0]
        assert answer.error == "InvalidArgumentError" and "generation 3 was already used" in answer.text
        assert values(members.run([0, 1], exchange)) == [[0, 1]] * 2  # wrong arguments do not end the former group


@apart
@pytest.mark.parametrize("place", ["unix", "abab"])
def test_the_others_hear_of_wrong_arguments(place: str) -> None:
    with Members(3, place) as members:
        meet(members, [0, 1], 4)
        for listed, how in (([0, 1, 2], ""), ([0, 1, 2], "twice")):
            generation = 4 if not how else 5
            members.start(2, connect, members.list(listed), generation)
            time.sleep(0.05)
            members.start(0, connect_wrongly, members.list(listed), how, generation)
            assert members.answer(0).error == "InvalidArgumentError"
            answer = members.answer(2)
            assert answer.error == "MismatchError" and f"does not take part in generation {generation}" in answer.text
            assert answer.seconds < 5
        meet(members, [0, 1, 2], 6)


def connect_twice(me: Me, handles: list[str]) -> str:
    errors = []

    def second() -> None:
        time.sleep(0.1)
        try:
            me.endpoint.connect(handles, 2, timeout=5)
        except a2a.InvalidArgumentError as error:
            errors.append(str(error))

    thread = threading.Thread(target=second)
    thread.start()
    connect(me, handles, 1)
    thread.join()
    return errors[0]


def connect_in_a_handler(me: Me, handles: list[str]) -> str:
    errors = []

    def handler(*_: object) -> None:
        try:
            me.endpoint.connect(handles, 4, timeout=5)
        except a2a.InvalidArgumentError as error:
            errors.append(str(error))

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    connect(me, handles, 3)
    return errors[0]


@apart
def test_connect_within_connect() -> None:
    with Members(2) as members:
        for function, generation in ((connect_twice, 1), (connect_in_a_handler, 3)):
            members.start(0, function, members.handles)
            time.sleep(0.4)
            members.start(1, connect, members.handles, generation)
            assert "in connect() already" in values([members.answer(0)])[0]
            values([members.answer(1)])
            assert values(members.run([0, 1], exchange)) == [[0, 1]] * 2


def connect_in_a_child(me: Me, handles: list[str]) -> str:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            me.endpoint.connect(handles, 2, timeout=5)
        except a2a.AbortedError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return os.read(read, 1000).decode()


@apart
@pytest.mark.parametrize("place", ["unix", "tcp"])
def test_a_forked_child_cannot_use_it(place: str) -> None:
    with Members(2, place) as members:
        assert "fork" in values(members.run([0], connect_in_a_child, members.handles))[0]
        meet(members, [0, 1], 2)


def interrupted(me: Me, handles: list[str]) -> str:
    def handler(*_: object) -> None:
        raise ValueError("from the handler")

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(ValueError, match="from the handler"):
        me.endpoint.connect(handles, 1, timeout=10)
    return "ok"


@apart
@pytest.mark.parametrize("place", ["unix", "abab"])
def test_a_signal_ends_it_and_the_others_hear_of_it(place: str) -> None:
    with Members(3, place) as members:
        members.start(0, interrupted, members.handles)
        members.start(1, connect, members.handles, 1)
        assert members.answer(0).value == "ok"
        answer = members.answer(1)
        assert answer.error == "AbortedError" and "interrupted" in answer.text and answer.seconds < 5, answer
        meet(members, [0, 1, 2], 1)


@apart
def test_a_signal_while_it_tells_the_others_of_an_error_is_not_lost() -> None:
    def handler(*_: object) -> None:
        raise ValueError("from the handler")

    signal.signal(signal.SIGALRM, handler)
    endpoint, absent = a2a.Endpoint(), a2a.Endpoint()
    with pytest.raises(ValueError, match="from the handler"):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with contextlib.suppress(a2a.InvalidArgumentError):
            endpoint.connect([endpoint.handle, absent.handle], -1)
        time.sleep(1)


# ---- making one ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"address": "127.0.0.1"}, "secret"),
        ({"address": "127.0.0.1", "secret": "short"}, "16"),
        ({"address": "192.0.2.1", "secret": "x" * 20}, "no such address"),
        ({"address": "0.0.0.0", "secret": "x" * 20}, "every interface"),
        ({"address": "127.0.0.1:99999", "secret": "x" * 20}, "port"),
        ({"secret": "short"}, "16"),
    ],
)
def test_wrong_endpoints(arguments: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("A2A_SECRET", "A2A_SECRET_FILE", "A2A_BOOTSTRAP"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(a2a.InvalidArgumentError, match=text):
        a2a.Endpoint(**arguments)  # type: ignore[arg-type]


def test_it_costs_one_descriptor_and_no_thread() -> None:
    a2a.Endpoint()
    before = count("fd"), threading.active_count(), count("task")
    endpoints = [a2a.Endpoint() for _ in range(5)]
    assert (count("fd"), threading.active_count(), count("task")) == (before[0] + 5, *before[1:])
    assert len({endpoint.handle for endpoint in endpoints}) == 5
    assert "generation None" in repr(endpoints[0]) and endpoints[0].generation is None


def test_alone() -> None:
    endpoint = a2a.Endpoint()
    comm = endpoint.connect([endpoint.handle], 0)
    assert (comm.rank, comm.size, comm.joined, comm.generation) == (0, 1, [], 0)
    comm.barrier()
    with pytest.raises(a2a.UnsupportedError, match="not of an elastic job"):
        comm.recover()
