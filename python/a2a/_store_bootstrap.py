"""A bootstrap over a key-value store of a framework: torch's, Paddle's, or any other."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Sequence
from typing import Protocol

from ._core import TimeoutError

__all__ = ["Store", "StoreBootstrap"]

_NAME_BYTES = 16
_LONGEST_PAUSE = 0.02  # seconds between two reads of the store
_LOOK_SECONDS = 0.3  # between two looks for who has come, which only errors name
_PARTING_SECONDS = 3.0


class Store(Protocol):
    """What is asked of a store. A key has a value that is never empty, or none."""

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str) -> bytes:
        """Return the value of a key that has one."""

    def find(self, key: str) -> bytes:
        """Return the value of a key, b"" if it has none. Does not wait for one."""

    def has(self, keys: Sequence[str]) -> bool:
        """Return whether all of the keys have values."""

    def add(self, key: str, number: int) -> int:
        """Add to a number that is 0 at first, and return the sum."""

    def delete(self, keys: Sequence[str]) -> None:
        """Remove values. No error says that the store is gone, or cannot remove any."""


class StoreBootstrap:
    """``allgather`` over a store, for ``a2a.init(bootstrap=)``. Waits in short steps, so that Ctrl-C works.

    A store may outlive its ranks, groups of the same name follow one another, and ranks that fail try again, so an
    entry may be of another attempt. So each attempt of a rank has a random name, which it writes into the store. Rank 0
    makes a meeting of the names that it finds there, and a new one when they change. Each rank agrees to a meeting that
    has its own name, and the ranks have met when all have agreed to one. Their messages then have its name in their
    keys."""

    def __init__(self, store: Store, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size = rank, size
        self.meeting = ""
        """The name of the meeting, random and the same on all ranks, from the first allgather() on."""
        self._store, self._timeout = store, timeout
        self._deadline = time.monotonic() + timeout
        self._name = secrets.token_bytes(_NAME_BYTES)
        self._rounds = 0
        self._seen = {rank}

    def left(self) -> float:
        """Return the seconds until the deadline."""
        return max(0.0, self._deadline - time.monotonic())

    def allgather(self, mine: bytes) -> list[bytes]:
        """Return every rank's bytes in rank order. Raises a2a.TimeoutError naming the missing ranks."""
        if not self.meeting:
            self._meet()
        read = self._key(self.rank)
        self._rounds += 1
        self._set(self._key(self.rank), mine)
        pause = _Pause()
        while not self._all_are_here():
            self._wait(pause)
        self._store.delete([read])  # all ranks are in this round, so they have read those before it
        return [self._store.get(self._key(rank))[1:] for rank in range(self.size)]

    def _meet(self) -> None:
        self._set(f"name/{self.rank}", self._name)
        known, pause, look = b"", _Pause(), time.monotonic() + _LOOK_SECONDS
        while not self.meeting or not self._all_are_here():
            began = time.monotonic()
            if self.rank == 0 or began > look:
                names = [self._find(f"name/{rank}") for rank in range(self.size)]
                self._seen |= {rank for rank, name in enumerate(names) if name}
                look = time.monotonic() + _LOOK_SECONDS + 4 * (time.monotonic() - began)  # some stores are slow
                if self.rank == 0 and all(names) and b"".join(names) != known:
                    self._set("meeting", b"".join(names))
            if (now := self._find("meeting")) in (b"", known):
                self._wait(pause)
                continue
            known = now
            own = now[_NAME_BYTES * self.rank :][:_NAME_BYTES]
            self.meeting = now.hex() if own == self._name else ""
            if self.meeting:
                self._set(self._key(self.rank), b"")

    def finish(self) -> None:
        """Remove what this attempt has written, after its last round. The last rank that comes here removes what the
        others may have had to read until then."""
        self._store.delete([f"name/{self.rank}", *(["meeting"] if self.rank == 0 else [])])
        read = f"{self.meeting}/read"
        with contextlib.suppress(RuntimeError):  # the store may be gone
            if self._store.add(read, 1) == self.size:
                self._store.delete([read, *map(self._key, range(self.size))])

    def part(self) -> None:
        """Wait a moment for all ranks to come here, before each raises what it has heard in the last round: the store
        may end with the first process that ends. Then remove what this rank has said there."""
        until, pause = min(self._deadline, time.monotonic() + _PARTING_SECONDS), _Pause()
        with contextlib.suppress(RuntimeError):  # the store may be gone
            here = self._store.add(f"{self.meeting}/parting", 1)
            while here < self.size and time.monotonic() < until:
                pause()
                here = self._store.add(f"{self.meeting}/parting", 0)
            if here == self.size:
                self._store.delete([self._key(self.rank)])

    def withdraw(self) -> None:
        """Take back the name of this attempt, so that ranks that come later wait for the next one."""
        with contextlib.suppress(RuntimeError):  # the store may be gone
            self._set(f"name/{self.rank}", b"")  # not deleted: a rank that is about to read it would block

    def _all_are_here(self) -> bool:
        """Whether all ranks have come to this round of the meeting."""
        return self._store.has([self._key(rank) for rank in range(self.size)])

    def _absent(self) -> list[int]:
        """Return the ranks that have not come to this round, or were never seen where there is no meeting."""
        if self.meeting:
            return [rank for rank in range(self.size) if not self._store.has([self._key(rank)])]
        return sorted(set(range(self.size)) - self._seen) or [0]

    def _key(self, rank: int) -> str:
        return f"{self.meeting}/{self._rounds}/{rank}"

    # The value is never empty: not every store can tell an empty value from a missing one.
    def _set(self, key: str, value: bytes) -> None:
        self._store.set(key, b"=" + value)

    def _find(self, key: str) -> bytes:
        return self._store.find(key)[1:]

    def _wait(self, pause: _Pause) -> None:
        if time.monotonic() > self._deadline:
            raise TimeoutError(
                f"rank {self.rank} of {self.size} timed out after {self._timeout:g} s waiting for rank "
                f"{', '.join(map(str, self._absent()))} in the first exchange of this process group"
            )
        pause()


class _Pause:
    """A pause that is longer each time."""

    def __init__(self) -> None:
        self._seconds = 1e-4

    def __call__(self) -> None:
        time.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, _LONGEST_PAUSE)
