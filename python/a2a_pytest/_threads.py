"""Runs a test function on ranks that are threads of one process."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from a2a._core import Communicator, connect, thread_bootstraps
from a2a.testing.ranks.world import PATIENCE

__all__ = ["Ended", "run_threads"]

# As for processes: how long ranks may still fail by themselves after the first, and how long they may take to notice.
_OWN_SECONDS = 0.25
_NOTICE_SECONDS = 3.0


@dataclass
class Ended:
    rank: int
    time: float
    error: BaseException


class _Late(AssertionError):
    """Of a rank that goes on after another one has failed."""


def run_threads(
    function: Callable[[Communicator], Any], n: int, limit: float, started: Callable[[dict[int, int]], None]
) -> list[Ended]:
    """Call ``function(comm)`` in ``n`` threads. Returns how those ended that raised, the first one first. ``started``
    gets the ranks by the numbers of their threads."""
    bootstraps = dict(enumerate(thread_bootstraps(n)))
    comms: dict[int, Communicator] = {}
    ended: dict[int, Ended] = {}

    def body(rank: int) -> None:
        try:
            comms[rank] = connect(rank, n, bootstrap=bootstraps[rank], timeout=limit + PATIENCE)
            function(comms[rank])
            comms[rank].close(timeout=5 if not ended else 0)
        except BaseException as error:
            ended[rank] = Ended(rank, time.monotonic(), error)
        bootstraps.pop(rank, None)  # ranks that wait for this one to meet get an error

    threads = [threading.Thread(target=body, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(n)]
    for thread in threads:
        thread.start()
    started({thread.ident or 0: rank for rank, thread in enumerate(threads)})
    while any(thread.is_alive() for thread in threads) and not ended:
        _join(threads, 0.01)
    if ended:
        _join(threads, _OWN_SECONDS)
        for rank in list(ended):
            if rank in comms and not comms[rank].closed:
                comms[rank].abort(f"rank {rank} failed: {ended[rank].error!r}")
        _join(threads, _NOTICE_SECONDS)
    for rank, thread in enumerate(threads):
        if thread.is_alive():
            frame = sys._current_frames().get(thread.ident or 0)
            where = "".join(traceback.format_stack(frame)[-3:]) if frame is not None else ""
            late = _Late(f"rank {rank} did not come to an end after another rank had failed\n{where}")
            ended[rank] = Ended(rank, time.monotonic(), late)
    return sorted(ended.values(), key=lambda one: one.time)


def _join(threads: list[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
