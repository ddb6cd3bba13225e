"""What ranks do in test_nccl.py. Rank r has device r."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reduction_ranks
from cudart import (
    Array,
    Produced,
    Stream,
    copy,
    framework,
    held_up,
    held_up_for,
    jax,
    nccl,
    new_communicator,
    require,
    use,
)

import a2a
from a2a import testing

Comm = a2a.Communicator


def uneven(comm: Comm, dtype: str, how: str) -> None:
    """Every rank sends r + p rows to rank p, with gaps between the parts on both sides."""
    n, rank = comm.size, comm.rank
    counts = np.add.outer(np.arange(n), np.arange(n))
    give, take = counts[rank].tolist(), counts[:, rank].tolist()
    displs = [np.concatenate([[1], np.cumsum(np.add(part, 2))[:-1] + 1]).tolist() for part in (give, take)]
    rows = [sum(part) + 2 * n + 1 for part in (give, take)]
    sent = [(np.arange(sum(counts[r]) + 2 * n + 1) * 7 + r).astype(dtype)[:, None].repeat(3, 1) for r in range(n)]
    send, recv = Array(sent[rank], rank), Array(np.full((rows[1], 3), 99, dtype), rank)
    arguments = (send.tensor, give, recv.tensor, take, displs[0], displs[1])
    if how == "async":
        stream = Stream()
        comm.alltoallv(*arguments, async_op=True).order_before(stream)
        stream.synchronize()
    elif how == "plan":
        plan = comm.plan_alltoallv(*arguments)
        for _ in range(3):
            plan.run(send.tensor, recv.tensor, stream=Stream())
    else:
        comm.alltoallv(*arguments)
    wanted = np.full((rows[1], 3), 99, dtype)
    for peer in range(n):
        start = 1 + int(np.sum(np.add(counts[peer][:rank], 2)))
        wanted[displs[1][peer] : displs[1][peer] + take[peer]] = sent[peer][start : start + take[peer]]
    assert np.array_equal(recv.read(), wanted)
    assert np.array_equal(send.read(), sent[rank])


def other_calls(comm: Comm) -> None:
    n, rank = comm.size, comm.rank
    inputs = [np.arange(n * 2, dtype=np.float32) + 100 * r for r in range(n)]
    send, recv = Array(inputs[rank], rank), Array(np.zeros(n * 2, np.float32), rank)
    comm.alltoall(send.tensor, recv.tensor)
    assert np.array_equal(recv.read(), np.concatenate([x.reshape(n, 2)[rank] for x in inputs]))
    every = Array(np.zeros((n, n * 2), np.float32), rank)
    comm.allgather(send.tensor, every.tensor)
    assert np.array_equal(every.read(), np.stack(inputs))
    parts = [Array(np.full(p + 1, rank, np.int16), rank) for p in range(n)]
    outs = [Array(np.zeros(rank + 1, np.int16), rank) for _ in range(n)]
    work = comm.alltoall_list([x.tensor for x in parts], [x.tensor for x in outs], async_op=True)
    del parts  # the communicator holds what is in flight
    work.wait()
    assert all((out.read() == p).all() for p, out in enumerate(outs))
    counts = np.arange(2 * n) % 3  # two experts on each rank
    x = Array(np.arange(counts.sum() * 2, dtype=np.int32).reshape(-1, 2) + 1000 * rank, rank)
    mine = np.tile(counts.reshape(n, 2)[rank], n)
    out = Array(np.zeros((int(mine.sum()), 2), np.int32), rank)
    comm.global_scatter(x.tensor, counts, mine, out=out.tensor)
    back = Array(np.zeros(x.shape, np.int32), rank)
    comm.global_gather(out.tensor, counts, mine, out=back.tensor)
    assert np.array_equal(back.read(), x.read())
    xs = [np.arange(counts.sum() * 2, dtype=np.int32).reshape(-1, 2) + 1000 * r for r in range(n)]
    assert np.array_equal(out.read(), testing.global_scatter(xs, [counts] * n)[rank])


def reduction(comm: Comm, name: str, *args: Any) -> Any:
    return getattr(reduction_ranks, name)(comm, partial(Array, device=comm.rank), *args)


def old_gpu(comm: Comm) -> None:
    """One that NCCL folds no float8 on."""
    made: Any = comm.split(0)
    os.environ["A2A_FAKE_CAPABILITY"] = "8"
    reduction(made, "every_operation", "float8_e5m2", 3, "NCCL", [])
    del os.environ["A2A_FAKE_CAPABILITY"]
    made.close()


def logged(log: Path) -> list[str]:
    """The functions of the doubles that this process has called."""
    mine = (line for line in log.read_text().splitlines() if line.startswith(f"pid={os.getpid()} "))
    return [line.partition("call=")[2].split()[0] for line in mine]


def reduction_calls(comm: Comm, log: Path) -> dict[str, list[str]]:
    """What the double's log has of this rank for each operation."""
    n, rank = comm.size, comm.rank
    send, recv = (Array(np.zeros(6 * n, np.float32), rank) for _ in range(2))
    counts = [5 + (peer == 0) - (peer == 1) for peer in range(n)]
    steps: dict[str, Callable[[], object]] = {
        "allreduce": lambda: comm.allreduce(send.tensor, recv.tensor),
        "reduce": lambda: comm.reduce(send.tensor, recv.tensor if rank == 0 else None),
        "reduce_scatter": lambda: comm.reduce_scatter(send.tensor, recv.slice(0, (6,))),
        "reduce_scatterv": lambda: comm.reduce_scatterv(
            send.slice(0, (5 * n,)), counts, recv.slice(0, (counts[rank],))
        ),
        "broadcast": lambda: comm.broadcast(send.tensor),
    }
    found = {}
    for name, step in steps.items():
        for _ in range(20):  # past what ranks compare, and what is made once
            step()
        recv.read()
        before = len(logged(log))
        step()
        found[name] = logged(log)[before:]
        recv.read()
    return found


