"""Ranks started from a program: ``a2a.spawn``, and ``run``, which also returns how each rank ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ._core import BackendError, Communicator, InvalidArgumentError, connect, thread_bootstraps
from ._outcomes import Outcome, call_rank, first_failure, unfinished

if TYPE_CHECKING:
    import threading

    from typing_extensions import TypeVarTuple, Unpack

    Ts = TypeVarTuple("Ts")
T = TypeVar("T")

__all__ = ["Outcome", "RankTraceback", "run", "spawn"]


class RankTraceback(Exception):
    """The ``__cause__`` of an exception that spawn() raises: the rank, and its own traceback as text."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(rank, text)
        self.rank = rank

    def __str__(self) -> str:
        return f"rank {self.rank}:\n{self.args[1].rstrip()}"


def spawn(
    fn: Callable[[Communicator, Unpack[Ts]], T],
    n: int,
    *args: Unpack[Ts],
    threads: bool = False,
    timeout: float | None = None,
) -> list[T]:
    """Run ``fn(comm, *args)`` on ``n`` ranks of this host and return their results in rank order.

    Ranks are fresh processes, so ``fn``, ``args`` and the results are pickled, ``fn`` has to be importable, and a
    program calls spawn() under ``if __name__ == "__main__":``. A function of a notebook or of a prompt cannot be
    imported: cloudpickle carries it, if it is installed (extra ``notebook``). In ranks ``a2a.init()`` works too.
    With ``threads=True`` they are threads of this process and nothing is pickled. When a rank fails, the others are
    ended and its exception is raised here, with a RankTraceback as its cause; a rank that dies gives PeerLostError.
    After ``timeout`` seconds all ranks are ended and TimeoutError is raised. No process is left when spawn()
    returns or raises; a thread cannot be ended before it next uses its communicator."""
    outcomes = run(fn, n, *args, threads=threads, timeout=timeout)
    failure = first_failure(outcomes)
    if failure is None:
        return [outcome.value for outcome in outcomes]
    assert failure.error is not None
    raise failure.error from (RankTraceback(failure.rank, failure.traceback) if failure.traceback else None)


def run(
    fn: Callable[[Communicator, Unpack[Ts]], Any],
    n: int,
    *args: Unpack[Ts],
    threads: bool = False,
    timeout: float | None = None,
    keep_going: bool = False,
) -> list[Outcome]:
    """Like spawn(), but return how each rank ended. With ``keep_going`` a failed rank does not end the others, as tests
    of failures need; otherwise the list has only the ranks that ended by themselves."""
    if not callable(fn):
        raise InvalidArgumentError(f"spawn: fn={fn!r} is not a function; pass spawn(fn, n, *args)")
    if not isinstance(n, int) or n < 1:
        raise InvalidArgumentError(f"spawn: n={n!r} is not a number of ranks")
    deadline = time.monotonic() + timeout if timeout is not None else float("inf")
    if threads:
        return _run_threads(fn, n, args, deadline, keep_going)
    from ._processes import run_processes  # here, so that only programs that start ranks import it

    return run_processes(fn, n, args, deadline, keep_going)


def _run_threads(
    fn: Callable[..., Any], n: int, args: tuple[Any, ...], deadline: float, keep_going: bool
) -> list[Outcome]:
    import functools
    import queue
    import threading
    import traceback

    ended: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    comms: dict[int, Communicator] = {}

    def body(rank: int) -> None:
        outcome = Outcome(rank)
        try:
            timeout = min(600, deadline - time.monotonic() + 1)
            comms[rank] = connect(rank, n, bootstrap=bootstraps[rank], timeout=timeout)
            outcome.value = call_rank(fn, args, comms[rank])
        except BaseException as error:
            outcome.error, outcome.traceback, outcome.time = error, traceback.format_exc(), time.monotonic()
        bootstraps.pop(rank, None)
        ended.put(outcome)

    # Ranks that wait for a rank whose bootstrap is gone get an error.
    bootstraps = dict(enumerate(thread_bootstraps(n)))
    ranks: list[threading.Thread] = []
    outcomes: list[Outcome] = []
    try:
        for rank in range(n):
            ranks.append(_start_thread(functools.partial(body, rank), rank, n))
        while len(outcomes) < n:
            outcomes.append(ended.get(timeout=min(max(deadline - time.monotonic(), 0), threading.TIMEOUT_MAX)))
            if outcomes[-1].error is not None and not keep_going:
                break
    except queue.Empty:
        raise unfinished(n, outcomes) from None
    finally:
        for rank in range(len(ranks), n):
            bootstraps.pop(rank, None)
        if len(outcomes) < n:
            for comm in list(comms.values()):
                comm.abort("another rank of spawn() failed, or its time is over")
        leave = time.monotonic() + 5
        for thread in ranks:
            thread.join(timeout=max(leave - time.monotonic(), 0))
    while not ended.empty():
        outcomes.append(ended.get())
    return sorted(outcomes, key=lambda outcome: outcome.rank)


def _start_thread(body: Callable[[], None], rank: int, n: int) -> threading.Thread:
    import threading

    thread = threading.Thread(target=body, name=f"rank {rank}", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise BackendError(f"spawn: no thread for rank {rank} of {n}: {error}; {_limits_on_threads()}") from error
    return thread


def _limits_on_threads() -> str:
    import resource
    from pathlib import Path

    limits = {"RLIMIT_NPROC (ulimit -u)": resource.RLIMIT_NPROC, "RLIMIT_AS (ulimit -v)": resource.RLIMIT_AS}
    values = {name: resource.getrlimit(limit)[0] for name, limit in limits.items()}
    found = [f"{name} is {'unlimited' if value == resource.RLIM_INFINITY else value}" for name, value in values.items()]
    try:
        group = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
        found.append(f"pids.max of the control group is {Path(f'/sys/fs/cgroup{group}/pids.max').read_text().strip()}")
    except OSError:
        pass  # another version of control groups, or the root, which has no limit
    return ", ".join(found)
