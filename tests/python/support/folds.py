"""Dtypes, operations and values of the tests of reductions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from a2a import testing

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
COMPLEX = ["complex64", "complex128"]
OPS = ["sum", "prod", "min", "max", "avg", "band", "bor", "bxor"]


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def defined(op: str, dtype: str) -> bool:
    if op in ("band", "bor", "bxor"):
        return dtype in INTEGERS or dtype == "bool"
    if op == "avg":
        return dtype in FLOATS + COMPLEX
    return op in ("sum", "prod") or dtype not in COMPLEX


def values(rank: int, size: int, elems: int, dtype: str) -> list[np.ndarray[Any, Any]]:
    """Every rank's elements: none is zero, so that signs of zeros do not matter."""
    rng = np.random.default_rng(elems)
    if dtype == "bool":
        return [rng.integers(0, 2, elems).astype(bool) for _ in range(size)]
    if dtype in COMPLEX:
        parts = [rng.uniform(0.5, 2, (2, elems)) for _ in range(size)]
        return [(re + 1j * im).astype(dtype) for re, im in parts]
    if dtype in FLOATS:
        return [rng.uniform(0.5, 2, elems).astype(dtype_of(dtype)) for _ in range(size)]
    return [rng.integers(1, 100, elems).astype(dtype) for _ in range(size)]


def check(actual: Any, expected: Any, what: str) -> None:
    difference = testing.first_difference(actual, expected)
    assert difference is None, f"{what}: {difference}"
