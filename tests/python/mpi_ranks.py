"""What ranks do in test_mpi.py and test_tcp_network.py: ``python mpi_ranks.py NAME [ARGUMENT...]``."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

import a2a
from a2a import _core, testing


def say(*words: object) -> None:
    """One line, whole, whoever else writes."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def exchange(comm: a2a.Communicator, elems: int) -> None:
    """Uneven: rank r and rank p exchange more, the larger (r + p) % 3 is."""
    counts = [elems * ((comm.rank + peer) % 3) for peer in range(comm.size)]
    send = np.concatenate([np.full(c, 1000 * comm.rank + p, np.int32) for p, c in enumerate(counts)])
    recv = np.full(sum(counts), -1, np.int32)
    comm.alltoallv(send, counts, recv, counts)
    expected = np.concatenate([np.full(c, 1000 * p + comm.rank, np.int32) for p, c in enumerate(counts)])
    assert np.array_equal(recv, expected), elems


def works(hosts: str) -> None:
    comm = a2a.init(timeout=30)
    assert _core.host_facts(comm)["hosts"] == int(hosts)
    for elems in (0, 1, 3, 200, 1000, 20_000, 300_000):
        exchange(comm, elems)
    rows = np.arange(comm.size * 5, dtype=np.float16).reshape(comm.size, 5) + comm.rank
    recv, counts = comm.exchange(rows, [1] * comm.size)
    assert list(counts) == [1] * comm.size
    assert np.array_equal(np.asarray(recv)[:, 0], 5 * comm.rank + np.arange(comm.size))
    half = comm.split(comm.rank % 2, comm.rank)
    assert half is not None
    exchange(half, 5000)
    half.close()
    say("rank", comm.rank, "of", comm.size, "is fine")


def huge() -> None:
    """More bytes for a pair than one call of MPI counts."""
    comm = a2a.init(timeout=100)
    n = (1 << 30) + 12345
    buffer = np.zeros(n, np.uint8)
    buffer[:: 1 << 20] = np.arange(len(buffer[:: 1 << 20])) % 251
    other = 1 - comm.rank
    counts = [n if peer == other else 0 for peer in range(2)]
    recv = np.zeros(n, np.uint8)
    comm.alltoallv(buffer, counts, recv, counts)
    assert np.array_equal(recv, buffer)
    say("rank", comm.rank, "is fine")


def leave_together() -> None:
    """Without MPI_Finalize, which MPI's launchers take for a crash: they end whoever is left."""
    time.sleep(2)
    os._exit(0)


def outcome(call: Any) -> str:
    try:
        call()
    except a2a.Error as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def disagreements() -> None:
    comm = a2a.init(timeout=30)
    n, last = comm.size, comm.size - 1
    ones = [1] * n

    def count(elems: int) -> None:
        send, recv = np.zeros(n * elems, np.int32), np.zeros(n * elems + 1, np.int32)
        expected = [elems + int(comm.rank == 0 and peer == last) for peer in range(n)]
        comm.alltoallv(send, [elems] * n, recv, expected)

    def dtype() -> None:
        kind = np.int32 if comm.rank else np.float32
        comm.alltoallv(np.zeros(n, kind), ones, np.zeros(n, kind), ones)

    def refused() -> None:
        comm.alltoallv(np.zeros(n), ones if comm.rank else [-1] * n, np.zeros(n), ones)

    def operation() -> None:
        if comm.rank == 0:
            comm.allgather(np.zeros(1), np.zeros(n))
        else:
            comm.alltoall(np.zeros(n), np.zeros(n))

    for name, call in (
        ("few", lambda: count(1)),
        ("some", lambda: count(2000)),
        ("many", lambda: count(100_000)),
        ("dtype", dtype),
        ("refused", refused),
        ("operation", operation),
    ):
        say(name, comm.rank, outcome(call))
        exchange(comm, 100)
    comm.close()


def missing() -> None:
    """The last rank does not come."""
    comm = a2a.init(timeout=2)
    exchange(comm, 10)
    begin = time.monotonic()
    text = "stayed away"
    if comm.rank == comm.size - 1:
        time.sleep(3)
    else:
        text = outcome(lambda: exchange(comm, 10))
    say(comm.rank, f"{time.monotonic() - begin:.2f}", text)
    if comm.rank == comm.size - 1:
        say("afterwards", outcome(lambda: exchange(comm, 10)))
    leave_together()


def killed() -> None:
    """The last rank is killed while the others wait for it; it has a companion on its host."""
    comm = a2a.init(timeout=30)
    exchange(comm, 10)
    begin = time.monotonic()
    if comm.rank == comm.size - 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    text = outcome(lambda: exchange(comm, 50_000))
    say(comm.rank, f"{time.monotonic() - begin:.2f}", text)
    leave_together()


def unplugged() -> None:
    """The last rank's host loses its network while the others wait for it."""
    comm = a2a.init(timeout=20)
    exchange(comm, 10)
    if comm.rank == comm.size - 1:
        say("ready")
        time.sleep(60)
    time.sleep(0.5)
    counts = [50_000] * comm.size
    send, recv = np.zeros(sum(counts)), np.zeros(sum(counts))
    say(comm.rank, outcome(lambda: comm.alltoallv(send, counts, recv, counts, timeout=2)))
    leave_together()


