"""What ranks do in test_mpi.py and test_tcp_network.py: ``python mpi_ranks.py NAME [ARGUMENT...]``."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np

import a2a
from a2a import _core, testing


def say(*words: object) -> None:
    """One line, whole, whoever else writes."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def exchange(comm: a2a.Communicator, elems: int, timeout: float | None = None) -> None:
    """Uneven: rank r and rank p exchange more, the larger (r + p) % 3 is."""
    counts = [elems * ((comm.rank + peer) % 3) for peer in range(comm.size)]
    send = np.concatenate([np.full(c, 1000 * comm.rank + p, np.int32) for p, c in enumerate(counts)])
    recv = np.full(sum(counts), -1, np.int32)
    comm.alltoallv(send, counts, recv, counts, timeout=timeout)
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


def repeats(seed: str) -> None:
    """A few exchanges again and again, in any order, one or two at a time, some with a count that is wrong for a pair.
    The arrays live no longer than a call."""
    comm = a2a.init(timeout=30)
    n, random = comm.size, np.random.default_rng(int(seed))
    shapes = [random.integers(0, most, (n, n)) for most in (3, 3_000, 5_000, 9_000, 60_000, 120_000)]

    def launch(counts: np.ndarray, offset: int, async_op: bool) -> tuple[Any, np.ndarray, np.ndarray]:
        values = np.arange(n * n).reshape(n, n) + offset
        send = np.repeat(values[comm.rank], counts[comm.rank]).astype(np.int32)
        expected = np.repeat(values[:, comm.rank], counts[:, comm.rank]).astype(np.int32)
        recv = np.full_like(expected, -1)
        sent, awaited = counts[comm.rank].tolist(), counts[:, comm.rank].tolist()
        return comm.alltoallv(send, sent, recv, awaited, async_op=async_op), recv, expected

    for turn in range(150):
        chosen = [shapes[i] for i in random.integers(0, len(shapes), random.integers(1, 3))]
        source, target = random.permutation(n)[:2]
        wrong = random.random() < 0.15
        flights = []
        for i, counts in enumerate(chosen):
            mine = counts.copy()
            concerned = wrong and i == 0 and comm.rank in (source, target)
            if wrong and i == 0 and comm.rank == target:
                mine[source, target] += 1
            alone = len(chosen) == 1
            if alone and concerned:
                text = outcome(lambda mine=mine, turn=turn: launch(mine, turn, False))
                assert f"rank {source} sends" in text and f"to rank {target}" in text, text
            else:
                flights.append((concerned, *launch(mine, turn + i, not alone)))
        for concerned, work, recv, expected in flights:
            text = "no error" if work is None else outcome(work.wait)
            assert ("MismatchError" in text) == concerned, text
            assert concerned or np.array_equal(recv, expected), turn
    comm.close()
    say("rank", comm.rank, "is fine")


def plans() -> None:
    """Three sizes, and two runs of each at once."""
    comm = a2a.init(timeout=30)
    for elems in SIZES.values():
        counts = [elems] * comm.size
        sends = [np.repeat(np.arange(comm.size) + 100 * comm.rank + add, elems) for add in (0, 50)]
        recvs = [np.zeros_like(send) for send in sends]
        plan = comm.plan_alltoallv(sends[0], counts, recvs[0], counts)
        for work in [plan.start(send, recv) for send, recv in zip(sends, recvs, strict=True)]:
            work.wait()
        for add, recv in zip((0, 50), recvs, strict=True):
            assert np.array_equal(recv, np.repeat(100 * np.arange(comm.size) + comm.rank + add, elems))
    comm.close()
    say("rank", comm.rank, "of", comm.size, "is fine")


def names_mpi() -> None:
    comm = a2a.init(timeout=30)
    exchange(comm, 1000)
    say(_core.library_of("mpi"))
    comm.close()


