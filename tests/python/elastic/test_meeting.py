"""Endpoints that cannot meet hear why, all of them and at once, and meet in the next generation. Each comes at its own
time, so that errors and proposals cross."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import time
from collections import Counter
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest

import a2a

ATTEMPTS = 25
Job = tuple[list[str], int, float]  # the list, the generation, seconds to wait before


def member(pipe: Connection, tcp: bool) -> None:
    """Connects as it is told, and tells what came of it."""
    with contextlib.suppress(EOFError):
        endpoint = a2a.Endpoint(address="127.0.0.1", secret="of the tests alone") if tcp else a2a.Endpoint()
        pipe.send(endpoint.handle)
        while True:
            handles, generation, delay = pipe.recv()
            time.sleep(delay)
            try:
                endpoint.connect(handles, generation, timeout=20)
                pipe.send("met")
            except a2a.Error as error:
                pipe.send(type(error).__name__)


class Members:
    def __init__(self, n: int, tcp: bool) -> None:
        self.tcp = tcp
        self.processes: list[BaseProcess] = []
        self.pipes: list[Connection] = []
        self.handles: list[str] = []
        for _ in range(n):
            self.start()

    def start(self) -> None:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=member, args=(theirs, self.tcp), daemon=True)
        process.start()
        theirs.close()
        self.processes.append(process)
        self.pipes.append(ours)
        self.handles.append(self.receive(len(self.pipes) - 1))

    def receive(self, i: int) -> str:
        assert self.pipes[i].poll(30), f"process {i} says nothing"
        return str(self.pipes[i].recv())

    def stop(self, i: int) -> None:
        self.processes[i].kill()
        self.processes[i].join(10)
        self.pipes[i].close()
        del self.processes[i], self.pipes[i], self.handles[i]

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        while self.processes:
            self.stop(0)


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
@pytest.mark.parametrize("mistake", ["order", "part", "twice", "negative"])
def test_all_hear_that_lists_disagree_and_then_meet(mistake: str, tcp: bool) -> None:
    chance = random.Random(1)
    with Members(3, tcp) as members:
        a, b, c = members.handles
        right = [a, b, c]
        wrong = {"order": [b, a, c], "part": [a, b], "twice": [a, b, c, c], "negative": right}[mistake]
        came: Counter[tuple[int, str]] = Counter()
        for attempt in range(ATTEMPTS):
            for i, pipe in enumerate(members.pipes):
                generation = -1 if i == 1 and mistake == "negative" else 2 * attempt
                pipe.send((wrong if i == 1 else right, generation, chance.random() * 0.004))
                pipe.send((right, 2 * attempt + 1, 0.0))
            for i in range(3):
                came[i, members.receive(i)] += 1
                came[i, members.receive(i)] += 1
    own = "MismatchError" if mistake in ("order", "part") else "InvalidArgumentError"
    errors = ["MismatchError", own, "MismatchError"]
    assert came == Counter({(i, what): ATTEMPTS for i in range(3) for what in (errors[i], "met")})


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
@pytest.mark.parametrize("comes", [False, True], ids=["absent", "present"])
def test_those_who_live_meet_at_once_without_the_dead_one(comes: bool, tcp: bool) -> None:
    chance = random.Random(2)
    with Members(3, tcp) as members:
        for attempt in range(ATTEMPTS):
            everybody = list(members.handles)
            for pipe in members.pipes[:2]:
                pipe.send((everybody, 2 * attempt, chance.random() * 0.002))
                pipe.send((everybody[:2], 2 * attempt + 1, 0.0))
            if comes:
                members.pipes[2].send((everybody, 2 * attempt, 0.0))
            time.sleep(chance.random() * 0.004)
            members.stop(2)
            for i in range(2):
                assert members.receive(i) in ("PeerLostError", "met"), attempt
                assert members.receive(i) == "met", attempt
            members.start()


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
@pytest.mark.parametrize("then", ["negative", "another"])
def test_a_generation_that_failed_is_tried_again_beside_a_mistake(then: str, tcp: bool) -> None:
    chance = random.Random(3)
    with Members(2, tcp) as members:
        a, b = members.handles
        for attempt in range(ATTEMPTS):
            for i, pipe in enumerate(members.pipes):
                pipe.send(([a, b] if i == 0 else [b, a], 3 * attempt, 0.0))
            assert [members.receive(i) for i in range(2)] == ["MismatchError", "MismatchError"]
            other = -1 if then == "negative" else 3 * attempt + 1
            for i, pipe in enumerate(members.pipes):
                pipe.send(([a, b], 3 * attempt if i == 0 else other, chance.random() * 0.004))
                pipe.send(([a, b], 3 * attempt + 2, 0.0))
            error = "InvalidArgumentError" if then == "negative" else "MismatchError"
            assert [members.receive(i) for i in range(2)] == ["MismatchError", error], attempt
            assert [members.receive(i) for i in range(2)] == ["met", "met"], attempt