def calls(comm: Comm, log: Path) -> dict[str, list[str]]:
    """What the double's log has of this rank for an uneven exchange, in the order of the calls."""
    n, rank = comm.size, comm.rank
    give = [(3 * rank + peer) % 7 + 1 for peer in range(n)]
    take = [(3 * peer + rank) % 7 + 1 for peer in range(n)]
    send, recv = (Array(np.zeros((sum(part), 4), np.float32), rank) for part in (give, take))
    arguments = (send.tensor, give, recv.tensor, take)
    plan = comm.plan_alltoallv(*arguments)
    mostly_own = [1 + (peer == rank) for peer in range(n)]
    steps: dict[str, Callable[[], object]] = {
        "call": lambda: comm.alltoallv(*arguments),
        "plan": lambda: plan.run(send.tensor, recv.tensor),
        "async": lambda: comm.alltoallv(*arguments, async_op=True, stream=0),
        "own": lambda: comm.alltoallv(send.tensor, mostly_own, recv.tensor, mostly_own),
    }

    found = {}
    for name, step in steps.items():
        for _ in range(20):  # past what ranks compare, and what is made once
            step()
        recv.read()
        before = len(logged(log))
        work = step()
        found[name] = logged(log)[before:]
        recv.read()
        del work
    return found


def refusals(comm: Comm) -> list[str]:
    """What rank 1 gets for tensors in the wrong place, and the others for a good call."""
    made: Any = comm.split(0)
    n, rank = made.size, made.rank
    made.connect(f"cuda:{rank}")
    here, there = Array(np.zeros(n), rank), Array(np.zeros(n), 7)
    good = Array(np.zeros(n), rank)
    told = []
    for bad in ((here.tensor, there.tensor), (np.zeros(n), here.tensor), (there.tensor, Array(np.zeros(n), 7).tensor)):
        try:
            made.alltoall(*(bad if rank == 1 else (here.tensor, good.tensor)))
        except a2a.Error as error:
            told.append(f"{type(error).__name__}: {error}")
    made.alltoall(here.tensor, good.tensor)
    made.close()
    return told


