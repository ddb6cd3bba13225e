"""What ranks do in test_nccl.py. Rank r has device r."""

from __future__ import annotations

from typing import Any

import numpy as np
from nvidia import Array, Stream, use

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


def streams(comm: Comm) -> None:
    use(comm.rank)
    stream = Stream()
    send, recv = Array(np.full(comm.size, comm.rank), comm.rank), Array(np.zeros(comm.size, np.int64), comm.rank)
    for given in (None, 0, 1, stream, stream.cuda_stream):
        comm.alltoall(send.tensor, recv.tensor, stream=given)
        assert recv.read().tolist() == list(range(comm.size))
