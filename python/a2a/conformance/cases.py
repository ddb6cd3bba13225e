"""The cases: plain data in ``cases/*.json``, and the tensors that each rank sends and has to receive.

A file holds ``{"about": ..., "cases": [...]}``. A case has

- ``name``, ``source``: its name, and the document or suite from which it comes.
- ``op``: "alltoallv", "alltoall_list", "allgather", "global_scatter", "global_gather", "quantized_all_reduce",
  or one of ``collectives.COLLECTIVES``.
- ``ranks``: the number of ranks.
- ``dtypes``: a list of names, or "all".
- ``row``: the shape of a row, the unit of counts (alltoallv, global_scatter, global_gather).
- ``send_counts``: rows from each rank (outer) to each rank; ``send_displs``, ``recv_displs``, ``send_rows``,
  ``recv_rows``: as in MPI, by rank; packed tensors when left out (alltoallv).
- ``input_shapes``: the shape of each rank's input for calls that treat any shape as flat (alltoallv with scalar rows).
- ``shapes``: those of the tensors from each rank (outer) to each rank (alltoall_list). ``shape``: of each rank's part
  (allgather, reduce_scatter, gather, scatter), or of each rank's tensor (quantized_all_reduce, the other collectives).
- ``counts``: the rows of each rank's part, which has the ``shape`` otherwise (reduce_scatterv, allgatherv).
- ``fold``: the ``op`` of a reduction. ``root``: the root.
- ``experts``, ``local_count``: experts of a rank, and each rank's rows for each expert of each rank (global_*).
- ``scale``, ``offset``: one entry, or one for each entry of the last dimension (quantized_all_reduce).
- ``send``, ``expected``: elements of each rank's tensors, flat, complex ones as pairs. Without ``send``, byte k of rank
  r is (131 r + 7 k + 13 (k >> 8) + 1) mod 256, its lowest bit for bool; without ``expected`` the oracle decides. What
  is folded are small numbers, those of ``collectives.numbers()``.
- ``cotangent``, ``gradient``: the same for the backward pass: gradients of a rank's outputs, and of its inputs.

Bytes of an output outside of the received ranges do not change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import testing
from .._files import read_json
from .collectives import COLLECTIVES, from_numbers, numbers, to_numbers

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
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "float8_e3m4": 1,
    "float8_e4m3": 1,
    "float8_e4m3b11fnuz": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
}
"""The bytes of an element of every dtype with a name."""

Raw = npt.NDArray[Any]
"""An array of elements without a meaning (dtype "V1" to "V16"): the kit compares bits."""
Shape = tuple[int, ...]

_EXCHANGES = ("alltoallv", "alltoall_list", "global_scatter", "global_gather")


@dataclass(frozen=True, eq=False)
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
    def ranks(self) -> int:
        return int(self.facts["ranks"])

    @property
    def dtypes(self) -> list[str]:
        named = self.facts["dtypes"]
        return list(DTYPES) if named == "all" else list(named)

    @property
    def row(self) -> Shape:
        return tuple(self.facts["row"])

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
        """Whether all pairs of ranks exchange the same number of rows."""
        return self.packed and len(set(self.send_counts.flat)) == 1

    # ---- global_scatter and global_gather

    @property
    def local_counts(self) -> npt.NDArray[np.int64]:
        return np.asarray(self.facts["local_count"], np.int64)

    @property
    def global_counts(self) -> npt.NDArray[np.int64]:
        return testing.global_counts(self.local_counts)

    # ---- reductions, and operations with a root

    @property
    def shape(self) -> Shape:
        return tuple(self.facts["shape"])

    @property
    def counts(self) -> list[int]:
        return list(self.facts["counts"])

    @property
    def fold(self) -> str:
        """How elements are folded; "" where nothing is."""
        return str(self.facts.get("fold", ""))

    @property
    def root(self) -> int:
        return int(self.facts["root"])

    # ---- tensors

    def send_shapes(self, rank: int) -> list[Shape]:
        """Return the shapes of the tensors that a rank sends: one, or one for each rank in the list form, or none."""
        if self.op in COLLECTIVES:
            return COLLECTIVES[self.op].sends(self, rank)
        if self.op == "alltoall_list":
            return [tuple(shape) for shape in self.facts["shapes"][rank]]
        if self.op in ("allgather", "quantized_all_reduce"):
            return [self.shape]
        if self.op == "alltoallv":
            rows = self.facts["send_rows"][rank] if "send_rows" in self.facts else self.send_counts[rank].sum()
        else:
            rows = (self.local_counts if self.op == "global_scatter" else self.global_counts)[rank].sum()
        return [(int(rows), *self.row)]

    def recv_shapes(self, rank: int) -> list[Shape]:
        if self.op in COLLECTIVES:
            return COLLECTIVES[self.op].recvs(self, rank)
        if self.op == "alltoall_list":
            return [tuple(row[rank]) for row in self.facts["shapes"]]
        if self.op == "quantized_all_reduce":
            return [self.shape]
        if self.op == "allgather":
            first, *rest = self.facts["shape"] or [1]
            return [(self.ranks * first, *rest)]
        if self.op == "alltoallv":
            rows = self.facts["recv_rows"][rank] if "recv_rows" in self.facts else self.recv_counts[rank].sum()
        else:
            rows = (self.global_counts if self.op == "global_scatter" else self.local_counts)[rank].sum()
        return [(int(rows), *self.row)]

    def recv_dtype(self, dtype: str) -> str:
        """Return the dtype of the output for inputs of ``dtype``."""
        return "float16" if self.op == "quantized_all_reduce" else dtype

    def sends(self, dtype: str, rank: int) -> list[Raw]:
        """Return the tensors that a rank sends, with send_shapes()."""
        shapes = self.send_shapes(rank)
        if "send" in self.facts:
            return _cut(_elements(self.facts["send"][rank], dtype), shapes)
        if self.fold:
            return [from_numbers(numbers(dtype, self.fold, rank, shape), dtype) for shape in shapes]
        k = np.arange(sum(map(math.prod, shapes)) * DTYPES[dtype], dtype=np.int64)
        pattern = (131 * rank + 7 * k + 13 * (k >> 8) + 1).astype(np.uint8)
        return _cut((pattern & 1 if dtype == "bool" else pattern).view(_raw(dtype)), shapes)

    def expected(self, dtype: str, rank: int) -> list[Raw]:
        """Return a rank's outputs after the exchange, if they were filled with testing.POISON before."""
        shapes = self.recv_shapes(rank)
        if "expected" in self.facts:
            return _cut(_elements(self.facts["expected"][rank], self.recv_dtype(dtype)), shapes)
        sends = [self.sends(dtype, source) for source in range(self.ranks)]
        if self.op in COLLECTIVES:
            results = self._of_collective(dtype, rank, sends)
        elif self.op == "alltoall_list":
            results = [parts[rank] for parts in sends]
        elif self.op == "allgather":
            results = [np.concatenate([part.reshape(-1) for (part,) in sends])]
        elif self.op == "quantized_all_reduce":
            results = [self._dequantized_sum([part for (part,) in sends])]
        elif self.op == "alltoallv":
            recvs = [testing.poison(np.empty(self.recv_shapes(r)[0], _raw(dtype))) for r in range(self.ranks)]
            given = (self.facts.get("send_displs"), self.facts.get("recv_displs"))
            results = [testing.alltoallv([one for (one,) in sends], self.send_counts, recvs, *given)[rank]]
        else:
            oracle = testing.global_scatter if self.op == "global_scatter" else testing.global_gather
            results = [oracle([one for (one,) in sends], self.local_counts)[rank]]
        return [result.reshape(shape) for result, shape in zip(results, shapes, strict=True)]

    def _of_collective(self, dtype: str, rank: int, sends: list[list[Raw]]) -> list[Raw]:
        inputs = [one[0] if one else np.empty(0, _raw(dtype)) for one in sends]
        if self.fold:
            inputs = [to_numbers(one, dtype) for one in inputs]
        result = COLLECTIVES[self.op].oracle(self, inputs)[rank]
        unchanged = [testing.poison(np.empty(shape, _raw(dtype))) for shape in self.recv_shapes(rank)]
        if result is None or not unchanged:
            return unchanged
        return [from_numbers(result, dtype) if self.fold else result]

    def _dequantized_sum(self, sends: list[Raw]) -> Raw:
        """An int8 q stands for (q + offset) * scale. The sum is exact; the rest is float32, rounded once."""
        total = np.sum([part.view(np.int8).astype(np.int32) for part in sends], axis=0).astype(np.float32)
        scale, offset = (np.asarray(self.facts[name], np.float32) for name in ("scale", "offset"))
        with np.errstate(over="ignore"):
            result: Raw = ((total + np.float32(self.ranks) * offset) * scale).astype(np.float16).view("V2")
        return result

    # ---- the backward pass

    @property
    def differentiable(self) -> bool:
        """Whether the gradient is an exchange, too, so that its bits are determined: nothing is added up."""
        return self.op in _EXCHANGES and (self.op != "alltoallv" or self.packed)

    def transposed(self) -> Case:
        """Return the exchange that sends the gradients of the outputs to the inputs."""
        facts = {key: value for key, value in self.facts.items() if key not in ("send", "expected")}
        for key, given in (("send", "cotangent"), ("expected", "gradient")):
            if given in facts:
                facts[key] = facts.pop(given)
        if self.op == "alltoallv":
            facts["send_counts"] = self.recv_counts
        elif self.op == "alltoall_list":
            facts["shapes"] = list(zip(*self.facts["shapes"], strict=True))
        else:
            facts["op"] = {"global_scatter": "global_gather", "global_gather": "global_scatter"}[self.op]
        return Case(facts)


def load(folder: Path | None = None) -> list[Case]:
    """Return all cases of a folder, by default those that come with the package."""
    cases = []
    for file in sorted((folder or Path(__file__).parent / "cases").glob("*.json")):
        cases += [Case(facts) for facts in read_json(file)["cases"]]
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


def _cut(flat: Raw, shapes: Sequence[Shape]) -> list[Raw]:
    if not shapes:
        return []
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]
