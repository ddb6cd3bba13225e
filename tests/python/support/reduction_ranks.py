"""What ranks do in the tests of reductions and rooted operations on devices. ``new`` copies a NumPy array to the rank's
device: the result has ``tensor``, ``slice(row, shape)`` and ``read()``."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest

import a2a
from a2a import testing

Comm = a2a.Communicator
Data = np.ndarray[Any, Any]
New = Callable[[Data], Any]
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
COMPLEX = ("complex64", "complex128")
DTYPES = (*INTEGERS, *FLOATS, *COMPLEX, "bool")
OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")
ARITHMETIC = ("sum", "prod", "min", "max")


def defined(dtype: str) -> tuple[Any, ...]:
    """The operations that have a meaning."""
    if dtype in FLOATS:
        return (*ARITHMETIC, "avg")
    return ("sum", "prod", "avg") if dtype in COMPLEX else (*ARITHMETIC, "band", "bor", "bxor")


def folded_by_nccl(dtype: str, float8: bool = True) -> tuple[str, ...]:
    """The table in docs/guide/reductions.md. ``float8``: whether the version and the GPU are new enough."""
    if dtype in ("int16", "uint16") or (dtype.startswith("float8") and not float8):
        return ()
    if dtype == "bool":
        return (*ARITHMETIC, "band", "bor")
    return ("sum", "avg") if dtype in COMPLEX else (*ARITHMETIC, "avg") if dtype in FLOATS else ARITHMETIC


def folded_by_hccl(dtype: str) -> tuple[str, ...]:
    if dtype in ("float64", "complex128") or dtype.startswith("float8"):
        return ()
    if dtype == "bool":
        return (*ARITHMETIC, "band", "bor")
    if dtype in ("int16", "bfloat16"):
        return ("sum", "min", "max")
    if dtype in ("uint16", "complex64"):
        return ("sum",)
    return ("sum", "prod") if dtype.startswith("uint") else ARITHMETIC


def numpy_has(dtype: str) -> bool:
    """Perhaps by ml_dtypes, which machines with a GPU may lack."""
    return hasattr(np, dtype) or importlib.util.find_spec("ml_dtypes") is not None


def dtype_of(name: str) -> Any:
    return np.dtype(name if hasattr(np, name) else getattr(importlib.import_module("ml_dtypes"), name))


def values(size: int, elems: int, dtype: str) -> list[Data]:
    """Every rank's elements: so small that every order of folding gives the same bits, in float8, too."""
    rng = np.random.default_rng(elems)
    made = [rng.integers(1, 3, (2, elems)) for _ in range(size)]
    if dtype == "bool":
        return [one == 1 for one, _ in made]
    if dtype in COMPLEX:
        return [(one + 1j * other).astype(dtype) for one, other in made]
    return [one.astype(dtype_of(dtype)) for one, _ in made]


def check(actual: Any, expected: Any, what: str) -> None:
    difference = testing.first_difference(actual, expected)
    assert difference is None, f"{what}: {difference}"


def every_operation(comm: Comm, new: New, dtype: str, elems: int, library: str, ops: Collection[str]) -> None:
    """Reductions with those operations; others are refused on every rank alike, and leave the communicator usable."""
    n, rank = comm.size, comm.rank
    sends = values(n, n * elems, dtype)
    for op in defined(dtype):
        what, send, recv = f"{op} of {dtype}", new(sends[rank]), new(np.zeros_like(sends[rank]))
        if op not in ops:
            told = re.escape(f'{library} does not reduce {dtype} with "{op}"')
            for call in (comm.allreduce, lambda send, recv, op: comm.reduce(send, None, 0, op)):
                with pytest.raises(a2a.UnsupportedError, match=told):
                    call(send.tensor, recv.tensor, op)
            continue
        all_reduced, parts = testing.allreduce(sends, op)[rank], testing.reduce_scatter(sends, op)
        comm.allreduce(send.tensor, recv.tensor, op)
        check(recv.read(), all_reduced, f"allreduce, {what}")
        check(send.read(), sends[rank], "the input")
        part = new(np.zeros_like(parts[rank]))
        comm.reduce_scatter(send.tensor, part.tensor, op)
        check(part.read(), parts[rank], f"reduce_scatter, {what}")
        for root in {0, n - 1}:
            recv = new(np.zeros_like(sends[rank]))
            comm.reduce(send.tensor, recv.tensor if rank == root else None, root, op)
            check(recv.read() if rank == root else all_reduced, all_reduced, f"reduce, {what}")
        check(send.read(), sends[rank], "the input")
        comm.allreduce(send.tensor, op=op)
        check(send.read(), all_reduced, f"allreduce in place, {what}")


