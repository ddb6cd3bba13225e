"""ATB's AllToAllV, of a2a.atb."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from ..cases import Case
from ._signature import Call, Signature, register

SIGNATURES: list[Signature] = []
signature = register(SIGNATURES)

_DTYPES = frozenset({"float16", "float32", "int8", "int16", "int32", "int64", "bfloat16"})


def _fits(case: Case) -> bool:
    """Every rank sends and receives something, and the parts that it receives fill its output, in any order."""
    return all(_fills_its_output(case, rank) and math.prod(case.send_shapes(rank)[0]) for rank in range(case.ranks))


def _fills_its_output(case: Case, rank: int) -> bool:
    displs, counts = _displs(case, "recv", rank), case.recv_counts[rank]
    parts = sorted((displ, displ + count) for displ, count in zip(displs, counts.tolist(), strict=True) if count)
    edges = [0, *(stop for _, stop in parts)]
    rows = case.recv_shapes(rank)[0][0]
    return bool(parts) and edges[:-1] == [start for start, _ in parts] and edges[-1] == rows and max(displs) <= rows


def _displs(case: Case, side: str, rank: int) -> list[int]:
    given = case.displs(side, rank)
    counts = (case.send_counts if side == "send" else case.recv_counts)[rank]
    return (np.cumsum(counts) - counts).tolist() if given is None else given


def _send_shapes(case: Case, rank: int) -> list[tuple[int, ...]]:
    given = case.facts.get("input_shapes")
    return case.send_shapes(rank) if given is None else [tuple(given[rank])]


def _result_shapes(case: Case, rank: int) -> list[tuple[int, ...]]:
    return [(1, math.prod(case.recv_shapes(rank)[0]))]


@signature(
    "atb.AllToAllVOperation",
    "alltoallv",
    _fits,
    out=False,
    dtypes=_DTYPES,
    memory=frozenset({"host", "npu"}),
    send_shapes=_send_shapes,
    result_shapes=_result_shapes,
)
def _(c: Call) -> list[Any]:
    row = math.prod(c.case.row)  # the operation counts elements
    counts = {
        "sendCounts": c.send_counts,
        "sdispls": _displs(c.case, "send", c.rank),
        "recvCounts": c.recv_counts,
        "rdispls": _displs(c.case, "recv", c.rank),
    }
    threads = threading.current_thread() is not threading.main_thread()
    param = c.module.AllToAllVParam(
        rank=c.rank,
        rankSize=c.case.ranks,
        backend="auto",
        commMode=c.module.CommMode.COMM_MULTI_THREAD if threads else c.module.CommMode.COMM_MULTI_PROCESS,
        commDomain="conformance",
        **{name: [row * value for value in values] for name, values in counts.items()},
    )
    results: list[Any] = c.module.AllToAllVOperation(param, timeout=c.group.timeout).forward([c.send])
    return results
