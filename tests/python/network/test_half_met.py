"""A rank that fails at the very end of a meeting that has succeeded for the others."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from forked import apart, run, values

import a2a
from a2a import _core

pytestmark = pytest.mark.timeout(60)


class Failing:
    """A bootstrap whose last exchange raises after it has been made."""

    def __init__(self, inner: Any, last: int = -1) -> None:
        self.inner, self.last, self.rounds = inner, last, 0

    def allgather(self, mine: bytes) -> list[bytes]:
        strings: list[bytes] = self.inner.allgather(mine)
        self.rounds += 1
        if self.rounds == self.last:
            raise OSError("lost at the end")
        return strings


def together(bootstraps: list[Any], timeout: float = 5) -> list[Any]:
    """What init() gives or raises on each rank, which are threads."""
    results: list[Any] = [None] * len(bootstraps)

    def body(rank: int) -> None:
        try:
            results[rank] = a2a.init(rank, len(bootstraps), bootstrap=bootstraps[rank], timeout=timeout)
        except (a2a.Error, OSError) as error:
            results[rank] = error

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(len(bootstraps))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def gather(comms: list[Any], first: int) -> list[Any]:
    results: list[Any] = [None] * len(comms)

    def body(i: int) -> None:
        received = np.full(comms[i].size, -1)
        try:
            comms[i].allgather(np.array([first + comms[i].rank]), received)
            results[i] = received.tolist()
        except a2a.Error as error:
            results[i] = error

    threads = [threading.Thread(target=body, args=(i,)) for i in range(len(comms))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def meet_by_halves(_: int) -> list[str]:
    counted = Failing(None)
    inner = _core.thread_bootstraps(3)
    counted.inner = inner[0]
    assert all(isinstance(comm, a2a.Communicator) for comm in together([counted, *inner[1:]]))
    inner = _core.thread_bootstraps(3)
    first = together([Failing(inner[0], counted.rounds), *inner[1:]], timeout=1)
    assert isinstance(first[0], OSError) and all(isinstance(comm, a2a.Communicator) for comm in first[1:]), first
    # Rank 0's next communicators, in which it says something else.
    for start in (100, 200, 300):
        assert gather(together(_core.thread_bootstraps(3)), start) == [[start, start + 1, start + 2]] * 3
    return [type(result).__name__ for result in gather(first[1:], 10)]


@apart
def test_the_others_do_not_take_its_next_words_for_this_communicator() -> None:
    assert values(run(1, meet_by_halves)) == [["PeerLostError", "PeerLostError"]]
