"""Ranks that run tasks one after another until one fails, and their reports."""

from __future__ import annotations

import contextlib
import json
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .groups import WAYS
from .processes import Child, Processes
from .rank import PASS, Task

__all__ = ["Result", "Session"]

START_SECONDS = 120.0
GRACE_SECONDS = 1.0
"""How long a rank may take to report after another has failed."""


@dataclass
class Result:
    """The result of a task."""

    task: Task
    verdicts: dict[int, str] = field(default_factory=dict)
    """The verdict of each rank: "pass", "wrong: ...", "raises: ...", "unsupported: ...", "crash: ...", "hang"."""

    @property
    def verdict(self) -> str:
        """The most informative verdict, of the first rank that has it."""
        return min((text for _, text in sorted(self.verdicts.items())), key=_triviality)

    @property
    def failed(self) -> bool:
        return any(text != PASS and not text.startswith("unsupported") for text in self.verdicts.values())


def _triviality(verdict: str) -> int:
    """Sorts verdicts: the effect of another rank's failure says less than that failure."""
    if verdict.startswith("raises") and any(name in verdict for name in ("PeerLost", "Aborted", "Mismatch")):
        return 3
    return {"crash": 0, "wrong": 1, "raises": 2, "hang": 4, "unsupported": 5, PASS: 6}[verdict.partition(":")[0]]


class Session:
    """A context manager, in which the ranks run."""

    def __init__(self, how: str, ranks: int, tasks: Sequence[Task]) -> None:
        self._launched = WAYS[how].launcher == "mpiexec"
        self._ranks, self._results = ranks, [Result(task) for task in tasks]
        self._address = f"\0a2a-conformance-{secrets.token_hex(8)}"
        self._processes = Processes(how, ranks, tasks, self._address)
        self.met = True
        """Whether no rank has reported that it could not join the others, or was missing when the time was over."""
        self._told = [0] * ranks
        """The number of tasks that each rank has reported."""
        self._pending: dict[socket.socket, bytes] = {}
        self._rank_of: dict[socket.socket, int] = {}
        self._descendants: list[Child] = []

    def __enter__(self) -> Session:
        with contextlib.ExitStack() as stack:
            self._listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            self._listener.bind(self._address)
            self._listener.listen(self._ranks)
            self._listener.setblocking(False)
            self._selector = stack.enter_context(selectors.DefaultSelector())
            self._selector.register(self._listener, selectors.EVENT_READ)
            stack.callback(self._close)
            stack.enter_context(self._processes)
            for child in self._processes.children:
                self._selector.register(child, selectors.EVENT_READ)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _close(self) -> None:
        for child in self._descendants:
            child.close()
        for end in self._pending:
            end.close()

    def results(self, seconds: float) -> Iterator[Result]:
        """Yield one for each task, up to the first that fails: after it the ranks may be out of step."""
        at = 0
        deadline = time.monotonic() + START_SECONDS
        while at < len(self._results):
            current = self._results[at]
            if len(current.verdicts) == self._ranks:
                yield current
                if current.failed:
                    return
                at += 1
                continue
            if current.failed:
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            events = self._selector.select(max(0.0, deadline - time.monotonic()))
            for key, _ in events:
                self._handle(key.fileobj)
            if not events:
                self.met = self.met and len(self._rank_of) == self._ranks
                for rank in set(range(self._ranks)) - set(current.verdicts):
                    current.verdicts[rank] = "hang"
            elif len(self._rank_of) == self._ranks and not current.failed:  # all ranks have connected
                deadline = time.monotonic() + seconds

    def _handle(self, source: object) -> None:
        if source is self._listener:
            self._accept()
        elif isinstance(source, Child):
            self._selector.unregister(source)
            self._accept()
            for end in list(self._pending):
                while self._read(end):  # their earlier reports
                    pass
            for rank in source.ranks:
                self._ended(rank, source.how_it_ended())
        elif isinstance(source, socket.socket):
            self._read(source)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                end = self._listener.accept()[0]
                self._pending[end] = b""
                self._selector.register(end, selectors.EVENT_READ)

    def _read(self, end: socket.socket) -> bool:
        try:
            data = end.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if not data:
            with contextlib.suppress(KeyError):
                self._selector.unregister(end)
            if self._launched and end in self._rank_of:
                self._ended(self._rank_of[end], self._from_launcher())
            return False
        *lines, self._pending[end] = (self._pending[end] + data).split(b"\n")
        for said in map(json.loads, lines):
            self._hear(end, said)
        return True

    def _hear(self, end: socket.socket, said: dict[str, str | int]) -> None:
        rank = int(said["rank"])
        if "verdict" in said:
            self._report(rank, str(said["verdict"]))
        elif "apart" in said:
            self.met = False
            self._report(rank, str(said["apart"]))
        else:
            self._rank_of[end] = rank
            if self._launched:
                self._know(end, rank)

    def _report(self, rank: int, verdict: str) -> None:
        """Store the verdict for the current task of the rank."""
        if self._told[rank] < len(self._results):
            self._results[self._told[rank]].verdicts[rank] = verdict
            self._told[rank] += 1

    def _know(self, end: socket.socket, rank: int) -> None:
        """Keep a handle of a rank that a launcher started: the launcher may not end it on request."""
        pid, _, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        with contextlib.suppress(ProcessLookupError):
            self._descendants.append(Child(pid, [rank]))

    def _from_launcher(self) -> str:
        (launcher,) = self._processes.children
        waiting = selectors.DefaultSelector()
        waiting.register(launcher, selectors.EVENT_READ)
        waiting.select(GRACE_SECONDS)
        waiting.close()
        return launcher.how_it_ended()

    def _ended(self, rank: int, how: str) -> None:
        """Store the end of a rank for the first task that it had not reported."""
        self._report(rank, f"crash: {how}")
