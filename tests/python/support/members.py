"""Processes, or threads of one, each with an endpoint: they run one function after another, alone or all at once."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from forked import die_with_parent

import a2a

SECRET = "the secret of these tests"
SECONDS = 20.0
"""The longest time that a function may take."""


@dataclass
class Answer:
    """What became of a function: its value, or the error, and how long it took."""

    value: Any = None
    error: str = ""
    """The name of its class."""
    text: str = ""
    seconds: float = 0.0


@dataclass
class Me:
    """What a member has from one function to the next."""

    number: int
    endpoint: Any
    comm: Any = None
    kept: dict[str, Any] = field(default_factory=dict)


def attempt(me: Me, function: Callable[..., Any], args: tuple[Any, ...]) -> Answer:
    began = time.perf_counter()
    try:
        answer = Answer(function(me, *args))
    except a2a.Error as error:
        answer = Answer(error=type(error).__name__, text=str(error))
    except Exception:
        answer = Answer(error="Exception", text=traceback.format_exc())
    answer.seconds = time.perf_counter() - began
    return answer


def endpoint_of(place: str) -> Any:
    if place in ("unix", "threads"):
        return a2a.Endpoint()
    return a2a.Endpoint(address="127.0.0.1", secret=SECRET)


def serve(number: int, place: str, host: str, connection: Connection) -> None:
    die_with_parent()
    os.environ.pop("A2A_HOSTS", None)
    if host:
        os.environ["A2A_HOSTS"] = host
    me = Me(number, endpoint_of(place))
    connection.send(me.endpoint.handle)
    while (task := connection.recv()) is not None:
        connection.send(attempt(me, *task))


def serve_thread(number: int, place: str, tasks: queue.Queue[Any], answers: queue.Queue[Any]) -> None:
    me = Me(number, endpoint_of(place))
    answers.put(me.endpoint.handle)
    while (task := tasks.get()) is not None:
        answers.put(attempt(me, *task))


class Members:
    """``place``: "unix", "tcp" (one host), "threads", or the hosts of the members, such as "abab". Members are numbered
    from 0 on; add() makes further ones. Use as a context manager."""

    def __init__(self, n: int, place: str = "unix") -> None:
        self.place, self._numbers = place, n
        self.handles: list[str] = []
        self._ends: list[Any] = []
        for _ in range(n):
            self.add()

    def add(self) -> int:
        number = len(self.handles)
        kind = self.place if self.place in ("unix", "tcp", "threads") else "hosts"
        if kind == "threads":
            tasks: queue.Queue[Any] = queue.Queue()
            answers: queue.Queue[Any] = queue.Queue()
            thread = threading.Thread(target=serve_thread, args=(number, kind, tasks, answers), daemon=True)
            thread.start()
            self._ends.append((thread, tasks, answers))
            self.handles.append(answers.get(timeout=SECONDS))
            return number
        host = self.place[number % len(self.place)] if kind == "hosts" else ""
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=serve, args=(number, kind, host, there))
        process.start()
        there.close()
        self._ends.append((process, here))
        assert here.poll(SECONDS)
        self.handles.append(here.recv())
        return number

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._ends:
            try:
                (end[1].put if self.place == "threads" else end[1].send)(None)
            except OSError:
                pass
        for end in self._ends:
            end[0].join(SECONDS)
            if self.place != "threads" and end[0].is_alive():
                end[0].kill()

    def start(self, member: int, function: Callable[..., Any], *args: Any) -> None:
        end = self._ends[member]
        (end[1].put if self.place == "threads" else end[1].send)((function, args))

    def answer(self, member: int) -> Answer:
        end = self._ends[member]
        if self.place == "threads":
            answer: Answer = end[2].get(timeout=SECONDS)
            return answer
        assert end[1].poll(SECONDS), f"member {member} does not come back"
        answer = end[1].recv()
        return answer

    def run(self, members: Iterable[int], function: Callable[..., Any], *args: Any) -> list[Answer]:
        """Run the function on these members at once."""
        members = list(members)
        for member in members:
            self.start(member, function, *args)
        return [self.answer(member) for member in members]

    def list(self, members: Iterable[int]) -> list[str]:
        return [self.handles[member] for member in members]

    def pid(self, member: int) -> int:
        return int(self._ends[member][0].pid)

    def kill(self, member: int, signal_: int = signal.SIGKILL) -> None:
        os.kill(self.pid(member), signal_)
        if signal_ == signal.SIGKILL:
            self._ends[member][0].join(SECONDS)
