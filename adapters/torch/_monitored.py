"""A barrier that names the ranks that do not come."""

from __future__ import annotations

import time
from typing import Any

import a2a

__all__ = ["BarrierError", "over_communicator", "over_store", "seconds_of"]

_PAUSE = 0.001  # seconds between two reads of the store


class BarrierError(a2a.TimeoutError, RuntimeError):
    """Ranks did not come to a monitored barrier in time."""


def seconds_of(timeout: Any, default: float) -> float:
    """Return the seconds of a timedelta, or of a number, which torch accepts here, too."""
    if timeout is None:
        return default
    return float(timeout.total_seconds() if hasattr(timeout, "total_seconds") else timeout)


def over_store(store: Any, rank: int, size: int, number: int, seconds: float, wait_all_ranks: bool) -> None:
    """The ``number``-th monitored barrier of the ranks that share the store, with torch's words and its order: rank 0
    checks the ranks one by one, and tells the ranks that came the result. It does not use the group or break it."""
    key = f"monitored barrier/{number}"
    if rank != 0:
        store.set(f"{key}/{rank}", "here")
        _wait_for_rank_0(store, key, rank, seconds)
        return
    deadline, missing, words = time.monotonic() + seconds, [], ""
    for peer in range(1, size):
        if time.monotonic() > deadline and not wait_all_ranks:
            words = f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {_milliseconds(seconds)}"
            break
        while not store.check([f"{key}/{peer}"]) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        if not store.check([f"{key}/{peer}"]):
            missing.append(peer)
            if not wait_all_ranks:
                break
    words = words or _failure(missing, seconds)
    store.set(f"{key}/over", words or "fine")
    if words:
        raise BarrierError(words)


def over_communicator(comm: Any, seconds: float) -> None:
    """The same where there is no store: the communicator's own barrier, whose error names the ranks. A failure breaks
    the communicator."""
    try:
        comm.barrier(timeout=seconds)
    except a2a.TimeoutError as error:
        raise BarrierError(f"ranks failed to pass monitoredBarrier in {_milliseconds(seconds)}: {error}") from None


def _wait_for_rank_0(store: Any, key: str, rank: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not store.check([f"{key}/over"]):
        if time.monotonic() > deadline:
            words = f"no answer in a timeout of {_milliseconds(seconds)}"
            break
        time.sleep(_PAUSE)
    else:
        words = store.get(f"{key}/over").decode()
    if words != "fine":
        raise BarrierError(
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
            f"rank 0. Please check rank 0 logs for faulty rank. It says: {words}"
        )


def _failure(missing: list[int], seconds: float) -> str:
    if not missing:
        return ""
    ranks = f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
    return f"[Rank 0]: {ranks} failed to pass monitoredBarrier in {_milliseconds(seconds)}"


def _milliseconds(seconds: float) -> str:
    return f"{round(1000 * seconds)} ms"
