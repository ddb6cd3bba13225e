"""Several threads of a rank on one communicator: one at a time, or a clear error."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import a2a

CALLS: dict[str, Callable[[a2a.Communicator], Any]] = {
    "alltoall": lambda comm: comm.alltoall(np.zeros(2), np.zeros(2)),
    "async": lambda comm: comm.alltoall(np.zeros(2), np.zeros(2), async_op=True),
    "barrier": lambda comm: comm.barrier(),
    "split": lambda comm: comm.split(0),
    "views": lambda comm: comm.allgather_views(comm.empty(2)),
    "plan": lambda comm: comm.plan_alltoall(np.zeros(2), np.zeros(2)).run(np.zeros(2), np.zeros(2)),
}


def call_twice_at_once(comm: a2a.Communicator, first: str, second: str) -> str:
    """Rank 0 makes both calls, the second while the first waits for rank 1."""
    if comm.rank == 1:
        time.sleep(0.4)
        CALLS[first](comm)
        with pytest.raises(a2a.MismatchError) as refused:
            comm.barrier()
    else:
        thread = threading.Thread(target=CALLS[first], args=(comm,))
        thread.start()
        time.sleep(0.2)
        with pytest.raises(a2a.InvalidArgumentError) as refused:
            CALLS[second](comm)
        thread.join()
    received = np.zeros(2)
    comm.alltoall(np.full(2, comm.rank + 1.0), received)  # nobody is out of step
    assert received.tolist() == [1, 2]
    return str(refused.value)


@pytest.mark.parametrize("second", CALLS)
def test_a_call_while_another_thread_is_inside_one(second: str, run_ranks: Callable[..., list[Any]]) -> None:
    here, there = run_ranks(2, call_twice_at_once, "alltoall", second)
    assert "another thread is inside a call of this communicator" in here and here.startswith("rank 0: ")
    assert "rank 0 does not take part, its arguments were refused there: rank 0: " in there


def wait_for_the_first(comm: a2a.Communicator) -> list[float]:
    """Waiting is for any thread at any time, and starting goes on beside it."""
    received = np.zeros((3, 2))
    works = [comm.alltoall(np.full(2, float(step)), received[step], async_op=True) for step in range(2)]
    threads = [threading.Thread(target=work.wait) for work in works]
    for thread in threads:
        thread.start()
    comm.alltoall(np.full(2, 2.0), received[2])
    for thread in threads:
        thread.join()
    return received.sum(axis=1).tolist()


def test_waiting_is_no_call(run_ranks: Callable[..., list[Any]]) -> None:
    assert run_ranks(2, wait_for_the_first) == [[0, 2, 4]] * 2


def call_in_a_signal_handler(comm: a2a.Communicator) -> bool:
    import signal

    if comm.rank == 1:
        time.sleep(0.5)
    else:
        signal.signal(signal.SIGALRM, lambda *_: comm.barrier())
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    comm.alltoall(np.zeros(2), np.zeros(2))
    if comm.rank == 1:
        comm.barrier()
    comm.barrier()
    return True


def test_a_signal_handler_may_call(run_ranks: Callable[..., list[Any]]) -> None:
    assert run_ranks(2, call_in_a_signal_handler) == [True, True]


DROPPED = """
import sys, threading, time
from a2a import _core

def wait(bootstrap):
    try:
        _core.connect(0, 2, bootstrap=bootstrap, timeout=60)
    except _core.PeerLostError as error:
        print(error)

here, there = _core.thread_bootstraps(2)
thread = threading.Thread(target=wait, args=[here])
thread.start()
time.sleep(0.3)
sys.setswitchinterval(10)  # this thread keeps the interpreter's lock, for which the other one soon waits
until = time.monotonic() + 0.2
while time.monotonic() < until:
    pass
del there
thread.join()
"""


def test_a_bootstrap_may_be_dropped_while_another_rank_waits() -> None:
    """The waiting rank looks for signals, for which it needs the interpreter's lock."""
    done = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "rank 1 left before all threads had met\n"
