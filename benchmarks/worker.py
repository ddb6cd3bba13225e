"""One rank of one contender: ``worker.py BACKEND``, started by the contender's own launcher.

It joins its group, connects to the driver and then executes the driver's commands, one JSON object per line. Between
commands it is blocked in a read of that socket, whatever the contender is, so that nobody polls while another contender
is measured.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from backends import Backend, make_backend
from cases import Case
from pattern import Pattern, Words

BARRIER_LIMIT_S = 60.0
MIN_ITERATIONS, MAX_ITERATIONS = 5, 480
LATE, LAST = 0, 2  # what barrier_meet() returns; 1 is nothing special


class Harness:
    """What a rank has of ``barrier.cc``, which belongs to no contender."""

    def __init__(self, rank: int, size: int) -> None:
        self._library = ctypes.CDLL(os.environ["A2A_BENCH_BARRIER_LIBRARY"])
        self._library.barrier_join.restype = ctypes.c_void_p
        self._library.barrier_join.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_double]
        self._library.barrier_meet.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self._library.turn.restype = ctypes.c_uint64
        path = os.environ["A2A_BENCH_BARRIER_FILE"]
        member = self._library.barrier_join(path.encode(), rank, size, BARRIER_LIMIT_S)
        if not member:
            raise OSError(f"rank {rank} cannot map the barrier {path}")
        self._member = ctypes.c_void_p(member)
        self.meet: Callable[[bool], int] = partial(self._library.barrier_meet, self._member)
        """Returns LATE after BARRIER_LIMIT_S, and on all ranks LAST when rank 0 calls it with True."""

    def turn(self, received: Words, sent: Words) -> Callable[[], int]:
        """A call that reads all that was received, adds 1 to every word sent, and returns the sum of what it read."""
        places = [(ctypes.c_void_p(words.ctypes.data), ctypes.c_size_t(words.size)) for words in (received, sent)]
        return partial(self._library.turn, *places[0], *places[1])


def measure(backend: Backend, harness: Harness, case: Case, budget_s: float) -> dict[str, Any]:
    """Only the collective call stands between the two readings of the clock. Before it all ranks meet; after it the
    rank reads its whole output and rewrites its whole input. Goes on until ``budget_s`` have passed, for 5 to 480
    iterations, however busy the machine is. The first sixth of them warms up."""
    pattern = Pattern(case, backend.rank)
    send = backend.allocate(case.send_words(backend.rank))
    recv = backend.allocate(case.recv_words(backend.rank))
    pattern.fill(send)
    recv.fill(1)
    meet, turn = harness.meet, harness.turn(recv, send)
    call = backend.prepare(case, send, recv)
    clock = time.perf_counter_ns
    deadline = clock() + int(budget_s * 1e9)
    starts, ends, wrong = [], [], 0
    turn()
    for i in range(1, MAX_ITERATIONS + 1):
        met = meet(i == MAX_ITERATIONS or (i >= MIN_ITERATIONS and clock() > deadline))
        if met == LATE:
            raise TimeoutError(f"a peer of rank {backend.rank} did not come to {case} within {BARRIER_LIMIT_S:g} s")
        start = clock()
        call()
        end = clock()
        if turn() != pattern.checksum(i) or i == 1 or met == LAST:
            wrong += pattern.wrong_words(recv, i)
        starts.append(start)
        ends.append(end)
        if met == LAST:
            break
    meet(False)
    warmup = max(2, len(starts) // 6)
    return {"starts": starts[warmup:], "ends": ends[warmup:], "wrong": wrong}


def serve(backend: Backend, harness: Harness, driver: socket.socket) -> None:
    """Executes commands until "quit" or the end of the driver."""

    def send(message: dict[str, Any]) -> None:
        driver.sendall(json.dumps(message).encode() + b"\n")

    send({"rank": backend.rank, "size": backend.size, "pid": os.getpid(), "version": backend.version})
    for line in driver.makefile("r"):
        command = json.loads(line)
        if command["do"] == "quit":
            return
        try:
            case = Case(command["op"], backend.size, command["size"])
            send(measure(backend, harness, case, command["budget_s"]))
        except Exception as error:
            send({"error": f"rank {backend.rank}: {error!r}\n{traceback.format_exc(limit=-3)}"})
    # The driver is gone. Leaving in good order removes what the library shares, but blocks if a peer is gone as well.
    signal.alarm(10)


def main() -> None:
    faulthandler.register(signal.SIGUSR1)  # The driver asks where a rank is that does not answer.
    with make_backend(sys.argv[1]) as backend:
        driver = socket.socket(socket.AF_UNIX)
        driver.connect("\0" + os.environ["A2A_BENCH_SOCKET"])
        serve(backend, Harness(backend.rank, backend.size), driver)


if __name__ == "__main__":
    main()
