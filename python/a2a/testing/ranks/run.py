"""Has ranks run one test, and collects how each of them ended: by itself, by dying, or not at all."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import stuck
from .channel import Closed, readable
from .pool import Member, Pool
from .serving import CONNECTION_CLOSED, Tested

__all__ = ["End", "run"]

# How long after a failure the other ranks may still come to failures of their own, before they are told of it.
_OWN_SECONDS = 0.25
# How long they may then take to notice.
_NOTICE_SECONDS = 3.0
# How long ranks may take at least to tear down what a test used.
_FINISH_SECONDS = 10.0
# How long the death of a process may take.
_DYING_SECONDS = 1.0
# How long one wait may take, whatever the limit.
_LONGEST_WAIT = 3600.0
# How often ranks that were told to stop themselves are looked at.
_LOOK_SECONDS = 0.02


@dataclass
class End:
    """How a rank ended its test."""

    rank: int
    tested: Tested | None = None
    done: Any = None
    died: str = ""
    """what ended the rank before it was done, such as "was killed by SIGKILL" """
    stack: str = ""
    """its Python lines then, where it could write them"""
    output: dict[str, str] = field(default_factory=dict)
    """what it had printed, if it died"""
    time: float = 0.0
    follows: bool = False
    """whether it was ended because of another rank"""
    planned: str = ""
    """the faults that the test asked for, of which the rank may die"""
    seconds: float = 0.0
    threads: bool = False
    """whether the ranks are threads of this one's process"""

    @property
    def failed(self) -> bool:
        if self.died:
            return not self.planned
        return self.tested is not None and self.tested.failure is not None


def run(pool: Pool, members: Sequence[Member], tasks: Sequence[Any], limit: float, records: Path | None) -> list[End]:
    """Give task r to rank r. Every rank has ended its test, or is ended, when this returns or raises; those that did
    not come to the end themselves are gone from the pool. ``records``: the folder of A2A_DUMP."""
    test = _Test(pool, members, limit, records)
    try:
        for member, task in zip(members, tasks, strict=True):
            with contextlib.suppress(Closed):  # it is dead, as will be seen
                member.channel.send(task)
        test.collect()
    except BaseException:
        for rank in test.unfinished():
            pool.end(rank)
        raise
    return test.ends


