"""The oracle for tests: every operation over all ranks' inputs at once, without communication.

Lists are indexed by rank. These functions are simple, not fast, and need only NumPy. The module also has random cases,
the bytes of any framework's tensor, and the workloads of ``a2a.workloads``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import frameworks
from .._core import Partial, Sharding
from .._expert_oracle import Dispatched, combine, dispatch
from ..workloads import (
    WORKLOADS,
    Workload,
    dispatch_order,
    expert_counts,
    route,
    router_logits,
    top_k_experts,
    workload,
)

__all__ = [
    "POISON",
    "WORKLOADS",
    "Case",
    "Dispatched",
    "Workload",
    "allgather",
    "allgatherv",
    "allreduce",
    "alltoall",
    "alltoall_list",
    "alltoallv",
    "as_bytes",
    "broadcast",
    "combine",
    "dispatch",
    "dispatch_order",
    "expert_counts",
    "exscan",
    "first_difference",
    "fold",
    "gather",
    "global_counts",
    "global_gather",
    "global_scatter",
    "packed",
    "poison",
    "random_array",
    "random_case",
    "random_counts",
    "reduce",
    "reduce_scatter",
    "reshard",
    "route",
    "router_logits",
    "scan",
    "scatter",
    "top_k_experts",
    "workload",
]

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]
Matrix = Sequence[Sequence[int]] | IntArray
"""Row per rank."""

POISON = 0xA5
"""The byte that poison() writes: neither zero nor a likely result."""


def alltoallv(
    sends: Sequence[Array],
    send_counts: Matrix,
    recvs: Sequence[Array],
    send_displs: Matrix | None = None,
    recv_displs: Matrix | None = None,
    split_axis: int = 0,
    concat_axis: int = 0,
) -> list[Array]:
    """Return every rank's ``recv`` after alltoallv. ``send_counts[r][p]`` entries of ``split_axis`` go from rank r to
    rank p, where they are along its ``concat_axis``. Entries of ``recvs`` outside of the received ranges are unchanged;
    the inputs are not changed."""
    counts = np.asarray(send_counts, dtype=np.int64)
    received = counts.T
    if split_axis % sends[0].ndim != concat_axis % sends[0].ndim:  # all entries of that axis are in each block
        received = np.array([[send.shape[concat_axis] for send in sends] for _ in recvs])
    send_at = packed(counts) if send_displs is None else np.asarray(send_displs)
    recv_at = packed(received) if recv_displs is None else np.asarray(recv_displs)
    results = [np.array(recv) for recv in recvs]
    for source, send in enumerate(sends):
        for target, result in enumerate(results):
            from_, to = send_at[source, target], recv_at[target, source]
            block = _along(send, split_axis)[from_ : from_ + counts[source, target]]
            if block.size > 0:
                moved = _moved(block, split_axis, concat_axis)
                _along(result, concat_axis)[to : to + len(moved)] = moved
    return results


def _along(tensor: Array, axis: int) -> Array:
    """Return a view whose dim 0 is that axis."""
    return np.moveaxis(tensor, axis, 0)


def _moved(block: Array, split_axis: int, concat_axis: int) -> Array:
    """Return, of a block whose dim 0 is ``split_axis``, a view whose dim 0 is ``concat_axis``."""
    return np.moveaxis(np.moveaxis(block, 0, split_axis), concat_axis, 0)


def alltoall(sends: Sequence[Array], split_axis: int = 0, concat_axis: int = 0) -> list[Array]:
    """Equal parts of ``split_axis``: part p of rank r becomes part r of rank p, along ``concat_axis``."""
    parts = [np.split(send, len(sends), split_axis) for send in sends]
    return [np.concatenate([part[rank] for part in parts], concat_axis) for rank in range(len(sends))]


def alltoall_list(sends: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """``sends[r][p]`` of rank r becomes entry r of rank p."""
    return [[np.array(entries[rank]) for entries in sends] for rank in range(len(sends))]


def allgather(sends: Sequence[Array]) -> list[Array]:
    """Every rank gets all parts, concatenated in rank order."""
    return [np.concatenate(list(sends)) for _ in sends]


def global_counts(local_counts: Matrix) -> IntArray:
    """Return the ``global_count`` of every rank from the ``local_count`` of every rank: the rows that r sends to expert
    e of p are those that p receives from r for its expert e."""
    local = np.asarray(local_counts, dtype=np.int64)
    ranks = len(local)
    result = np.empty_like(local)
    experts = local.shape[1] // ranks
    for rank in range(ranks):
        for source in range(ranks):
            for expert in range(experts):
                result[rank, source * experts + expert] = local[source, rank * experts + expert]
    return result


def global_scatter(xs: Sequence[Array], local_counts: Matrix) -> list[Array]:
    """Send rows packed by (rank, expert) to the experts' ranks, where they are packed by (expert, source rank)."""
    local = np.asarray(local_counts, dtype=np.int64)
    ranks, experts = len(xs), local.shape[1] // len(xs)
    at = packed(local)
    results = []
    for rank in range(ranks):
        rows = [xs[0][:0]]
        for expert in range(experts):
            for source in range(ranks):
                cell = rank * experts + expert
                rows.append(xs[source][at[source, cell] : at[source, cell] + local[source, cell]])
        results.append(np.concatenate(rows))
    return results