def adopted(comm: Comm) -> None:
    """Over a communicator of the program's own, which is there before and after."""
    n, rank = comm.size, comm.rank
    use(rank)
    own, size = new_communicator(comm), ctypes.c_int()
    made: Any = comm.split(0)
    wrong: Any
    for wrong in (True, False, None, "", 0, -1, 2**64, 1.5):
        with pytest.raises(a2a.InvalidArgumentError, match="pass the address of a communicator"):
            made.adopt(wrong)
    made.adopt(own)
    made.adopt(own)  # again is fine
    send, recv = Array(np.full(n, rank), rank), Array(np.zeros(n, np.int64), rank)
    for _ in range(3):
        made.alltoall(send.tensor, recv.tensor)
        assert recv.read().tolist() == list(range(n))
    with pytest.raises(a2a.InvalidArgumentError, match="before the first operation on it"):
        made.adopt(own + 1)
    made.close()
    require(nccl().ncclCommCount(ctypes.c_void_p(own), ctypes.byref(size)))
    assert size.value == n
    require(nccl().ncclCommDestroy(ctypes.c_void_p(own)))


def new_jax_arrays(comm: Comm) -> None:
    """Calls that allocate their output write into a JAX array that nobody has seen, and return when it is full: JAX
    has no stream that could wait."""
    n, rank = comm.size, comm.rank
    use(rank)
    counts = [[source + target + 1 for target in range(n)] for source in range(n)]
    sent = [np.arange(3.0 * sum(row)).reshape(-1, 3) + 100 * source for source, row in enumerate(counts)]
    take = [counts[source][rank] for source in range(n)]
    wanted = np.concatenate([np.split(sent[source], np.cumsum(counts[source]))[rank] for source in range(n)])
    with jax() as array:
        x = array(Array(sent[rank], rank))
        for call in ("exchange", "scatter", "async"):
            stream = Stream()
            with held_up_for(0.2, rank, stream) as seconds:
                if call == "exchange":
                    got, received = comm.exchange(x, counts[rank], stream=stream)
                    assert received.tolist() == take
                else:
                    got = comm.global_scatter(x, counts[rank], take, async_op=call == "async", stream=stream)
                if call == "async":
                    got = got.result
                assert seconds() > 0.15
            assert type(got) is type(x) and got.devices() == x.devices()
            np.testing.assert_array_equal(got.array.read(), wanted)
        back = comm.global_gather(got, counts[rank], take)
        np.testing.assert_array_equal(back.array.read(), sent[rank])
        with pytest.raises(a2a.InvalidArgumentError):
            made: Any = comm.split(0)
            made.alltoallv(x, counts[rank], got, take)  # seen by now


def streams(comm: Comm) -> None:
    use(comm.rank)
    stream = Stream()
    send, recv = Array(np.full(comm.size, comm.rank), comm.rank), Array(np.zeros(comm.size, np.int64), comm.rank)
    for given in (None, 0, 1, stream, stream.cuda_stream):
        comm.alltoall(send.tensor, recv.tensor, stream=given)
        assert recv.read().tolist() == list(range(comm.size))


def pending_work(comm: Comm, name: str, how: str) -> None:
    """What a framework has enqueued on its stream comes before an exchange of its tensors, on both sides."""
    n, rank = comm.size, comm.rank
    use(rank)
    stream = Stream()
    made, stale = Array(np.full(n, rank + 1, np.uint8), rank), Array(np.full(n, 99, np.uint8), rank)
    send, recv = Array(np.zeros(n, np.uint8), rank), Array(np.zeros(n, np.uint8), rank)
    comm.connect(f"cuda:{rank}")
    with framework(name, stream) as tensor:
        sent, received = tensor(send), tensor(recv)
        plan = comm.plan_alltoall(sent, received)
        with held_up(rank, stream.cuda_stream):
            copy(made.address, send.address, n, stream.cuda_stream)
            copy(stale.address, recv.address, n, stream.cuda_stream)
            if how == "plan":
                work = plan.start(sent, received)
            else:
                given = Stream() if how == "stream" else None
                work = comm.alltoall(sent, received, stream=given, async_op=how == "async")
            time.sleep(0.1)  # in which an exchange that waits for nothing is over
            assert work is None or not work.done()
    if work is not None:
        work.wait()
    assert recv.read().tolist() == [peer + 1 for peer in range(n)]


