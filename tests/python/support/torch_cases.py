"""torch's own families of cases, as data: what every rank sends and expects, for any number of ranks.

Each case is a function of (way, group, rank, n) that makes one exchange and returns None, or what is wrong with it.
Contents are bytes that depend on source, destination and position; outputs are poisoned before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch_worlds import calls

from a2a import testing

Counts = Callable[[int, int], int]  # rows that rank a sends to rank b


@dataclass(frozen=True)
class Case:
    """One exchange. ``row`` is the shape of a row on each side; ``sides`` says which split sizes are given."""

    call: str
    dtype: str = "float32"
    counts: Counts = lambda a, b: 2
    row: tuple[int, ...] = (3,)
    row_out: tuple[int, ...] | None = None
    sides: str = "both"
    dtype_out: str = ""
    async_op: bool = False

    def run(self, way: str, group: Any, rank: int, n: int) -> str | None:
        return globals()[f"_{self.call}"](self, way, group, rank, n)


DTYPES = (
    "bool uint8 int8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64 complex32 complex64"
    " complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
).split()


def _uneven(a: int, b: int) -> int:
    return (2 * a + 3 * b) % 5


CASES: dict[str, Case] = {
    **{f"single equal {dtype}": Case("single", dtype, sides="") for dtype in ("float32", "complex64")},
    **{f"single unequal {dtype}": Case("single", dtype, _uneven) for dtype in ("float32", "complex64")},
    **{f"list equal {dtype}": Case("list", dtype) for dtype in ("float32", "complex64")},
    **{f"list unequal {dtype}": Case("list", dtype, _uneven) for dtype in ("float32", "complex64")},
    "single, split sizes for the output alone": Case("single", sides="output"),
    "single, split sizes for the input alone": Case("single", sides="input"),
    "single, empty split sizes": Case("single", sides="empty"),
    "single, some split sizes zero": Case("single", counts=lambda a, b: (a + b) % 2),
    "single, all split sizes zero": Case("single", counts=lambda a, b: 0),
    "single, shape (0,)": Case("single", counts=lambda a, b: 0, row=(), sides=""),
    "single, shape (0, 4)": Case("single", counts=lambda a, b: 0, row=(4,), sides=""),
    "single, rows without elements": Case("single", row=(0,)),
    "single, rows of another shape": Case("single", row=(2, 3), row_out=(6,)),
    "single, rows of another size": Case("single", row=(1,), row_out=(2,), sides=""),
    "single, many dimensions": Case("single", counts=_uneven, row=(2, 1, 3, 2)),
    "single, complex input, real output": Case("single", "complex64", row=(1,), row_out=(2,), dtype_out="float32"),
    "single, real input, complex output": Case("single", row=(2,), row_out=(1,), dtype_out="complex64"),
    "single, asynchronous": Case("single", counts=_uneven, async_op=True),
    "list, entries without elements": Case("list", counts=lambda a, b: (a + b) % 2),
    "list, 0-d entries": Case("list", counts=lambda a, b: -1),
    "list, asynchronous": Case("list", counts=_uneven, async_op=True),
    "all_gather_into_tensor, concatenated": Case("gather", sides="concatenated"),
    "all_gather_into_tensor, stacked": Case("gather", sides="stacked"),
    "all_gather_into_tensor, complex": Case("gather", "complex64", sides="stacked"),
    "all_gather_into_tensor, in place": Case("gather", sides="in place"),
    "all_gather_into_tensor, nothing": Case("gather", counts=lambda a, b: 0, sides="concatenated"),
    "all_gather_into_tensor, asynchronous": Case("gather", sides="concatenated", async_op=True),
    "all_gather": Case("gather_list"),
    "all_gather, complex": Case("gather_list", "complex64"),
    "all_gather, uneven": Case("gather_list", counts=lambda a, b: 1 + a),
    "all_gather, asynchronous": Case("gather_list", async_op=True),
    **{f"single {dtype}": Case("single", dtype, _uneven) for dtype in DTYPES},
    **{f"list {dtype}": Case("list", dtype) for dtype in DTYPES},
    **{f"all_gather_into_tensor {dtype}": Case("gather", dtype, sides="concatenated") for dtype in DTYPES},
}


def content(case: Case, source: int, target: int, rows: int) -> Any:
    """The rows that one rank has for another."""
    import torch

    kind = getattr(torch, case.dtype)
    shape = case.row if rows < 0 else (rows, *case.row)
    elems = int(np.prod(shape, dtype=np.int64))
    chance = np.random.default_rng(1000 * source + target)
    if elems == 0:
        return torch.empty(shape, dtype=kind)
    if case.dtype == "bool":
        return torch.from_numpy(chance.integers(0, 2, elems).astype(np.bool_)).reshape(shape)
    return torch.from_numpy(chance.integers(0, 256, elems * kind.itemsize, dtype=np.uint8)).view(kind).reshape(shape)


def _out(case: Case, rows: int) -> Any:
    import torch

    row = case.row if case.row_out is None else case.row_out
    per_row = int(np.prod(case.row, dtype=np.int64))
    other = int(np.prod(row, dtype=np.int64)) * (2 if case.dtype_out.startswith("complex") else 1)
    if case.dtype.startswith("complex") and case.dtype_out:
        per_row *= 2
    if other != per_row:
        rows = rows * per_row // other
    shape = row if rows < 0 else (rows, *row)
    kind = getattr(torch, case.dtype_out or case.dtype)
    return torch.full(shape, 1, dtype=torch.uint8).to(torch.float32).to(kind)


def _single(case: Case, way: str, group: Any, rank: int, n: int) -> str | None:
    import torch

    to, from_ = [case.counts(rank, p) for p in range(n)], [case.counts(p, rank) for p in range(n)]
    send = torch.cat([content(case, rank, p, rows) for p, rows in enumerate(to)])
    recv = _out(case, sum(from_))
    splits = {
        "both": (from_, to), "output": (from_, None), "input": (None, to), "": (None, None), "empty": ([], [])
    }[case.sides]  # fmt: skip
    if case.sides == "both" and len(recv) != sum(from_):
        splits = [rows * len(recv) // sum(from_) for rows in from_], to
    _finish(calls(way).all_to_all_single(recv, send, *splits, group=group, async_op=case.async_op), case)
    return _compare([recv], [torch.cat([content(case, p, rank, rows) for p, rows in enumerate(from_)])])


def _list(case: Case, way: str, group: Any, rank: int, n: int) -> str | None:
    sends = [content(case, rank, p, case.counts(rank, p)) for p in range(n)]
    recvs = [_out(case, case.counts(p, rank)) for p in range(n)]
    _finish(calls(way).all_to_all(recvs, sends, group=group, async_op=case.async_op), case)
    return _compare(recvs, [content(case, p, rank, case.counts(p, rank)) for p in range(n)])


def _gather(case: Case, way: str, group: Any, rank: int, n: int) -> str | None:
    import torch

    rows = case.counts(0, 0)
    sends = [content(case, p, 0, rows) for p in range(n)]
    recv, send = _out(case, n * rows), sends[rank]
    if case.sides == "stacked":
        recv = recv.reshape(n, rows, *case.row)
    if case.sides == "in place":
        part = recv[rank * rows : (rank + 1) * rows]
        send = part.copy_(send)
    _finish(calls(way).all_gather_into_tensor(recv, send, group=group, async_op=case.async_op), case)
    return _compare([recv], [torch.cat(sends)])


def _gather_list(case: Case, way: str, group: Any, rank: int, n: int) -> str | None:
    sends = [content(case, p, 0, case.counts(p, 0)) for p in range(n)]
    recvs = [_out(case, case.counts(p, 0)) for p in range(n)]
    _finish(calls(way).all_gather(recvs, sends[rank], group=group, async_op=case.async_op), case)
    return _compare(recvs, sends)


def _finish(work: Any, case: Case) -> None:
    if not case.async_op:
        assert work is None, work
        return
    assert work.wait() is True
    assert work.is_completed()


def _compare(actual: Sequence[Any], expected: Sequence[Any]) -> str | None:
    differences = [testing.first_difference(left, right) for left, right in zip(actual, expected, strict=True)]
    return next((f"output {at}: {found}" for at, found in enumerate(differences) if found), None)