def shapes(comm: Comm, new: New) -> None:
    """Uneven parts, outputs that are part of inputs, several at once, and on streams of the communicator."""
    n, rank = comm.size, comm.rank
    sends = [np.arange(2.0 * n, dtype=np.float32).reshape(-1, 2) * (r + 1) for r in range(n)]
    total = testing.fold(sends)
    counts = [1] * n
    counts[0], counts[-1] = counts[0] + counts[-1], 0
    if n == 1:
        counts = [1]
    own = new(np.zeros((counts[rank], 2), np.float32))
    comm.reduce_scatterv(new(sends[rank]).tensor, counts, own.tensor)
    check(own.read(), testing.reduce_scatter(sends, counts=counts)[rank], "reduce_scatterv")
    at = sum(counts[:rank])
    whole = new(sends[rank])
    comm.reduce_scatterv(whole.tensor, counts, whole.slice(at, (counts[rank], 2)))
    check(whole.read()[at : at + counts[rank]], total[at : at + counts[rank]], "reduce_scatterv in place")
    whole = new(sends[rank])
    comm.reduce_scatter(whole.tensor, whole.slice(rank, (1, 2)), "max")
    check(whole.read()[rank], testing.fold(sends, "max")[rank], "reduce_scatter in place")
    whole = new(sends[rank])
    comm.reduce(whole.tensor, None, n - 1)
    check(whole.read(), total if rank == n - 1 else sends[rank], "reduce in place")
    works = [comm.allreduce(new(sends[rank]).tensor, new(np.zeros_like(total)).tensor, async_op=True) for _ in range(3)]
    for work in works:
        assert work is not None
        work.wait()
    many = new(np.full(100_000, rank + 1, np.float32))  # on host memory in two exchanges
    comm.allreduce(many.tensor)
    assert (many.read() == n * (n + 1) / 2).all()
    nothing = new(np.zeros(0, np.float32))
    comm.allreduce(nothing.tensor)
    comm.reduce_scatter(nothing.tensor, nothing.tensor, "max")


def rooted(comm: Comm, new: New, dtype: str) -> None:
    """Broadcast, gather, scatter and allgatherv, their outputs apart and in place."""
    n, rank = comm.size, comm.rank
    sends = [send.reshape(n, 3) for send in values(n, 3 * n, dtype)]
    blank = np.zeros_like(sends[0])
    for root in {0, n - 1}:
        tensor = new(sends[rank])
        comm.broadcast(tensor.tensor, root)
        check(tensor.read(), sends[root], "broadcast")
        gathered = testing.gather([send[:1] for send in sends], root)[rank]
        for in_place in (False, True):
            recv, own = new(sends[rank] if in_place else blank), new(sends[rank][:1])
            if in_place:  # row 0 comes to where it belongs
                recv = new(np.roll(sends[rank], rank, 0))
            send = recv.slice(rank, (1, 3)) if in_place and rank == root else own.tensor
            comm.gather(send, recv.tensor if rank == root else None, root)
            if rank == root:
                check(recv.read(), gathered, f"gather, in place: {in_place}")
            whole, part = new(sends[rank]), new(blank[:1])
            out = whole.slice(rank, (1, 3)) if in_place and rank == root else part.tensor
            comm.scatter(whole.tensor if rank == root else None, out, root)
            received = whole.read()[rank : rank + 1] if in_place and rank == root else part.read()
            check(received, testing.scatter(sends[root], n)[rank], f"scatter, in place: {in_place}")
    rows, displs = [r % 3 for r in range(n)], [n * 3 - 3 * r - 2 for r in range(n)]
    given = [values(n, 3 * n * 3, dtype)[r].reshape(-1, 3)[: rows[r]] for r in range(n)]
    outputs = [np.zeros((3 * n, 3), blank.dtype) for _ in range(n)]
    wanted = testing.allgatherv(given, outputs, displs)[rank]
    recv = new(outputs[rank])
    comm.allgatherv(new(given[rank]).tensor, recv.tensor, rows, displs)
    check(recv.read(), wanted, "allgatherv")
    outputs[rank][displs[rank] : displs[rank] + rows[rank]] = given[rank]
    recv = new(outputs[rank])
    comm.allgatherv(recv.slice(displs[rank], (rows[rank], 3)), recv.tensor, rows, displs)
    check(recv.read(), wanted, "allgatherv in place")


def disagree(comm: Comm, new: New, how: str) -> str:
    """Rank 1 makes another call than the others; then all is well. What this rank is told."""
    made = comm.split(0)
    assert made is not None
    odd = made.rank == 1
    ones = np.ones(16, np.float32)
    x, y = new(ones.astype(np.int32) if odd and how == "dtype" else ones), new(np.zeros(16, np.float32))
    send, recv = x.tensor, y.tensor
    if odd and how == "size":
        send, recv = x.slice(0, (8,)), y.slice(0, (8,))
    elif odd and how == "dtype":
        recv = new(np.zeros(16, np.int32)).tensor
    root = int(odd)
    calls: dict[str, Callable[[], object]] = {
        "op": lambda: made.allreduce(send, recv, "max" if odd else "sum"),
        "dtype": lambda: made.allreduce(send, recv),
        "size": lambda: made.allreduce(send, recv),
        "root": lambda: made.broadcast(send, root),
        "root of reduce": lambda: made.reduce(send, recv if made.rank == root else None, root),
        "call": lambda: made.reduce(send, recv if made.rank == 0 else None) if odd else made.allreduce(send, recv),
    }
    with pytest.raises(a2a.MismatchError) as caught:
        calls[how]()
    good = new(ones)
    made.allreduce(good.tensor)
    assert (good.read() == made.size).all() and not made.broken
    return str(caught.value)
