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

import numpy as np
from backends import Backend, make_backend
from cases import Case
from pattern import Pattern

BARRIER_LIMIT_S = 60.0


def join_barrier(rank: int, size: int) -> Callable[[], int]:
    """A barrier that belongs to no contender; returns 1 when all ranks have met and 0 after BARRIER_LIMIT_S."""
    library = ctypes.CDLL(os.environ["A2A_BENCH_BARRIER_LIBRARY"])
    library.barrier_join.restype = ctypes.c_void_p
    library.barrier_join.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_double]
    library.barrier_meet.argtypes = [ctypes.c_void_p]
    path = os.environ["A2A_BENCH_BARRIER_FILE"]
    member = library.barrier_join(path.encode(), rank, size, BARRIER_LIMIT_S)
    if not member:
        raise OSError(f"rank {rank} cannot map the barrier {path}")
    return partial(library.barrier_meet, ctypes.c_void_p(member))


def measure(backend: Backend, meet: Callable[[], int], case: Case, iterations: int, warmup: int) -> dict[str, Any]:
    """Only the collective call stands between the two readings of the clock. Before it the whole input is rewritten and
    all ranks meet; after it the whole output is read."""
    pattern = Pattern(case, backend.rank)
    send = backend.allocate(case.send_words(backend.rank))
    recv = backend.allocate(case.recv_words(backend.rank))
    pattern.fill(send)
    recv.fill(1)
    call = backend.prepare(case, send, recv) if backend.delivers else meet
    clock = time.perf_counter_ns
    starts, ends, wrong = [], [], 0
    for i in range(1, warmup + iterations + 1):
        np.add(send, 1, out=send)
        if not meet():
            raise TimeoutError(f"a peer of rank {backend.rank} did not come to {case} within {BARRIER_LIMIT_S:g} s")
        start = clock()
        call()
        end = clock()
        total = int(recv.sum())
        doubtful = i in (1, warmup + iterations) or total != pattern.checksum(i)
        if doubtful and backend.delivers:
            wrong += pattern.wrong_words(recv, i)
        if i > warmup:
            starts.append(start)
            ends.append(end)
    meet()
    return {"starts": starts, "ends": ends, "wrong": wrong}


def serve(backend: Backend, meet: Callable[[], int], driver: socket.socket) -> None:
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
            send(measure(backend, meet, case, command["iterations"], command["warmup"]))
        except Exception as error:
            send({"error": f"rank {backend.rank}: {error!r}\n{traceback.format_exc(limit=-3)}"})
    # The driver is gone. Leaving in good order removes what the library shares, but blocks if a peer is gone as well.
    signal.alarm(10)


def main() -> None:
    faulthandler.register(signal.SIGUSR1)  # The driver asks where a rank is that does not answer.
    with make_backend(sys.argv[1]) as backend:
        driver = socket.socket(socket.AF_UNIX)
        driver.connect("\0" + os.environ["A2A_BENCH_SOCKET"])
        serve(backend, join_barrier(backend.rank, backend.size), driver)


if __name__ == "__main__":
    main()
