"""Layers of models as operations: ``workload:dsv3-decode`` routes rows as ``a2a bench --workload dsv3-decode`` does,
``workload:dsv3-decode:uniform`` by another rule than Zipf's. Tokens are scaled; rows, experts and skew stay."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PREFIX = "workload:"
ROUTINGS = ("zipf", "uniform", "log-normal", "k_hot", "hot_rank")
_SOURCE = Path(__file__).resolve().parent.parent / "python" / "a2a" / "workloads.py"


def _load_workloads() -> Any:
    """a2a.workloads from its file: the peers' environments have no a2a, and it needs NumPy only."""
    spec = importlib.util.spec_from_file_location("workloads", _SOURCE)
    assert spec and spec.loader
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


workloads = _load_workloads()


@dataclass(frozen=True)
class Layer:
    """The rows that one layer sends between ``ranks`` ranks."""

    workload: Any
    routing: str
    ranks: int
    row_bytes: int

    @staticmethod
    def of_op(op: str, ranks: int, size: int) -> Layer:
        """With as many tokens as make about ``size`` bytes for each pair of ranks. Raises ValueError with the names
        that there are."""
        name, _, routing = op.removeprefix(PREFIX).partition(":")
        if routing and routing not in ROUTINGS:
            raise ValueError(f"op {op!r}: the routing is none of {', '.join(ROUTINGS)}")
        workload = workloads.workload(name)
        row_bytes = workload.bytes_per_rank // (workload.tokens * workload.top_k)
        tokens = round(size * ranks / (row_bytes * workload.top_k))
        return Layer(replace(workload, tokens=tokens), routing or ROUTINGS[0], ranks, row_bytes)

    @property
    def unfit(self) -> str:
        """Why it cannot be run; empty if it can."""
        if self.workload.experts % self.ranks:
            return f"{self.workload.experts} experts do not divide among {self.ranks} ranks"
        least = self.row_bytes * self.workload.top_k // self.ranks
        return "" if self.workload.tokens else f"one token of each rank makes {least} bytes"


@cache  # A large layer takes a second, and every round asks again.
def expert_rows(layer: Layer) -> npt.NDArray[np.int64]:
    """Rows from each source to each expert of each destination, [source, destination, expert]."""
    choice = workloads.route(layer.workload, layer.ranks, routing=layer.routing)
    rows = np.stack([workloads.expert_counts(own, layer.workload.experts) for own in choice])
    return rows.reshape(layer.ranks, layer.ranks, -1)
