"""Cases of reductions, of operations with a root and of allgatherv: what each rank sends, and what the oracle says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import testing

if TYPE_CHECKING:
    from .cases import Case

__all__ = ["COLLECTIVES", "from_numbers", "numbers", "to_numbers"]

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
Shapes = Callable[["Case", int], list[Shape]]
"""Return the shapes of a rank's tensors of one direction: one, or none where the rank has no such tensor."""


@dataclass(frozen=True)
class Collective:
    sends: Shapes
    recvs: Shapes
    oracle: Callable[[Case, list[Array]], Sequence[Array | None]]
    """Return every rank's output from every rank's input. None: the output stays as it is, or there is none."""


def _own(case: Case, rank: int) -> list[Shape]:
    return [case.shape]


def _of_all(case: Case, rank: int) -> list[Shape]:
    """``shape`` of each rank, one after another."""
    first, *rest = case.shape
    return [(case.ranks * first, *rest)]


def _counted(case: Case, rank: int) -> list[Shape]:
    return [(case.counts[rank], *case.shape[1:])]


def _counted_of_all(case: Case, rank: int) -> list[Shape]:
    return [(sum(case.counts), *case.shape[1:])]


def _at_root(shapes: Shapes) -> Shapes:
    return lambda case, rank: shapes(case, rank) if rank == case.root else []


def _elsewhere(shapes: Shapes) -> Shapes:
    return lambda case, rank: shapes(case, rank) if rank != case.root else []


COLLECTIVES = {
    "allreduce": Collective(_own, _own, lambda case, xs: testing.allreduce(xs, case.fold)),
    "scan": Collective(_own, _own, lambda case, xs: testing.scan(xs, case.fold)),
    "exscan": Collective(_own, _own, lambda case, xs: testing.exscan(xs, case.fold)),
    "reduce_scatter": Collective(_of_all, _own, lambda case, xs: testing.reduce_scatter(xs, case.fold)),
    "reduce_scatterv": Collective(
        _counted_of_all, _counted, lambda case, xs: testing.reduce_scatter(xs, case.fold, case.counts)
    ),
    "reduce": Collective(_own, _at_root(_own), lambda case, xs: testing.reduce(xs, case.root, case.fold)),
    "broadcast": Collective(_at_root(_own), _elsewhere(_own), lambda case, xs: testing.broadcast(xs, case.root)),
    "gather": Collective(_own, _at_root(_of_all), lambda case, xs: testing.gather(xs, case.root)),
    "scatter": Collective(_at_root(_of_all), _own, lambda case, xs: testing.scatter(xs[case.root], case.ranks)),
    "allgatherv": Collective(_counted, _counted_of_all, lambda case, xs: testing.allgather(xs)),
}
"""By the name of the method of Communicator, which has the same arguments."""


# ---- the elements that are folded ------------------------------------------------------------------------------------
#
# Every fold of these is exact, in any order: hosts fold their own ranks first, and devices as they like.


def numbers(dtype: str, fold: str, rank: int, shape: Shape) -> Array:
    """Return a rank's elements as numbers; see to_numbers()."""
    k = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    value = (7 * k + 5 * rank + (k >> 3)) % 5
    if fold in ("band", "bor", "bxor"):
        value = (131 * rank + 7 * k + 1) % 251
    elif fold == "prod":
        value = value % 2 + 1
    elif fold in ("min", "max") and not dtype.startswith(("u", "bool")):
        value = value - 2
    if dtype == "bool":
        return (value % 2).astype(dtype)
    if dtype.startswith("complex"):
        return (value + 1j * (value % 2)).astype(dtype)
    return value.astype("float32" if dtype == "bfloat16" else dtype)


def to_numbers(raw: Array, dtype: str) -> Array:
    """Return elements as NumPy folds them. bfloat16, which NumPy does not have, is float32 until it is rounded."""
    if dtype == "bfloat16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return raw.view(dtype)


def from_numbers(array: Array, dtype: str) -> Array:
    """Return the bits of the elements, rounded to the nearest bfloat16, or the even one of two."""
    array = np.ascontiguousarray(array)
    if dtype == "bfloat16":
        bits = array.view(np.uint32)
        array = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return array.view(f"V{array.dtype.itemsize}")
