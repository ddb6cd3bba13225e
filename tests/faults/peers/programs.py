"""The programs that all libraries run: what each rank does, and how its answer is to be understood.

A program gets a group and calls ``ready`` when the guard may strike. It returns a function that says whether the result
is right, or raises. Rank 1 is the one at fault.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Ready = Callable[[], None]
COUNT = 50_000


@dataclass(frozen=True)
class Program:
    """``strike``: what the guard does to rank 1. ``due``: whether success is no right answer. ``names``: what a clear
    error says. ``judged``: the ranks that must know. ``environment``: "tiny" has a /dev/shm of 64 KiB."""

    run: Callable[[Any, Ready], bool]
    ranks: int = 3
    strike: int | None = None
    due: bool = True
    names: str = r"rank 1\b"
    judged: tuple[int, ...] = (0, 2)
    tiny: bool = False
    twin: bool = False


def equal_parts(g: Any, count: int = COUNT) -> bool:
    send, recv = np.full(g.size * count, float(g.rank)), np.full(g.size * count, -1.0)
    g.alltoallv(send, [count] * g.size, recv, [count] * g.size)
    return bool((recv.reshape(g.size, count) == np.arange(g.size)[:, None]).all())


def for_ever(g: Any, ready: Ready) -> bool:
    equal_parts(g)
    ready()
    while True:
        equal_parts(g)


def ends_by_exception(g: Any, ready: Ready) -> bool:
    g.barrier()
    if g.rank == 1:
        raise KeyError("a mistake")
    return equal_parts(g)


def counts_differ(sent: int, expected: int) -> Callable[[Any, Ready], bool]:
    """Rank 1 sends so many elements to rank 0, which expects another number."""

    def program(g: Any, ready: Ready) -> bool:
        to, from_ = [4] * g.size, [4] * g.size
        if g.rank == 1:
            to[0] = sent
        if g.rank == 0:
            from_[1] = expected
        recv = np.full(sum(from_), -1.0)
        g.alltoallv(np.full(sum(to), float(g.rank)), to, recv, from_)
        return False

    return program


def dtypes_differ(mine: str, theirs: str) -> Callable[[Any, Ready], bool]:
    def program(g: Any, ready: Ready) -> bool:
        dtype = mine if g.rank == 1 else theirs
        counts = [4] * g.size
        g.alltoallv(np.ones(4 * g.size, dtype), counts, np.zeros(4 * g.size, dtype), counts)
        return False

    return program


def order_differs(g: Any, ready: Ready) -> bool:
    if g.rank == 1:
        g.allgather(np.ones(4), np.zeros(4 * g.size))
        return False
    return equal_parts(g, 4) and False


def negative_count(g: Any, ready: Ready) -> bool:
    counts = [4] * g.size
    send = np.ones(4 * g.size)
    g.alltoallv(send, [-4, *[4] * (g.size - 2), 8] if g.rank == 1 else counts, np.zeros(4 * g.size), counts)
    return False


def leaves_the_buffer(g: Any, ready: Ready) -> bool:
    counts, displs = [4] * g.size, [4 * i for i in range(g.size)]
    wild = [1 << 28, *displs[1:]] if g.rank == 1 else displs
    g.alltoallv(np.ones(4 * g.size), counts, np.zeros(4 * g.size), counts, displs, wild)
    return False


def receives_overlap(g: Any, ready: Ready) -> bool:
    counts, displs = [4] * g.size, [4 * i for i in range(g.size)]
    g.alltoallv(
        np.ones(4 * g.size), counts, np.zeros(4 * g.size), counts, displs, [0] * g.size if g.rank == 1 else displs
    )
    return False


def plain(g: Any, ready: Ready) -> bool:
    return all(equal_parts(g, count) for count in (1, 1000, COUNT))


def fork_after_init(g: Any, ready: Ready) -> bool:
    """The child must get an error, and the parent the right result. The child's exit code says what it got."""
    equal_parts(g)
    code = 0
    if g.rank == 1:
        pid = os.fork()
        if pid == 0:
            signal.alarm(3)
            try:
                equal_parts(g, 4)
            except BaseException:
                os._exit(0)
            os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    right = plain(g, ready)
    if code != 0:
        raise RuntimeError("the child hangs" if code == -signal.SIGALRM else f"the child ended with {code}")
    return right


def interrupted(g: Any, ready: Ready) -> bool:
    """The guard counts from the signal; rank 0 and 2 come late."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    g.barrier()
    if g.rank == 1:
        ready()
    else:
        time.sleep(2.5)
    return equal_parts(g)


def dropped(g: Any, ready: Ready) -> bool:
    good = True
    for i in range(50):
        recv = np.full(g.size * COUNT, -1.0)
        counts = [COUNT] * g.size
        wait = g.start(np.full(g.size * COUNT, float(g.rank + i)), counts, recv, counts)
        gc.collect()
        garbage = [np.full(g.size * COUNT, -7.0) for _ in range(3)]
        wait()
        del garbage
        good &= bool((recv.reshape(g.size, COUNT) == np.arange(g.size)[:, None] + i).all())
    return good


PROGRAMS: dict[str, Program] = {
    "killed": Program(for_ever, strike=signal.SIGKILL),
    "ends by an exception": Program(ends_by_exception),
    "stopped": Program(for_ever, strike=signal.SIGSTOP),
    "sends less than expected": Program(counts_differ(2, 4), 2, judged=(0,)),
    "sends more than expected": Program(counts_differ(4, 2), 2, judged=(0,)),
    "dtype of the same size": Program(dtypes_differ("i4", "f4"), 2, judged=(0, 1)),
    "dtype of another size": Program(dtypes_differ("f8", "f4"), 2, judged=(0, 1)),
    "order of calls": Program(order_differs, 2, judged=(0, 1)),
    "negative count": Program(negative_count, 2, judged=(0, 1)),
    "displacement outside the buffer": Program(leaves_the_buffer, 2, judged=(0, 1)),
    "receive ranges overlap": Program(receives_overlap, 2, judged=(0, 1)),
    "/dev/shm of 64 KiB": Program(plain, due=False, judged=(0, 1, 2), tiny=True),
    "fork after init": Program(fork_after_init, due=False, judged=(0, 1, 2)),
    "Ctrl-C in a blocked call": Program(interrupted, strike=signal.SIGINT, names="", judged=(1,)),
    "two ranks claim one number": Program(plain, names=r"rank 1\b.*(twice|already)", judged=(0, 1), twin=True),
    "tensors dropped in flight": Program(dropped, due=False, judged=(0, 1, 2)),
}
INTERRUPT_SECONDS = 0.1
