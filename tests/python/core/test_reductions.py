"""Reductions and rooted operations against the oracle, between real processes and threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from folds import COMPLEX, FLOATS, INTEGERS, OPS, check, defined, values

import a2a
from a2a import testing


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("elems", [0, 1, 37, 5000])
def test_every_dtype_and_operation(comm: a2a.Communicator, elems: int) -> None:
    for dtype in [*INTEGERS, *FLOATS, *COMPLEX, "bool"]:
        sends = values(comm.rank, comm.size, elems, dtype)
        for op in filter(lambda op: defined(op, dtype), OPS):
            send = sends[comm.rank].copy()
            recv = testing.poison(np.empty_like(send))
            comm.allreduce(send, recv, op)
            check(recv, testing.fold(sends, op), f"allreduce of {elems} {dtype} with {op}")
            check(send, sends[comm.rank], "the input")
            comm.allreduce(send, op=op)
            check(send, testing.fold(sends, op), f"allreduce in place of {elems} {dtype} with {op}")


@pytest.mark.ranks(4, threads=(False, True))
@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
@pytest.mark.parametrize("elems", [1, 3000, 700_001])
def test_every_call(comm: a2a.Communicator, elems: int, shared: bool) -> None:
    def new(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if not shared:
            return array.copy()
        made: np.ndarray[Any, Any] = comm.empty(array.shape, array.dtype)
        made[...] = array
        return made

    n, rank = comm.size, comm.rank
    sends = [np.arange(n * elems, dtype=np.float32).reshape(n * elems) * (r + 1) + 1 for r in range(n)]
    send = new(sends[rank])
    for root in {0, n - 1}:
        recv = new(np.zeros(n * elems, np.float32)) if rank == root else None
        comm.reduce(send, recv, root)
        if rank == root:
            check(recv, testing.fold(sends), "reduce")
        tensor = new(sends[rank])
        comm.broadcast(tensor, root)
        check(tensor, sends[root], "broadcast")
        gathered = new(np.zeros(n * n * elems, np.float32)) if rank == root else None
        comm.gather(send, gathered, root)
        if rank == root:
            check(gathered, np.concatenate(sends), "gather")
        part = new(np.zeros(elems, np.float32))
        comm.scatter(send if rank == root else None, part, root)
        check(part, testing.scatter(sends[root], n)[rank], "scatter")
    part = new(np.zeros(elems, np.float32))
    comm.reduce_scatter(send, part)
    check(part, testing.reduce_scatter(sends)[rank], "reduce_scatter")
    own = new(sends[rank])
    comm.reduce_scatter(own, own[rank * elems : (rank + 1) * elems], "max")
    check(own[rank * elems : (rank + 1) * elems], testing.reduce_scatter(sends, "max")[rank], "in place")
    counts = [elems] * n
    counts[0], counts[-1] = counts[0] + counts[-1], 0
    uneven = new(np.zeros(counts[rank], np.float32))
    comm.reduce_scatterv(send, counts, uneven)
    check(uneven, testing.reduce_scatter(sends, counts=counts)[rank], "reduce_scatterv")
    works = [comm.allreduce(new(sends[rank]), new(np.zeros(n * elems, np.float32)), async_op=True) for _ in range(3)]
    for work in works:
        assert work is not None
        work.wait()
        check(work.result, testing.fold(sends), "three at once")
    mine = new(sends[rank][: rank + 1])
    rows = [r + 1 for r in range(n)]
    everything = new(np.zeros(sum(rows) + 5, np.float32))
    displs = [int(sum(rows[:r])) + 2 for r in range(n)]
    comm.allgatherv(mine, everything, rows, displs)
    expected = testing.allgatherv([s[: r + 1] for r, s in enumerate(sends)], [np.zeros_like(everything)] * n, displs)
    check(everything, expected[rank], "allgatherv")


@pytest.mark.ranks(3)
@pytest.mark.parametrize("elems", [3, 30_000])
def test_plans(comm: a2a.Communicator, elems: int) -> None:
    n, rank, root = comm.size, comm.rank, comm.size - 1
    at_root = rank == root
    like, part, all_parts = (
        np.zeros(n * elems, np.float32),
        np.zeros(elems, np.float32),
        np.zeros(n * n * elems, np.float32),
    )
    counts = [elems * (2 if r == 0 else 0 if r == 1 else 1) for r in range(n)]
    uneven = np.zeros(counts[rank], np.float32)
    plans = {
        "allreduce": comm.plan_allreduce(like, op="max"),
        "reduce_scatter": comm.plan_reduce_scatter(like, part),
        "reduce_scatterv": comm.plan_reduce_scatterv(like, counts, uneven, "min"),
        "reduce": comm.plan_reduce(like, like.copy() if at_root else None, root),
        "broadcast": comm.plan_broadcast(like, root),
        "gather": comm.plan_gather(like, all_parts if at_root else None, root),
        "scatter": comm.plan_scatter(like if at_root else None, part, root),
        "allgatherv": comm.plan_allgatherv(like, all_parts, [n * elems] * n),
    }
    back = plans["scatter"].transpose()
    for step in range(3):
        sends = [np.arange(n * elems, dtype=np.float32) * (r + 1) + step for r in range(n)]
        send, recv = sends[rank].copy(), np.zeros(n * elems, np.float32)
        plans["allreduce"].run(send, recv)
        check(recv, testing.fold(sends, "max"), "planned allreduce")
        plans["allreduce"].run(recv if step else send)
        check(recv if step else send, testing.fold(sends, "max"), "planned allreduce in place")
        send = sends[rank].copy()
        plans["reduce_scatter"].run(send, part)
        check(part, testing.reduce_scatter(sends)[rank], "planned reduce_scatter")
        plans["reduce_scatterv"].run(send, uneven)
        check(uneven, testing.reduce_scatter(sends, "min", counts)[rank], "planned reduce_scatterv")
        plans["reduce"].run(send, recv if at_root else None)
        if at_root:
            check(recv, testing.fold(sends), "planned reduce")
        plans["gather"].run(send, all_parts if at_root else None)
        if at_root:
            check(all_parts, np.concatenate(sends), "planned gather")
        plans["scatter"].run(send if at_root else None, part)
        check(part, testing.scatter(sends[root], n)[rank], "planned scatter")
        together = np.zeros(n * elems, np.float32)
        back.run(part, together if at_root else None)
        if at_root:
            check(together, sends[root], "transposed scatter")
        work = plans["allgatherv"].start(send, all_parts)
        work.wait()
        check(all_parts, np.concatenate(sends), "planned allgatherv")
        plans["broadcast"].run(send)
        check(send, sends[root], "planned broadcast")
    wrong = a2a.InvalidArgumentError if rank == 0 else a2a.MismatchError
    for bad in ({"send": like[:-1]}, {"send": like.astype(np.int32)}, {"send": like, "recv": np.zeros(1, np.float32)}):
        with pytest.raises(wrong):
            plans["allreduce"].run(**bad) if rank == 0 else plans["allreduce"].run(like)
    with pytest.raises(a2a.InvalidArgumentError):
        plans["allreduce"].transpose()


@pytest.mark.ranks(3)
@pytest.mark.parametrize("how", ["op", "dtype", "size", "root", "call"])
@pytest.mark.parametrize("elems", [16, 100_000])
def test_disagreement_is_seen_by_every_rank(comm: a2a.Communicator, elems: int, how: str) -> None:
    odd = comm.rank == 1
    send, recv = np.ones(elems, np.float32), np.zeros(elems, np.float32)
    with pytest.raises(a2a.MismatchError) as caught:
        if how == "op":
            comm.allreduce(send, recv, "max" if odd else "sum")
        elif how == "dtype":
            comm.allreduce(send.astype(np.int32) if odd else send, recv.astype(np.int32) if odd else recv)
        elif how == "size":
            comm.allreduce(send[: elems - 8] if odd else send, recv[: elems - 8] if odd else recv)
        elif how == "root":
            comm.broadcast(send, 1 if odd else 0)
        else:
            comm.reduce(send, recv if comm.rank == 0 else None) if odd else comm.allreduce(send, recv)
    assert "rank 1" in str(caught.value)
    comm.allreduce(send, recv)
    assert (recv == comm.size).all()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("elems", [8, 100_000])
def test_bad_arguments_are_told_to_the_peers(comm: a2a.Communicator, elems: int) -> None:
    x = np.ones(8, np.float32)
    bad: list[Callable[[], Any]] = [
        lambda: comm.allreduce(x, op="mean"),
        lambda: comm.allreduce(x, op="band"),
        lambda: comm.allreduce(np.ones(8, np.int32), op="avg"),
        lambda: comm.allreduce(np.ones(8, np.complex64), op="max"),
        lambda: comm.allreduce(x, x[:4]),
        lambda: comm.allreduce(x[:4], x[2:6]),
        lambda: comm.broadcast(x, root=comm.size),
        lambda: comm.reduce(x, root=-1),
        lambda: comm.reduce_scatterv(x, [8] * comm.size, np.ones(8, np.float32)),
        lambda: comm.gather(x, np.ones(9, np.float32), root=comm.rank),
    ]
    for call in bad:
        with pytest.raises(a2a.MismatchError if comm.rank else a2a.InvalidArgumentError):
            if comm.rank == 0:
                call()
            else:
                comm.allreduce(np.ones(elems, np.float32))
    y = np.ones(elems, np.float32)
    comm.allreduce(y)
    assert (y == comm.size).all()