def named_for_torch(hosts: str) -> None:
    """With the variables that programs set for torch."""
    launch = a2a.launch.Launch.from_environ()
    os.environ |= {"RANK": str(launch.rank), "WORLD_SIZE": str(launch.size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    works(hosts)


def huge(size: str) -> None:
    """So many bytes for a pair."""
    comm = a2a.init(timeout=100)
    n = int(size)
    buffer = np.zeros(n, np.uint8)
    buffer[:: 1 << 20] = np.arange(len(buffer[:: 1 << 20])) % 251
    buffer[-1] = 7
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


# Elements for a pair: with the facts, through relays or by the rank itself; from memory to memory.
SIZES = {"few": 1, "some": 2000, "many": 100_000}


def disagreements() -> None:
    comm = a2a.init(timeout=30)
    n, last = comm.size, comm.size - 1

    def count(elems: int) -> None:
        send, recv = np.zeros(n * elems, np.int32), np.zeros(n * elems + 1, np.int32)
        expected = [elems + int(comm.rank == 0 and peer == last) for peer in range(n)]
        comm.alltoallv(send, [elems] * n, recv, expected)

    def dtype(elems: int) -> None:
        kind = np.int32 if comm.rank else np.float32
        comm.alltoallv(np.zeros(n * elems, kind), [elems] * n, np.zeros(n * elems, kind), [elems] * n)

    def refused(elems: int) -> None:
        counts = [elems if comm.rank else -1] * n
        comm.alltoallv(np.zeros(n * elems), counts, np.zeros(n * elems), [elems] * n)

    def operation(elems: int) -> None:
        if comm.rank == 0:
            comm.allgather(np.zeros(elems), np.zeros(n * elems))
        else:
            comm.alltoall(np.zeros(n * elems), np.zeros(n * elems))

    for call in (count, dtype, refused, operation):
        for size, elems in SIZES.items():
            say(call.__name__, size, comm.rank, outcome(lambda call=call, elems=elems: call(elems)))
            exchange(comm, 100)
    comm.close()


def missing() -> None:
    """The last rank does not come."""
    comm = a2a.init(timeout=30)
    exchange(comm, 10)
    begin = time.monotonic()
    text = "stayed away"
    if comm.rank == comm.size - 1:
        time.sleep(3)
    else:
        text = outcome(lambda: exchange(comm, 10, 2))
    say(comm.rank, f"{time.monotonic() - begin:.2f}", text)
    if comm.rank == comm.size - 1:
        say("afterwards", outcome(lambda: exchange(comm, 10)))
    leave_together()


def killed(timeout: str = "30") -> None:
    """The last rank is killed while the others wait for it."""
    comm = a2a.init(timeout=float(timeout))
    exchange(comm, 10)
    say("ready")
    begin = time.monotonic()
    if comm.rank == comm.size - 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    text = outcome(lambda: exchange(comm, 50_000))
    say(comm.rank, f"{time.monotonic() - begin:.2f}", text)
    leave_together()


def ends(how: str, who: str, others: str) -> None:
    """That rank ends in one way or another, while the others send it what it will never receive; they catch their
    errors or do not."""
    comm = a2a.init(timeout=20)
    send, recv = np.zeros((comm.size, 10_000)), np.zeros((comm.size, 10_000))
    comm.alltoall(send, recv)
    if comm.rank == int(who) % comm.size:
        time.sleep(0.5)  # what breaks the communicator ends what others have not finished, too
        if how == "raises":
            raise KeyError("a mistake")
        if how in ("kill", "term"):
            os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGTERM)
        if how == "_exit":
            os._exit(4)
        sys.exit(3 if how == "exits" else 0)
    try:
        comm.alltoall(send, recv)  # what was agreed on, and so at once
    except a2a.Error:
        if others == "raise":
            raise


def is_struck(who: str, milliseconds: str, seed: str) -> None:
    """Exchanges of any sizes, every byte of which is looked at, until that rank is killed at a moment of its own."""
    comm = a2a.init(timeout=20)
    random = np.random.default_rng(int(seed))
    exchange(comm, 10)
    say("ready")
    if comm.rank == int(who):
        threading.Timer(int(milliseconds) / 1000, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        while True:
            exchange(comm, int(random.choice([1, 100, 3000, 20_000, 100_000])))
    except AssertionError:
        say("wrong bytes on rank", comm.rank)
    except a2a.PeerLostError:
        say("lost")


def killed_with_the_job() -> None:
    """The last rank is killed, and the others would live on for a minute."""
    comm = a2a.init(timeout=30)
    exchange(comm, 10)
    say("ready")
    if comm.rank == comm.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    say("still there")


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


def interrupted_after(comm: a2a.Communicator) -> float:
    sent = 0.0

    def strike() -> None:
        nonlocal sent
        sent = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Timer(0.3, strike).start()
    try:
        exchange(comm, 10)
    except KeyboardInterrupt:
        return time.monotonic() - sent
    raise AssertionError("the others are not due yet")


def interrupted() -> None:
    """Rank 0 in three exchanges that the others come to later; how soon each call ended, in the median."""
    comm = a2a.init(timeout=30)
    exchange(comm, 10)
    if comm.rank == 0:
        say("interrupted after", f"{statistics.median(interrupted_after(comm) for _ in range(3)):.3f}")
    else:
        time.sleep(2)
        for _ in range(3):
            exchange(comm, 10)
    comm.barrier()
    say("rank", comm.rank, "goes on")


def abandoned() -> None:
    """Rank 0 gives up while the network has its memory and rank 1, which expects it, is stopped. Then that one goes
    on."""
    comm = a2a.init(timeout=30)
    rank = comm.rank
    other = [int(pid) for pid in comm.allgather_bytes(str(os.getpid()).encode())][1 - rank]
    send, recv = np.ones(4_000_000 * (1 - rank)), np.zeros(4_000_000 * rank)
    tensors = [weakref.ref(send), weakref.ref(recv)]
    before = _core.host_facts(comm)["messages"]
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    work = comm.alltoallv(send, [0, len(send)], recv, [len(recv), 0], async_op=True)
    if rank == 1:
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            work.done()
        os.kill(os.getpid(), signal.SIGSTOP)
        say("the other one:", outcome(work.wait))
        del work, send, recv, comm
    else:
        wait_until_stopped(other)
        os.kill(other, signal.SIGCONT)  # for the facts, which are there, and to tell its own
        wait_until_stopped(other)
        while _core.host_facts(comm)["messages"] < before + 2 and not work.done():
            pass
        say("handed over", _core.host_facts(comm)["messages"] - before - 1)
        comm.abort("enough")
        del work, send, recv
        say("after abort()", held(tensors))
        del comm
        say("without the communicator", held(tensors))
        os.kill(other, signal.SIGCONT)
    deadline = time.monotonic() + 10
    while held(tensors) and time.monotonic() < deadline:
        a2a.init(0, 1)  # when any communicator ends, what is held is looked after
    say("in the end", held(tensors))


def wait_until_stopped(pid: int) -> None:
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)


def held(tensors: list[weakref.ref[np.ndarray]]) -> int:
    """How many are."""
    return sum(tensor() is not None for tensor in tensors)


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


def awaits_receivers() -> None:
    """Exchanges that repeat an earlier one, small and large. Who receives much says when it is ready. A rank that is
    late, as ranks are on a busy machine, is told more."""
    comm = a2a.init(timeout=30)
    for elems in (20_000, 100_000):
        sent = []
        for _ in range(6):
            exchange(comm, elems)
            sent.append(_core.host_facts(comm)["messages"])
        say(comm.rank, elems, min(after - before for before, after in itertools.pairwise(sent)))


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


def groups() -> None:
    """Communicators of some ranks only, the second of which may get the handle that the first one had."""
    from mpi4py import MPI

    os.environ["A2A_HOSTS"] = "a,b"
    world = MPI.COMM_WORLD
    me = world.Get_rank()
    pair = world.Split(me // 2, me)
    for _ in range(1 + me // 2):  # not equally often
        comm = a2a.init(bootstrap=pair, timeout=10)
        exchange(comm, 10)
        comm.close()
    pair.Free()
    world.Barrier()
    pair = world.Split(int(me in (1, 2)), -me)
    comm = a2a.init(bootstrap=pair, timeout=10)
    heard = np.zeros(2, np.int32)
    comm.alltoall(np.full(2, me, np.int32), heard)
    assert heard.tolist() == pair.allgather(me), (heard, pair.allgather(me))
    os.environ["A2A_HOSTS"] = "a,a,b,b"
    exchange(a2a.init(bootstrap=world, timeout=10), 10)
    say("rank", me, "is fine")


def long_messages() -> None:
    """Each rank says something else each time, from nothing to megabytes."""
    meeting = _core.mpi_bootstrap()
    rank, n = meeting.rank, meeting.size
    sizes = (0, 1, 10_000, 300_000, 4_000_000)
    for turn in range(3 * len(sizes)):
        said = [bytes([65 + r]) * (sizes[(turn + r) % len(sizes)]) for r in range(n)]
        assert meeting.allgather(said[rank]) == said, turn
    say("rank", rank, "is fine")


def comes_late() -> None:
    """The last rank comes when the others have given up twice, and finds them at their third attempt."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.Get_rank() == world.Get_size() - 1:
        time.sleep(3)
    else:
        begin = time.monotonic()
        text = outcome(lambda: a2a.init(bootstrap=world, timeout=0.5))
        say("gave up after", f"{time.monotonic() - begin:.1f}", text)
        due = time.monotonic() + 0.5
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            a2a.init(bootstrap=world, timeout=30)
        except KeyboardInterrupt:
            say("interrupted after", f"{time.monotonic() - due:.1f}")
    exchange(a2a.init(bootstrap=world, timeout=30), 1000)
    say("rank", world.Get_rank(), "is fine")


def bad_handles() -> None:
    """The program's error handlers, which would end it, are what they were afterwards."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    me, size = world.Get_rank(), world.Get_size()
    half = world.Split(me % 2, me)
    inter = half.Create_intercomm(0, world, 1 - me % 2)
    for comm in (world, MPI.COMM_SELF):
        comm.Set_errhandler(MPI.ERRORS_ARE_FATAL)
    handles = {"inter": inter.py2f(), "null": MPI.COMM_NULL.py2f(), "nonsense": 999_999}
    for name, handle in handles.items():
        say(name, outcome(lambda handle=handle: _core.mpi_bootstrap(handle)).replace("\n", " "))
    say("comm", outcome(lambda: a2a.init(me, size, bootstrap=inter)).replace("\n", " "))
    for comm in (world, MPI.COMM_SELF):
        assert comm.Get_errhandler() == MPI.ERRORS_ARE_FATAL
    exchange(a2a.init(bootstrap=world, timeout=30), 10)
    say("rank", me, "is fine")


def finalised() -> None:
    """The program finalises MPI before it lets go of its communicators."""
    from mpi4py import MPI

    comm, closed, dropped = (a2a.init(bootstrap=MPI.COMM_WORLD, timeout=20) for _ in range(3))
    for each in (comm, closed, dropped):
        exchange(each, 1000)
    MPI.Finalize()
    say("operation", outcome(lambda: exchange(comm, 10)))
    say("init", outcome(a2a.init))
    closed.close()
    del dropped
    say("rank", comm.rank, "is fine")


def finalised_early() -> None:
    """The last rank finalises MPI while the others wait for it."""
    from mpi4py import MPI

    comm = a2a.init(bootstrap=MPI.COMM_WORLD, timeout=20)
    exchange(comm, 10)
    if comm.rank == comm.size - 1:
        time.sleep(0.3)  # what breaks the communicator ends what others have not finished, too
    else:
        begin = time.monotonic()
        text = outcome(lambda: exchange(comm, 10))
        say(comm.rank, f"{time.monotonic() - begin:.1f}", text)
    MPI.Finalize()


def fortran_handle() -> None:
    """A communicator that mpi4py has no part in, in the ABI of the library that A2A_MPI_LIBRARY names."""
    import ctypes

    mpi = ctypes.CDLL(os.environ["A2A_MPI_LIBRARY"])
    standard, mpich = "mpi_abi" in mpi._name, "libmpi.so.12" in mpi._name
    handle_type = ctypes.c_int if mpich else ctypes.c_void_p
    if standard or mpich:
        world = handle_type(0x101 if standard else 0x44000000)
    else:
        world = handle_type(ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")))
    level = ctypes.c_int(4096 if standard else 3)
    assert mpi.MPI_Init_thread(None, None, level, ctypes.byref(ctypes.c_int())) == 0
    rank, new = ctypes.c_int(), handle_type()
    assert mpi.MPI_Comm_rank(world, ctypes.byref(rank)) == 0
    assert mpi.MPI_Comm_split(world, 0, -rank.value, ctypes.byref(new)) == 0
    handle = (mpi.MPI_Comm_toint if standard else mpi.MPI_Comm_c2f)(new)
    for nonsense in (0, 256, 999_999):
        text = outcome(lambda nonsense=nonsense: a2a.init(bootstrap=nonsense))
        assert (nonsense == 0 and not standard and not mpich) or text.startswith("InvalidArgumentError: "), text
    text = "fine"
    try:
        comm = a2a.init(bootstrap=handle, timeout=30)
        assert comm.rank == comm.size - 1 - rank.value
        exchange(comm, 1000)
        comm.close()
    except a2a.UnsupportedError as error:
        text = f"refused: {error}"
    assert mpi.MPI_Finalize() == 0
    say("rank", rank.value, "is", text)


assert testing  # the oracle's module has to be importable where only NumPy is

if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