class _Test:
    def __init__(self, pool: Pool, members: Sequence[Member], limit: float, records: Path | None) -> None:
        self._pool, self._members, self._limit, self._records = pool, members, limit, records
        self._began = time.monotonic()
        self._deadline = self._began + limit
        self.ends = [End(rank) for rank in range(len(members))]
        self._told: set[int] = set()
        self._debugging: int | None = None
        self._debugged = False
        self._continue_at: dict[int, float] = {}
        self._threads: dict[int, int] = {}
        self._planned: dict[int, int] = {}

    def unfinished(self) -> list[int]:
        return [end.rank for end in self.ends if end.done is None and not end.died]

    def collect(self) -> None:
        while waiting := self.unfinished():
            self._wait(waiting)
            for rank in self.unfinished():
                self._look_at_stopped(rank)
            self._tell()
            now = time.monotonic()
            if self._debugging is None and self.unfinished() and now > self._time_is_over():
                self._end_stuck(now < self._deadline)
        for rank, at in self._continue_at.items():
            if at == float("inf") and not self.ends[rank].died:
                self._members[rank].signal(signal.SIGCONT)

    # ---- waiting -----------------------------------------------------------------------------------------------------

    def _wait(self, waiting: list[int]) -> None:
        descriptors: dict[int, int] = {}
        for rank in waiting:
            descriptors[self._members[rank].channel.fileno()] = rank
            descriptors[self._members[rank].pidfd] = rank
        seconds = max(self._time_is_over() - time.monotonic(), 0.0) + 0.001
        if self._debugging is not None or seconds > _LONGEST_WAIT:
            seconds = _LONGEST_WAIT
        failed_at = self._failed_at()
        if failed_at is not None and not self._told:
            seconds = min(seconds, max(failed_at + _OWN_SECONDS - time.monotonic(), 0) + 0.001)
        if self._continue_at:
            seconds = min(seconds, _LOOK_SECONDS)
        for rank in {descriptors[ready] for ready in readable(descriptors, seconds)}:
            member = self._members[rank]
            dead = member.dead()  # before its last messages are read, so that none is missed
            while not self.ends[rank].died and readable([member.channel.fileno()], 0):
                try:
                    message = member.channel.receive()[0]
                except Closed:
                    # The kernel closes the channel of a dying process a little before it is dead.
                    if not dead and not readable([member.pidfd], _DYING_SECONDS):
                        self._end(rank, "has closed its connection to the process that runs the tests")
                    break
                self._hear(rank, *message)
            if rank in self.unfinished() and member.dead():
                self._end(rank, "")

    def _hear(self, rank: int, kind: str, content: Any) -> None:
        end, member = self.ends[rank], self._members[rank]
        if kind == "tested":
            end.tested, end.time, end.seconds = content, time.monotonic(), time.monotonic() - self._began
        elif kind == "done":
            end.done = (content,)
        elif kind == "debugger?":  # one rank of a test alone gets the terminal
            member.channel.send(not self._debugged)
            self._debugged = True
        elif kind == "debug":
            self._debug(rank, content)
        elif kind == "plan":
            end.planned, self._planned[rank] = content
        elif kind == "stops":
            self._continue_at[rank] = time.monotonic() + content
        elif kind == "threads":
            self._threads, end.threads = content, True
        elif kind == "forked":
            end.tested = None
            self._end(rank, f"has forked: {content}; a child that a test forks ends by os._exit()")
        else:
            self._end(rank, f"could not run the test:\n{content}")

    def _debug(self, rank: int, begins: bool) -> None:
        now = time.monotonic()
        if begins and self._debugging is None:
            self._debugging, self._debugged, self._paused = rank, True, now
        elif not begins and self._debugging == rank:
            self._debugging = None
            self._deadline += now - self._paused
            for end in self.ends:
                end.time += now - self._paused if end.time else 0.0

    def _look_at_stopped(self, rank: int) -> None:
        """Continue a rank that has stopped itself, when its time has come or when all others are done."""
        if rank not in self._continue_at or not stuck.is_stopped(self._members[rank].pid):
            return
        if time.monotonic() > self._continue_at[rank]:
            del self._continue_at[rank]
            self._members[rank].signal(signal.SIGCONT)
        elif all(end.tested or end.died or end.rank in self._continue_at for end in self.ends):
            self._end(rank, "had stopped itself")

    # ---- failures ----------------------------------------------------------------------------------------------------

    def _failed_at(self) -> float | None:
        return min((end.time for end in self.ends if end.failed), default=None)

    def _time_is_over(self) -> float:
        failed_at = self._failed_at()
        if all(end.tested or end.died for end in self.ends):
            return max(self._deadline, max(end.time for end in self.ends) + _FINISH_SECONDS)
        if failed_at is None:
            return self._deadline
        return min(self._deadline, failed_at + _OWN_SECONDS + _NOTICE_SECONDS)

    def _tell(self) -> None:
        """Tell ranks that have ended their test to tear down what it used: when all have, or when others may wait for
        a rank that has failed."""
        ready = all(end.tested or end.died for end in self.ends)
        failed_at = self._failed_at()
        if self._debugging is not None:
            return
        if not ready and (failed_at is None or time.monotonic() < failed_at + _OWN_SECONDS):
            return
        reason = self._reason()
        for end in self.ends:
            if end.tested and not end.died and end.rank not in self._told:
                self._told.add(end.rank)
                with contextlib.suppress(Closed):
                    self._members[end.rank].channel.send(reason)

    def _reason(self) -> str | None:
        first = min((end for end in self.ends if end.failed or end.died), key=lambda end: end.time, default=None)
        if first is None:
            return None
        failure = first.tested.failure if first.tested else None
        what = failure.message.splitlines()[0] if failure and failure.message else first.died or "failed"
        return f"rank {first.rank} {'' if first.died else 'failed: '}{what}"

    def _end_stuck(self, because_of_others: bool) -> None:
        late = [rank for rank in self.unfinished()]
        stacks = stuck.stacks({rank: self._members[rank] for rank in late}, self._threads)
        waits, culprits = stuck.explanation(self._records) if self._records is not None else ("", [])
        finishing = all(self.ends[rank].tested for rank in late)
        for rank in late:
            what = "did not come to an end" if not finishing else "did not finish its fixtures"
            after = f"{what} in {self._limit:g} s"
            if because_of_others:
                after = f"{what} in {_NOTICE_SECONDS:g} s after another rank had failed"
            end = self.ends[rank]
            self._end(rank, after)
            end.stack, end.follows = stacks[rank], because_of_others or (bool(culprits) and rank not in culprits)
        last = max(late, key=lambda rank: (self.ends[rank].follows, rank))
        self.ends[last].stack += f"\n\n{waits}".rstrip()

    def _end(self, rank: int, how: str) -> None:
        end, member = self.ends[rank], self._members[rank]
        end.output, end.time, end.seconds = member.output(), time.monotonic(), time.monotonic() - self._began
        stack = member.read_stack()
        if self._debugging == rank:
            self._debug(rank, False)
        _take_terminal_back()
        code = self._pool.end(rank)
        if not how and code != -self._planned.get(rank, 0):
            end.planned = ""
        if not how and code == CONNECTION_CLOSED:
            how = "has closed its connection to the process that runs the tests"
        if not how and code is not None and code < 0:
            how = f"was killed by {_signal_name(-code)}"
            end.stack = stuck.readable_stack(stack)
        end.died = how or f"exited with code {code} before the test had ended"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _take_terminal_back() -> None:
    """A rank that was in a debugger had the terminal."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        terminal = sys.__stdin__.fileno()  # type: ignore[union-attr]
        if os.isatty(terminal) and os.tcgetpgrp(terminal) != os.getpgrp():
            before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            try:
                os.tcsetpgrp(terminal, os.getpgrp())
            finally:
                signal.signal(signal.SIGTTOU, before)