def told(comm: Comm) -> None:
    """The stream that a framework with ``__dlpack__`` alone is told: where the exchange runs, or what it waits for."""
    n, rank = comm.size, comm.rank
    use(rank)
    own, theirs = Stream(), Stream()
    send, recv = (Array(np.zeros(n, np.uint8), rank) for _ in range(2))

    def told_by(call: Any) -> list[Any]:
        sent, received = Produced(send, theirs), Produced(recv, theirs)
        call(sent, received)
        return sent.told + received.told

    assert told_by(comm.alltoall) == [1, 1]
    for given, handle in ((0, 1), (1, 1), (2, 2), (own, own.cuda_stream), (own.cuda_stream, own.cuda_stream)):
        assert told_by(lambda x, y, given=given: comm.alltoall(x, y, stream=given)) == [handle] * 2
    assert told_by(lambda x, y: comm.alltoall(x, y, async_op=True).wait()) == [1, 1]
    with framework("exchange API", own) as tensor:  # the sent tensor's stream is the exchange's
        assert told_by(lambda x, y: comm.alltoall(tensor(send), y)) == [own.cuda_stream]
    assert recv.read().tolist() == [0] * n


# ---- what ends while nobody waits ------------------------------------------------------------------------------------


def past_comparison(comm: Comm, how: str) -> tuple[Array, Callable[..., object]]:
    """A call that compares nothing any more, and so returns once it is enqueued; and what it receives."""
    n, rank = comm.size, comm.rank
    send, recv = Array(np.full((n, 2), rank), rank), Array(np.full((n, 2), -1), rank)
    call: Callable[..., object]
    if how == "plan":
        plan = comm.plan_alltoallv(send.tensor, [1] * n, recv.tensor, [1] * n)
        call = partial(plan.run, send.tensor, recv.tensor)
    else:
        call = partial(comm.alltoallv, send.tensor, [1] * n, recv.tensor, [1] * n)
    for _ in range(20):
        call()
    assert recv.read()[:, 0].tolist() == list(range(n))
    return recv, call


def failure(call: Callable[..., object]) -> str:
    try:
        call()
    except a2a.Error as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def aborted(comm: Comm, how: str, asks: bool) -> list[object]:
    """Rank 0 aborts. What the others' `broken` says, if they ask, and their next call."""
    made: Any = comm.split(0)
    _, call = past_comparison(made, how)
    comm.barrier()
    if comm.rank == 0:
        made.abort("enough")
    comm.barrier()
    time.sleep(0.2)  # it has come to other hosts, too
    return [not asks or made.broken, failure(call), made.broken]


def killed(comm: Comm, how: str, asks: bool) -> list[object]:
    _, call = past_comparison(comm, how)
    comm.barrier()
    if comm.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3)
    return [not asks or comm.broken, failure(call), comm.broken]


def late(comm: Comm, how: str) -> list[object]:
    """The others' deadline passes before rank 0 comes: nobody waits for it but their streams."""
    made: Any = comm.split(0)
    recv, call = past_comparison(made, how)
    comm.barrier()
    if comm.rank > 0:
        call(timeout=0.5)
        recv.read()
        assert made.broken
    comm.barrier()
    return [True, failure(call), made.broken]


def generations(comm: Comm) -> None:
    """The endpoints of these ranks meet three times: each group has a communicator of NCCL of its own, and the former
    one is aborted."""
    endpoint = a2a.Endpoint()
    handles = [text.decode() for text in comm.allgather_bytes(endpoint.handle.encode())]
    former = None
    for generation in range(3):
        group = endpoint.connect(handles, generation, timeout=30)
        sent = np.repeat(np.arange(group.size) + 10.0 * group.rank, 3)
        send, recv = Array(sent, comm.rank), Array(np.zeros_like(sent), comm.rank)
        group.alltoall(send.tensor, recv.tensor)
        assert np.array_equal(recv.read(), np.repeat(10.0 * np.arange(group.size) + group.rank, 3))
        if former is not None:
            with pytest.raises(a2a.AbortedError, match=f"generation {generation - 1} is over"):
                former.alltoall(send.tensor, recv.tensor)
        former = group
        group.barrier()  # what is on the device when a rank connects again is aborted