def leaves() -> None:
    """The last rank lets go of its communicator."""
    comm = a2a.init(timeout=20)
    exchange(comm, 10)
    if comm.rank == comm.size - 1:
        time.sleep(0.3)  # what breaks the communicator ends what others have not finished, too
        del comm
        time.sleep(1)
    else:
        say(comm.rank, outcome(lambda: exchange(comm, 10)))


def interrupted() -> None:
    comm = a2a.init(timeout=30)
    exchange(comm, 10)
    if comm.rank == 0:
        due = time.monotonic() + 0.5
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            exchange(comm, 10)
        except KeyboardInterrupt:
            say("interrupted after", f"{time.monotonic() - due:.3f}")
    else:
        time.sleep(1)
    exchange(comm, 10) if comm.rank else None
    comm.barrier()
    say("rank", comm.rank, "goes on")


def abandoned() -> None:
    """Rank 0 gives up while MPI has its memory, drops everything, and writes where it was."""
    comm = a2a.init(timeout=30)
    n = comm.size
    big = 4_000_000
    if comm.rank == 0:
        send, recv = np.ones(n * big, np.int32), np.zeros(n * big, np.int32)
        comm.alltoallv(send, [big] * n, recv, [big] * n, async_op=True)
        time.sleep(0.2)
        comm.abort("enough")
        del send, recv, comm
        for _ in range(20):
            np.ones(n * big, np.int32)  # what was given back too early would be used again
        say("rank 0 gave up")
    else:
        time.sleep(0.1)
        send, recv = np.ones(n * big, np.int32), np.zeros(n * big, np.int32)
        say(comm.rank, outcome(lambda: comm.alltoallv(send, [big] * n, recv, [big] * n)))
    leave_together()


def adopted() -> None:
    """A communicator of mpi4py's, which the program goes on using, and whose MPI is not ours to finalise."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    reversed_ = world.Split(0, -world.Get_rank())
    comm = a2a.init(bootstrap=reversed_, timeout=30)
    assert comm.rank == world.Get_size() - 1 - world.Get_rank()
    exchange(comm, 1000)
    request = world.irecv(source=(world.Get_rank() + 1) % world.Get_size(), tag=0)
    world.send("theirs", dest=(world.Get_rank() - 1) % world.Get_size(), tag=0)
    exchange(comm, 100_000)
    assert request.wait() == "theirs"
    comm.close()
    world.Barrier()
    say("rank", comm.rank, "is fine")


def without_threads() -> None:
    import mpi4py

    mpi4py.rc.thread_level = "funneled"
    from mpi4py import MPI

    say(outcome(lambda: a2a.init(bootstrap=MPI.COMM_WORLD)))


def counts_messages() -> None:
    comm = a2a.init(timeout=30)
    send, recv = np.zeros(comm.size), np.zeros(comm.size)
    before = _core.host_facts(comm)["messages"]
    comm.alltoall(send, recv)
    say("messages", _core.host_facts(comm)["messages"] - before)
    comm.close()


def forked() -> None:
    comm = a2a.init(timeout=30)
    exchange(comm, 10)
    child = os.fork()
    if child == 0:
        text = outcome(lambda: exchange(comm, 10)) + " / " + outcome(a2a.init)
        say("child", text)
        sys.exit(0)
    os.waitpid(child, 0)
    exchange(comm, 10)
    comm.close()
    say("parent", comm.rank, "is fine")


def forks() -> None:
    """What a child inherits is the parent's."""
    comm = a2a.init(timeout=30)
    exchange(comm, 10)
    child = os.fork()
    if child == 0:
        say("child", outcome(lambda: exchange(comm, 10)).partition(":")[0])
        del comm
        os._exit(0)
    exchange(comm, 1000)
    os.waitpid(child, 0)
    exchange(comm, 100_000)
    comm.close()
    say("parent", comm.rank, "is fine")


def atb() -> None:
    from a2a import atb

    launch = a2a.launch.Launch.from_environ()
    counts = [(launch.rank + peer) % 3 for peer in range(launch.size)]
    displs = list(np.cumsum(counts) - counts)
    param = atb.AllToAllVParam(
        rank=launch.rank,
        rank_size=launch.size,
        send_counts=counts,
        sdispls=displs,
        recv_counts=counts,
        rdispls=displs,
        backend="mpi",
    )
    x = np.concatenate([np.full(c, 100 * launch.rank + p, np.float32) for p, c in enumerate(counts)])
    (y,) = atb.AllToAllVOperation(param, timeout=30).forward([x[None]])
    expected = np.concatenate([np.full(c, 100 * p + launch.rank, np.float32) for p, c in enumerate(counts)])
    assert np.array_equal(np.asarray(y), expected[None])
    say("rank", launch.rank, "is fine")


assert testing  # the oracle's module has to be importable where only NumPy is

if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