def global_gather(ys: Sequence[Array], local_counts: Matrix) -> list[Array]:
    """The inverse of global_scatter with the same counts."""
    local = np.asarray(local_counts, dtype=np.int64)
    ranks, experts = len(ys), local.shape[1] // len(ys)
    at = packed(local)
    results = [np.empty((int(row.sum()), *ys[0].shape[1:]), ys[0].dtype) for row in local]
    for rank in range(ranks):
        row = 0
        for expert in range(experts):
            for source in range(ranks):
                for k in range(local[source, rank * experts + expert]):
                    results[source][at[source, rank * experts + expert] + k] = ys[rank][row]
                    row += 1
    return results


def fold(arrays: Sequence[Array], op: str = "sum") -> Array:
    """((x0 op x1) op x2) ..., element by element: the result of a reduction of the arrays of ranks 0, 1, 2, ...

    float16, bfloat16 and float8 are folded in float32 and rounded once. Integers wrap. "avg" is the sum divided by the
    number of arrays. Of bool "sum" and "max" are "or", "prod" and "min" are "and". "min" and "max" give NaN where an
    array has one. A product of complex numbers is (ac - bd) + (ad + bc)i, each operation rounded."""
    dtype = arrays[0].dtype
    if dtype == np.bool_:
        op = {"sum": "bor", "max": "bor", "prod": "band", "min": "band"}.get(op, op)
    small = dtype.itemsize <= 2 and dtype.kind not in "iub"
    with np.errstate(all="ignore"):
        terms = [np.asarray(array).astype(np.float32) if small else np.asarray(array) for array in arrays]
        result = terms[0].copy()
        for term in terms[1:]:
            result = _FOLDS[op](result, term)
        if op == "avg":
            result = _divided(result, len(arrays))
        folded: Array = result.astype(dtype)
        return folded


def _product(a: Array, b: Array) -> Array:
    result: Array = np.empty_like(a)
    if a.dtype.kind != "c":
        np.multiply(a, b, out=result)
        return result
    result.real = a.real * b.real - a.imag * b.imag
    result.imag = a.real * b.imag + a.imag * b.real
    return result


def _divided(a: Array, by: int) -> Array:
    result: Array = np.empty_like(a)
    if a.dtype.kind != "c":
        np.divide(a, a.dtype.type(by), out=result)
        return result
    result.real, result.imag = a.real / a.real.dtype.type(by), a.imag / a.real.dtype.type(by)
    return result


_FOLDS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "premul_sum": np.add,  # of what the ranks have multiplied
    "avg": np.add,
    "prod": _product,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def allreduce(sends: Sequence[Array], op: str = "sum") -> list[Array]:
    """Every rank gets the fold of all."""
    return [fold(sends, op) for _ in sends]


def scan(sends: Sequence[Array], op: str = "sum") -> list[Array]:
    """Rank p gets the fold of ranks 0 to p."""
    return [fold(sends[: rank + 1], op) for rank in range(len(sends))]


def exscan(sends: Sequence[Array], op: str = "sum") -> list[Array | None]:
    """Rank p gets the fold of ranks 0 to p - 1; rank 0 nothing."""
    return [fold(sends[:rank], op) if rank else None for rank in range(len(sends))]


def reduce_scatter(sends: Sequence[Array], op: str = "sum", counts: Sequence[int] | None = None) -> list[Array]:
    """Rank p gets part p of the fold: equal parts of dim 0, or ``counts[p]`` rows."""
    edges = len(sends) if counts is None else np.cumsum(counts)[:-1]
    return np.split(fold(sends, op), edges)


def reduce(sends: Sequence[Array], root: int = 0, op: str = "sum") -> list[Array | None]:
    """The root gets the fold of all."""
    return [fold(sends, op) if rank == root else None for rank in range(len(sends))]


def broadcast(tensors: Sequence[Array], root: int = 0) -> list[Array]:
    """Every rank gets the root's tensor."""
    return [np.array(tensors[root]) for _ in tensors]


def gather(sends: Sequence[Array], root: int = 0) -> list[Array | None]:
    """The root gets all parts, concatenated in rank order."""
    return [np.concatenate(list(sends)) if rank == root else None for rank in range(len(sends))]


def scatter(send: Array, ranks: int) -> list[Array]:
    """Rank p gets part p of the root's tensor."""
    return np.split(send, ranks)


def allgatherv(sends: Sequence[Array], recvs: Sequence[Array], recv_displs: Sequence[int] | None = None) -> list[Array]:
    """Every rank gets all rows, those of rank p from row ``recv_displs[p]`` on. Other rows of ``recvs`` are
    unchanged."""
    counts = [len(send) for send in sends]
    displs = packed(np.array([counts]))[0] if recv_displs is None else recv_displs
    results = [np.array(recv) for recv in recvs]
    for result in results:
        for send, at in zip(sends, displs, strict=True):
            result[at : at + len(send)] = send
    return results


