"""A barrier that names the ranks that do not come."""

from __future__ import annotations

import time
from typing import Any

import a2a

__all__ = ["BarrierError", "StoreBarrier", "over_communicator", "seconds_of"]

_PAUSE = 0.001  # seconds between two reads of the store


class BarrierError(a2a.TimeoutError, RuntimeError):
    """Ranks did not come to a monitored barrier in time."""


def seconds_of(timeout: Any, default: float) -> float:
    """Return the seconds of a timedelta, or of a number, which torch accepts here, too."""
    if timeout is None:
        return default
    return float(timeout.total_seconds() if hasattr(timeout, "total_seconds") else timeout)


class StoreBarrier:
    """The monitored barriers of the ranks that share a store, with torch's words and its order: rank 0 checks the ranks
    one by one, and tells those that came the result. They do not use the group or break it.

    A rank has one key, with the number of its barrier. Rank 0's answers have one each, until all ranks have come to a
    later barrier."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._number = 0
        self._answered = 1  # the first answer that is kept

    def wait(self, seconds: float, wait_all_ranks: bool) -> None:
        """Raises BarrierError."""
        self._number += 1
        if self._rank == 0:
            self._watch(seconds, wait_all_ranks)
        else:
            self._store.set(_here(self._rank), str(self._number))
            self._hear(seconds)

    def close(self) -> None:
        """Remove what is in the store. For one rank, after all have passed their last barrier."""
        for key in [*map(_here, range(1, self._size)), *map(_answer, range(self._answered, self._number + 1))]:
            self._store.delete_key(key)

    def _watch(self, seconds: float, wait_all_ranks: bool) -> None:
        deadline, missing, words = time.monotonic() + seconds, [], ""
        for peer in range(1, self._size):
            if time.monotonic() > deadline and not wait_all_ranks:
                words = f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {_milliseconds(seconds)}"
                break
            while not self._has_come(peer) and time.monotonic() < deadline:
                time.sleep(_PAUSE)
            if not self._has_come(peer):
                missing.append(peer)
                if not wait_all_ranks:
                    break
        words = words or _failure(missing, seconds)
        if not words:
            for number in range(self._answered, self._number):
                self._store.delete_key(_answer(number))
            self._answered = self._number
        self._store.set(_answer(self._number), words or "fine")
        if words:
            raise BarrierError(words)

    def _has_come(self, peer: int) -> bool:
        return self._store.check([_here(peer)]) and int(self._store.get(_here(peer))) >= self._number

    def _hear(self, seconds: float) -> None:
        deadline, key = time.monotonic() + seconds, _answer(self._number)
        while not self._store.check([key]):
            if time.monotonic() > deadline:
                words = f"no answer in a timeout of {_milliseconds(seconds)}"
                break
            time.sleep(_PAUSE)
        else:
            words = self._store.get(key).decode()
        if words != "fine":
            raise BarrierError(
                f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting for "
                f"send/recv from rank 0. Please check rank 0 logs for faulty rank. It says: {words}"
            )


def _here(rank: int) -> str:
    return f"monitored barrier/rank {rank}"


def _answer(number: int) -> str:
    return f"monitored barrier/answer {number}"


def over_communicator(comm: Any, seconds: float) -> None:
    """A monitored barrier where there is no store: the communicator's own barrier, whose error names the ranks. A
    failure breaks the communicator."""
    try:
        comm.barrier(timeout=seconds)
    except a2a.TimeoutError as error:
        raise BarrierError(f"ranks failed to pass monitoredBarrier in {_milliseconds(seconds)}: {error}") from None


def _failure(missing: list[int], seconds: float) -> str:
    if not missing:
        return ""
    ranks = f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
    return f"[Rank 0]: {ranks} failed to pass monitoredBarrier in {_milliseconds(seconds)}"


def _milliseconds(seconds: float) -> str:
    return f"{round(1000 * seconds)} ms"
