"""The cases of ``a2a bench --op dispatch`` and ``--op combine``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import moe
from .._core import Communicator
from ..workloads import IntArray, Workload, route

Array = npt.NDArray[Any]

_EXPERTS, _TOP_K, _ROW_BYTES = 8, 4, 4096  # of a rank, of a token, and the largest row, if there is no workload


def layer_of(size: int, dtype: np.dtype[Any], name: str, ranks: int) -> Workload:
    """Return a layer of which one rank sends ``size`` bytes, for a size in place of a workload."""
    hidden = max(1, min(_ROW_BYTES, size // _TOP_K) // dtype.itemsize)
    tokens = max(1, size // (_TOP_K * hidden * dtype.itemsize))
    return Workload("experts", hidden, _EXPERTS * ranks, _TOP_K, tokens, name)


class Step:
    """One step of a layer on one rank. Element h of token t of rank r is ``(31 t + 17 r + h) % 61 + key``, which every
    dtype has exactly."""

    def __init__(self, comm: Communicator, layer: Workload, dtype: np.dtype[Any], routing: str, seed: int) -> None:
        self.dtype, self.layer, self.rank = dtype, layer, comm.rank
        self.choice: IntArray = route(layer, comm.size, routing=routing, seed=seed)[comm.rank]
        self.weights = np.random.default_rng([seed, comm.rank]).random(self.choice.shape, np.float32)
        self.ep = moe.ExpertParallel(comm, layer.experts)
        self.x = self._values(np.stack([np.full(layer.tokens, comm.rank), np.arange(layer.tokens)], 1), 0)
        self.routed = self.ep.dispatch(self.x, self.choice, self.weights)
        self.rows = np.array(self.routed.x)

    def _values(self, source: Array, key: int) -> Array:
        of_token = source[:, 0] * 17 + source[:, 1] * 31
        values: Array = ((of_token[:, None] + np.arange(self.layer.hidden)) % 61 + key % 4).astype(self.dtype)
        return values

    def rewrite(self, key: int) -> None:
        """Write the tokens, and the experts' rows."""
        self.x[...] = self._values(np.stack([np.full(len(self.x), self.rank), np.arange(len(self.x))], 1), key)
        self.rows[...] = self._values(self.routed.source, key)

    def dispatched(self, key: int) -> Array:
        """Return the expected rows."""
        return self._values(self.routed.source, key)

    def combined(self, key: int) -> Array:
        """Return the expected sums: weight times token, summed in the order of top-k."""
        wide = np.float64 if self.dtype == np.float64 else np.float32
        tokens = self._values(np.stack([np.full(len(self.x), self.rank), np.arange(len(self.x))], 1), key).astype(wide)
        total = self.weights[:, 0, None].astype(wide) * tokens
        for k in range(1, self.layer.top_k):
            total = total + self.weights[:, k, None].astype(wide) * tokens
        result: Array = total.astype(self.dtype)
        return result