def reshard(sends: Sequence[Array | None], shape: Sequence[int], src: Sharding, dst: Sharding) -> list[Array | None]:
    """Every rank's part of a tensor in ``dst``, of all ranks' parts in ``src``; None where a rank is not in the mesh.
    Partial sums are folded in rank order. Of ranks with the same part the last one in the mesh counts."""
    partial = [isinstance(one, Partial) for one in src.placements]
    op = next((one.op for one in src.placements if isinstance(one, Partial)), "sum")
    copies: dict[tuple[int, ...], list[int]] = {}
    for place, rank in np.ndenumerate(src.mesh):
        copy = tuple(0 if folded else at for at, folded in zip(place, partial, strict=True))
        copies.setdefault(copy, []).append(int(rank))
    whole: Array = np.empty(shape, next(send.dtype for send in sends if send is not None))
    for ranks in copies.values():
        whole[src.box(ranks[0], shape)] = fold([np.asarray(sends[rank]) for rank in sorted(ranks)], op)
    boxes = [dst.box(rank, shape) for rank in range(len(sends))]
    return [None if box is None else whole[box].copy() for box in boxes]


def packed(counts: Matrix) -> IntArray:
    """Displacements of each row of ``counts`` without gaps."""
    matrix = np.asarray(counts, dtype=np.int64)
    return matrix.cumsum(axis=-1) - matrix


@dataclass(frozen=True)
class Case:
    """One random alltoallv. Row r belongs to rank r; counts and displacements are in rows."""

    send_counts: IntArray
    recv_counts: IntArray
    send_displs: IntArray
    recv_displs: IntArray
    send_rows: IntArray
    """The number of rows of each rank's send tensor."""
    recv_rows: IntArray


def random_counts(rng: np.random.Generator, ranks: int, max_rows: int, empty: float = 0.2) -> IntArray:
    """Draw ``counts[r, p]``, the rows from r to p: 0 with probability ``empty``, else small more often than large."""
    size = np.exp(rng.uniform(0, np.log(max_rows + 1), (ranks, ranks))).astype(np.int64)
    return np.where(rng.random((ranks, ranks)) < empty, 0, np.minimum(size, max_rows))


def random_case(
    rng: np.random.Generator, ranks: int, max_rows: int = 100, max_gap: int = 3, empty: float = 0.2
) -> Case:
    """Draw counts, with displacements in any order and with gaps: no two received ranges overlap. ``max_gap=0`` packs
    the ranges tightly, but still in a random order."""
    counts = random_counts(rng, ranks, max_rows, empty)
    received = np.ascontiguousarray(counts.T)
    send_displs, send_rows = _random_displs(rng, counts, max_gap)
    recv_displs, recv_rows = _random_displs(rng, received, max_gap)
    return Case(counts, received, send_displs, recv_displs, send_rows, recv_rows)


def _random_displs(rng: np.random.Generator, counts: IntArray, max_gap: int) -> tuple[IntArray, IntArray]:
    displs, rows = np.zeros_like(counts), np.zeros(len(counts), np.int64)
    for rank in range(len(counts)):
        at = 0
        for peer in rng.permutation(len(counts)):
            at += int(rng.integers(max_gap + 1))
            displs[rank, peer] = at
            at += int(counts[rank, peer])
        rows[rank] = at + int(rng.integers(max_gap + 1))
    return displs, rows


def random_array(rng: np.random.Generator, shape: int | Sequence[int], dtype: npt.DTypeLike) -> Array:
    """Draw random bit patterns, with NaN and denormals: an exchange has to keep all of them. bool has only its two."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    count = int(np.prod(sizes, dtype=np.int64))
    return rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(dtype).reshape(sizes)


def poison(array: Array) -> Array:
    """Fill a C-contiguous array with a byte that no test expects, and return it."""
    array.reshape(-1).view(np.uint8)[...] = POISON
    return array


def as_bytes(tensor: Any) -> npt.NDArray[np.uint8]:
    """Return the bytes of a host tensor of any framework in row-major order, as a flat array; a view where that is
    possible. Works for dtypes without a NumPy name, such as bfloat16."""
    framework = frameworks.of(type(tensor))
    return frameworks.bytes_of(tensor) if framework is None else framework.read(tensor)


def first_difference(actual: Any, expected: Any) -> str | None:
    """Compare two tensors bit for bit, NaN included. Returns None when they are equal; otherwise the first differing
    byte, both values, and how many bytes differ."""
    left, right = as_bytes(actual), as_bytes(expected)
    if left.size != right.size:
        return f"{left.size} bytes instead of {right.size}"
    different = np.flatnonzero(left != right)
    if different.size == 0:
        return None
    at = int(different[0])
    return f"byte {at} is {left[at]:#04x} instead of {right[at]:#04x}; {different.size} of {left.size} bytes differ"
