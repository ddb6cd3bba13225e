"""Prefix reductions against the oracle, between processes, threads and hosts."""

from __future__ import annotations

import numpy as np
import pytest
from folds import FLOATS, INTEGERS, OPS, check, defined, values
from rank_pool import Pool

import a2a
from a2a import testing

HOSTS = {"alternating": "a,b,a,b", "uneven": "a,b,b,b"}


def every_dtype(comm: a2a.Communicator, elems: int, dtypes: list[str]) -> None:
    for dtype in dtypes:
        sends = values(comm.rank, comm.size, elems, dtype)
        for op in filter(lambda op: defined(op, dtype), OPS):
            for call, oracle in ((comm.scan, testing.scan), (comm.exscan, testing.exscan)):
                name = f"{oracle.__name__} of {elems} {dtype} with {op}"
                expected = oracle(sends, op)[comm.rank]
                send, recv = sends[comm.rank].copy(), testing.poison(np.empty_like(sends[0]))
                call(send, recv, op)
                check(recv, testing.poison(np.empty_like(recv)) if expected is None else expected, name)
                check(send, sends[comm.rank], "the input")
                call(send, op=op)
                check(send, sends[comm.rank] if expected is None else expected, f"{name}, in place")


@pytest.mark.ranks(1, 2, 5, threads=(False, True))
@pytest.mark.parametrize("elems", [0, 1, 37, 5000])
def test_every_dtype_and_operation(comm: a2a.Communicator, elems: int) -> None:
    every_dtype(comm, elems, [*INTEGERS, *FLOATS, "complex64", "bool"])


@pytest.mark.parametrize("hosts", ["alternating", "uneven"])
def test_between_hosts(hosts: str) -> None:
    """Integers, because their folds do not depend on the order of the hosts."""
    with Pool(4, hosts=HOSTS[hosts]) as pool:
        for elems in (1, 40_000):
            pool.run(every_dtype, elems, INTEGERS)


@pytest.mark.ranks(3, threads=(False, True))
def test_strides_plans_and_many_bytes(comm: a2a.Communicator) -> None:
    sends = [np.arange(700, dtype=np.float32).reshape(50, 14) * (rank + 1) for rank in range(comm.size)]
    matrix, out = sends[comm.rank].copy(), np.zeros((14, 50), np.float32).T
    comm.scan(matrix[:, ::2], out[:, 1::2])
    check(np.ascontiguousarray(out[:, 1::2]), testing.scan([send[:, ::2] for send in sends])[comm.rank], "columns")
    assert not out[:, ::2].any()
    plan = comm.plan_exscan(matrix)
    for _ in range(2):
        plan.run(matrix)
    if comm.rank == 1:
        check(matrix, sends[0], "two runs of a plan on rank 1")
    works = [comm.scan(np.full(9, comm.rank), np.empty(9, int), async_op=True) for _ in range(5)]
    for work in works:
        work.wait()
        assert (work.result == comm.rank * (comm.rank + 1) // 2).all()
    parts = [np.empty(3 * 10**6, np.float32) for _ in range(2)]
    parts[0][:] = comm.rank + 1
    comm.exscan(parts[0], parts[1])  # more than the chunks of a pair hold
    assert comm.rank == 0 or (parts[1] == comm.rank * (comm.rank + 1) // 2).all()


@pytest.mark.ranks(3)
@pytest.mark.parametrize("how", ["size", "op", "call"])
def test_disagreement_is_seen_by_every_rank(comm: a2a.Communicator, how: str) -> None:
    odd = comm.rank == 2
    send, recv = np.ones(64, np.float32), np.zeros(64, np.float32)
    with pytest.raises(a2a.MismatchError, match="rank 2"):
        if how == "size":
            comm.scan(send[:60] if odd else send, recv[:60] if odd else recv)
        elif how == "op":
            comm.exscan(send, recv, "max" if odd else "sum")
        else:
            (comm.exscan if odd else comm.scan)(send, recv)
    comm.scan(send, recv)
    assert (recv == comm.rank + 1).all()


@pytest.mark.ranks(2)
def test_bad_arguments_are_told_to_the_peers(comm: a2a.Communicator) -> None:
    x = np.ones(8, np.float32)
    for call in (lambda: comm.scan(x, op="mean"), lambda: comm.exscan(x, x[:4]), lambda: comm.scan(x[:4], x[2:6])):
        with pytest.raises(a2a.MismatchError if comm.rank else a2a.InvalidArgumentError):
            call() if comm.rank == 0 else comm.scan(x.copy())
    comm.barrier()
