"""Faults that strike a rank of a test on purpose, so that a test sees how a program gets over them."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._core import Communicator, InvalidArgumentError, set_operation_listener

__all__ = ["Faults", "point"]

_struck: Faults | None = None
"""The faults of the test that runs in this process."""


def point(name: str) -> None:
    """Name this place of a program, for ``faults.kill(rank, at=name)``. Without faults it has no effect."""
    if _struck is not None:
        _struck._pass(name)


@dataclass
class _Fault:
    text: str
    at: int | str
    """before the operation with this number in the test, from 1 on, or at the point with this name"""
    every: int
    """and before each of so many operations from there on; 0: once"""
    strike: Callable[[Communicator | None], None]
    must: bool
    """whether the test fails if it ends before"""
    struck: bool = False

    def is_due(self, number: int) -> bool:
        if isinstance(self.at, str) or number < self.at:
            return False
        return number == self.at or (self.every > 0 and (number - self.at) % self.every == 0)


class Faults:
    """The fixture ``faults`` of a test with the mark ``ranks``. Every rank makes the same calls; only the rank that a
    call names is struck. Operations are those that this rank starts on any communicator during the test, from 1 on:
    messages, ``barrier()`` and those of torch's backend "a2a" among them. ``at`` is such a number, or the name of a
    ``a2a.testing.point()``. A test fails if it ends before a fault that it asked for has struck."""

    def __init__(self, rank: int, size: int, tell: Callable[[str, Any], None]) -> None:
        self._rank, self._size, self._tell = rank, size, tell
        self._operations = 0
        self._faults: list[_Fault] = []

    def kill(self, rank: int, at: int | str = 1, signal: int = signal.SIGKILL) -> None:
        """End the process of the rank by a signal. The test does not fail of it: the other ranks decide."""
        number = int(signal)
        text = f"faults.kill({rank}, at={at!r})"
        if self._add(rank, _Fault(text, at, 0, lambda _: os.kill(os.getpid(), number), True)):
            self._tell("plan", (text, number))

    def stop(self, rank: int, at: int | str = 1, seconds: float | None = None) -> None:
        """Stop the process of the rank for so many seconds; None: until the other ranks have ended the test, when it is
        ended."""
        text = f"faults.stop({rank}, at={at!r})"

        def strike(_: Communicator | None) -> None:
            self._tell("stops", float("inf") if seconds is None else float(seconds))
            os.kill(os.getpid(), signal.SIGSTOP)

        if self._add(rank, _Fault(text, at, 0, strike, True)) and seconds is None:
            self._tell("plan", (text, int(signal.SIGKILL)))

    def delay(self, rank: int, ms: float, at: int | str = 1, every: int = 1) -> None:
        """Have the rank wait so many milliseconds before operation ``at`` and each ``every``-th after it; 0: once."""
        if not ms >= 0 or isinstance(every, bool) or not isinstance(every, int) or every < 0:
            raise InvalidArgumentError(f"faults.delay: ms={ms!r} and every={every!r} are not both from 0 on")
        text = f"faults.delay({rank}, {ms}, at={at!r}, every={every})"
        self._add(rank, _Fault(text, at, every, lambda _: time.sleep(ms / 1000), True))

    def drop(self, rank: int, at: int = 1) -> None:
        """Have the rank leave the communicator of that operation without a word, as if its process had gone. The rank
        itself raises AbortedError, its peers PeerLostError."""

        def strike(comm: Communicator | None) -> None:
            assert comm is not None
            error = ConnectionAbortedError("faults.drop")
            comm.__exit__(type(error), error, None)

        self._add(rank, _Fault(f"faults.drop({rank}, at={at!r})", _numbered("drop", at), 0, strike, True))

    def refuse(self, rank: int, at: int = 1) -> None:
        """Have the rank refuse that operation: it raises InvalidArgumentError, and its peers MismatchError."""
        text = f"faults.refuse({rank}, at={at!r})"

        def strike(_: Communicator | None) -> None:
            raise InvalidArgumentError(text)

        self._add(rank, _Fault(text, _numbered("refuse", at), 0, strike, True))

    def random(self, seed: int, within: int = 20) -> str:
        """Draw one fault, the same on all ranks: one of the others, on any rank, before one of the first ``within``
        operations. Returns it in words, for the message of an assertion. It need not strike."""
        drawn = random.Random(seed)
        rank, at = drawn.randrange(self._size), drawn.randint(1, within)
        kind = drawn.choice(("kill", "stop", "delay", "drop", "refuse"))
        before = len(self._faults)
        if kind == "delay":
            ms = drawn.randint(1, 200)
            self.delay(rank, ms, at, drawn.choice((0, 1, 3)))
        elif kind == "stop":
            self.stop(rank, at, drawn.choice((0.05, 0.5)))
        else:
            getattr(self, kind)(rank, at)
        for fault in self._faults[before:]:
            fault.must = False
        return f"faults.random({seed}): {kind} of rank {rank} before operation {at}"

    # ---- for what runs the test --------------------------------------------------------------------------------------

    def _open(self) -> None:
        global _struck
        _struck = self
        set_operation_listener(self._before_operation)

    def _close(self) -> None:
        global _struck
        _struck = None
        set_operation_listener(None)

    def _missing(self) -> str:
        """Return what is wrong at the end of a test: faults that have not struck."""
        texts = [fault.text for fault in self._faults if fault.must and not fault.struck]
        if not texts:
            return ""
        return f"{', '.join(texts)} did not strike: rank {self._rank} started {self._operations} operations in the test"

    def _add(self, rank: int, fault: _Fault) -> bool:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self._size:
            raise InvalidArgumentError(f"{fault.text}: there is no rank {rank!r} of {self._size}")
        if isinstance(fault.at, bool) or not isinstance(fault.at, (int, str)):
            raise InvalidArgumentError(f"{fault.text}: at is the number of an operation or the name of a point")
        if isinstance(fault.at, int) and fault.at <= self._operations:
            raise InvalidArgumentError(f"{fault.text}: operation {fault.at} of this test has passed, or is none")
        if rank == self._rank:
            self._faults.append(fault)
        return rank == self._rank

    def _before_operation(self, comm: Communicator, _: str) -> None:
        self._operations += 1
        for fault in self._faults:
            if fault.is_due(self._operations):
                fault.struck = True
                fault.strike(comm)

    def _pass(self, name: str) -> None:
        for fault in self._faults:
            if fault.at == name and not fault.struck:
                fault.struck = True
                fault.strike(None)


def _numbered(kind: str, at: object) -> int:
    if isinstance(at, bool) or not isinstance(at, int):
        raise InvalidArgumentError(f"faults.{kind}: at={at!r} is not the number of an operation")
    return at
