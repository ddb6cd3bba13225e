"""The cases: plain data in ``cases/*.json``, and what each rank sends and has to receive.

A file holds ``{"about": ..., "cases": [...]}``. A case has

- ``name``, ``source``: what it is, and the document or suite it comes from.
- ``op``: "alltoallv", "alltoall_list", "allgather", "global_scatter" or "global_gather".
- ``dtypes``: a list of names, or "all".
- ``row``: the shape of a row, the unit of counts (alltoallv, global_scatter, global_gather).
- ``send_counts``: rows from each rank (outer) to each rank; ``send_displs``, ``recv_displs``, ``send_rows``,
  ``recv_rows``: as in MPI, by rank; packed tensors when left out (alltoallv).
- ``shapes``: of what each rank (outer) sends to each rank (alltoall_list). ``shape``: of each rank's part (allgather).
- ``experts``, ``local_count``: experts of a rank, and each rank's rows for each expert of each rank (global_*).
- ``send``, ``expected``: elements of each rank's tensor, flat, complex ones as pairs. Without ``send``, byte k of rank
  r is (131 r + 7 k + 13 (k >> 8) + 1) mod 256, its lowest bit for bool; without ``expected`` the oracle decides.

Bytes of an output that nothing is received into stay what they were.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import testing

__all__ = ["DTYPES", "Case", "load"]

DTYPES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""Bytes of an element."""

Raw = npt.NDArray[Any]
"""An array of elements without a meaning (dtype "V1" to "V16"): the kit compares bits."""


@dataclass(frozen=True)
class Case:
    """One exchange of all ranks, for every dtype in ``dtypes``."""

    facts: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.facts["name"])

    @property
    def op(self) -> str:
        return str(self.facts["op"])

    @property
    def dtypes(self) -> list[str]:
        named = self.facts["dtypes"]
        return list(DTYPES) if named == "all" else list(named)

    @property
    def row(self) -> tuple[int, ...]:
        return tuple(self.facts["row"])

    @property
    def ranks(self) -> int:
        for key in ("send_counts", "shapes", "local_count", "send"):
            if key in self.facts:
                return len(self.facts[key])
        return int(self.name.rsplit(", ", 1)[1].split()[0])

    # ---- alltoallv

    @property
    def send_counts(self) -> npt.NDArray[np.int64]:
        return np.asarray(self.facts["send_counts"], np.int64).reshape(self.ranks, self.ranks)

    @property
    def recv_counts(self) -> npt.NDArray[np.int64]:
        return np.ascontiguousarray(self.send_counts.T)

    def displs(self, side: str, rank: int) -> list[int] | None:
        """``side`` is "send" or "recv"; None is packed in rank order."""
        given = self.facts.get(f"{side}_displs")
        return None if given is None else list(given[rank])

    @property
    def packed(self) -> bool:
        """Whether both tensors are filled in rank order, without gaps."""
        return not any(key in self.facts for key in ("send_displs", "recv_displs", "send_rows", "recv_rows"))

    @property
    def equal(self) -> bool:
        """Whether all ranks exchange equally much."""
        return self.packed and len(set(self.send_counts.flat)) == 1

    # ---- global_scatter and global_gather

    @property
    def local_counts(self) -> npt.NDArray[np.int64]:
        return np.asarray(self.facts["local_count"], np.int64)

    @property
    def global_counts(self) -> npt.NDArray[np.int64]:
        return testing.global_counts(self.local_counts)

    # ---- tensors

    def send_shapes(self, rank: int) -> list[tuple[int, ...]]:
        """Of the tensors that a rank sends: one, or one for each rank in the list form."""
        if self.op == "alltoall_list":
            return [tuple(shape) for shape in self.facts["shapes"][rank]]
        if self.op == "allgather":
            return [tuple(self.facts["shape"])]
        if self.op == "alltoallv":
            rows = self.facts["send_rows"][rank] if "send_rows" in self.facts else self.send_counts[rank].sum()
        else:
            rows = (self.local_counts if self.op == "global_scatter" else self.global_counts)[rank].sum()
        return [(int(rows), *self.row)]

    def recv_shapes(self, rank: int) -> list[tuple[int, ...]]:
        if self.op == "alltoall_list":
            return [tuple(row[rank]) for row in self.facts["shapes"]]
        if self.op == "allgather":
            first, *rest = self.facts["shape"]
            return [(self.ranks * first, *rest)]
        if self.op == "alltoallv":
            rows = self.facts["recv_rows"][rank] if "recv_rows" in self.facts else self.recv_counts[rank].sum()
        else:
            rows = (self.global_counts if self.op == "global_scatter" else self.local_counts)[rank].sum()
        return [(int(rows), *self.row)]

    def sends(self, dtype: str, rank: int) -> list[Raw]:
        """What a rank sends, in send_shapes()."""
        shapes = self.send_shapes(rank)
        count = sum(math.prod(shape) for shape in shapes)
        if "send" in self.facts:
            flat = _elements(self.facts["send"][rank], dtype)
        else:
            k = np.arange(count * DTYPES[dtype], dtype=np.int64)
            pattern = (131 * rank + 7 * k + 13 * (k >> 8) + 1).astype(np.uint8)
            flat = (pattern & 1 if dtype == "bool" else pattern).view(_raw(dtype))
        return _cut(flat, shapes)

    def expected(self, dtype: str, rank: int) -> list[Raw]:
        """What a rank's outputs hold at last, when they were filled with testing.POISON before."""
        shapes = self.recv_shapes(rank)
        if "expected" in self.facts:
            return _cut(_elements(self.facts["expected"][rank], dtype), shapes)
        sends = [self.sends(dtype, source) for source in range(self.ranks)]
        if self.op == "alltoall_list":
            results = [parts[rank] for parts in sends]
        elif self.op == "allgather":
            results = [testing.allgather([one for (one,) in sends])[rank]]
        elif self.op == "alltoallv":
            recvs = [testing.poison(np.empty(self.recv_shapes(r)[0], _raw(dtype))) for r in range(self.ranks)]
            given = (self.facts.get("send_displs"), self.facts.get("recv_displs"))
            results = [testing.alltoallv([one for (one,) in sends], self.send_counts, recvs, *given)[rank]]
        else:
            oracle = testing.global_scatter if self.op == "global_scatter" else testing.global_gather
            results = [oracle([one for (one,) in sends], self.local_counts)[rank]]
        return [result.reshape(shape) for result, shape in zip(results, shapes, strict=True)]


def load(folder: Path | None = None) -> list[Case]:
    """All cases of a folder, by default those that come with the package."""
    cases = []
    for file in sorted((folder or Path(__file__).parent / "cases").glob("*.json")):
        cases += [Case(facts) for facts in json.loads(file.read_text(encoding="utf-8"))["cases"]]
    return cases


def _raw(dtype: str) -> np.dtype[Any]:
    return np.dtype(f"V{DTYPES[dtype]}")


def _elements(values: Sequence[Any], dtype: str) -> Raw:
    if dtype.startswith("complex"):
        parts = np.asarray(values, f"f{DTYPES[dtype] // 2}")
        return np.ascontiguousarray(parts).reshape(-1).view(_raw(dtype))
    if dtype == "bfloat16":  # the upper half of a float32; exact for the small integers of the examples
        return np.ascontiguousarray(np.asarray(values, "f4").view("u2")[1::2]).view(_raw(dtype))
    return np.asarray(values, dtype).view(_raw(dtype))


def _cut(flat: Raw, shapes: Sequence[tuple[int, ...]]) -> list[Raw]:
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]
