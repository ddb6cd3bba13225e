"""The processes of a plan of generations, under a guard that starts, stops and kills them."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from ..harness import Answer, die_with_parent
from .member import Call, serve

STARTING_SECONDS = 60.0


@dataclass(eq=False)
class Member:
    """What the driver knows of an endpoint."""

    process: Process
    index: int
    handle: str
    used: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    """Generations in which it has failed, whoever was in the list."""
    group: tuple[int, int] | None = None
    """The generation in which it was last, and a number of its group."""

    @property
    def name(self) -> str:
        return f"{self.process.name}.{self.index}"


@dataclass(eq=False)
class Process:
    name: str
    host: str
    pid: int
    line: Connection
    members: list[Member] = field(default_factory=list)
    died: float | None = None


@dataclass
class Strike:
    """What hits a process while its members, or the others, are in a call."""

    kind: str  # "kill" or "stop"
    process: Process
    moment: str  # "before", "connect", "operation" or "shrink"
    delay: float


class Pool:
    def __init__(self, address: str | None, secret: str | None) -> None:
        self.place = (address, secret)
        self.processes: list[Process] = []
        self.dead: list[str] = []
        """Handles of endpoints that are no more."""
        self.started = 0

    @property
    def members(self) -> list[Member]:
        return [member for process in self.processes for member in process.members]

    def start(self, host: str, members: int) -> Process:
        ours, theirs = Pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                die_with_parent()
                faulthandler.disable()
                for line in [ours, *(process.line for process in self.processes)]:
                    line.close()
                serve(theirs, host, members, *self.place)
                status = 0
            finally:
                os._exit(status)
        theirs.close()
        process = Process(f"p{self.started}", host, pid, ours)
        self.started += 1
        self.processes.append(process)
        handles = self._await(process, "handles")
        process.members = [Member(process, i, handle) for i, handle in enumerate(handles)]
        return process

    def kill(self, process: Process) -> None:
        process.died = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        self._bury(process)

    def _bury(self, process: Process) -> int:
        process.line.close()
        self.processes.remove(process)
        self.dead += [member.handle for member in process.members]
        return os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])

    def renew(self, member: Member) -> str:
        """Its endpoint is closed, and another one takes its place. Return the handle of the former."""
        former = member.handle
        member.process.line.send(("renew", member.index))
        member.handle = self._await(member.process, "renewed")
        member.used, member.failed, member.group = set(), set(), None
        self.dead.append(former)
        return former

    def measure(self) -> list[dict[str, int]]:
        for process in self.processes:
            process.line.send(("measure",))
        return [self._await(process, "measured") for process in self.processes]

    def _await(self, process: Process, what: str) -> Any:
        if not process.line.poll(STARTING_SECONDS):
            raise RuntimeError(f"{process.name} does not answer")
        said, value = process.line.recv()
        if said != what:
            raise RuntimeError(f"{process.name} said {said} and not {what}")
        return value

    def play(
        self, calls: Mapping[Member, Call], strikes: list[Strike], limit: float
    ) -> tuple[dict[Member, list[tuple[str, Answer]]], list[str]]:
        """Have the members do these calls. Return their answers, and who hangs or has ended without being killed."""
        answers: dict[Member, list[tuple[str, Answer]]] = {member: [] for member in calls}
        for strike in [one for one in strikes if one.moment == "before"]:
            self._strike(strike)
        todo = {member for member in calls if member.process.died is None}
        for member in todo:
            member.process.line.send(("call", member.index, calls[member]))
        pending = [one for one in strikes if one.moment != "before"]
        for strike in [one for one in pending if one.moment == "connect"]:
            self._strike(strike)
            pending.remove(strike)
        labels = {"operation": "connect", "shrink": "loss"}
        said: list[str] = []
        until = time.monotonic() + limit

        def hear(member: Member, label: str, answer: Answer) -> None:
            answers[member].append((label, answer))
            if label == "done":
                todo.discard(member)
            for strike in [one for one in pending if one.process is member.process]:
                if label == labels[strike.moment]:
                    pending.remove(strike)
                    self._strike(strike)

        while todo := {member for member in todo if member.process.died is None}:
            self._hear(todo, hear, said, until)
            if said and time.monotonic() > until:
                break
        return answers, said

    def _hear(self, todo: set[Member], hear: Callable[..., None], said: list[str], until: float) -> None:
        lines = {member.process.line: member.process for member in todo}
        ready = wait(list(lines), max(0.0, until - time.monotonic()))
        if not ready:
            said += [f"{member.name} hangs" for member in todo]
        for line in ready:
            process = lines[line]  # type: ignore[index]
            if process.died is not None:
                continue
            try:
                _, index, label, answer = process.line.recv()
            except (EOFError, ConnectionResetError):
                process.died = time.monotonic()
                said.append(f"{process.name} ended with {self._bury(process)}")
                continue
            hear(process.members[index], label, answer)

    def _strike(self, strike: Strike) -> None:
        if strike.process.died is not None:
            return
        time.sleep(strike.delay)
        if strike.kind == "kill":
            self.kill(strike.process)
            return
        os.kill(strike.process.pid, signal.SIGSTOP)
        time.sleep(0.02 + strike.delay)
        os.kill(strike.process.pid, signal.SIGCONT)

    def end(self, seconds: float = 10.0) -> list[str]:
        """Have all processes leave. Return what is wrong with how they did."""
        said = []
        for process in self.processes:
            with contextlib.suppress(OSError):
                process.line.send(None)
        for process in list(self.processes):
            gone = os.pidfd_open(process.pid)
            if not wait([gone], seconds):
                os.kill(process.pid, signal.SIGKILL)
                said.append(f"{process.name} does not leave")
            os.close(gone)
            if status := self._bury(process):
                said.append(f"{process.name} left with {status}")
        return said
