"""Runs one rank of ``a2a demo``: dispatch, scale per expert, combine, and compare with the same in one process."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import frameworks, moe, testing
from .._core import Communicator
from ..frameworks import Framework
from ..workloads import IntArray, Workload, route

Bits = npt.NDArray[Any]
"""Elements as bit patterns: uint16 for bfloat16, uint32 for float32."""


@dataclass(frozen=True)
class Job:
    """The same for all ranks."""

    layer: Workload
    frameworks: list[str]
    """The framework of each rank."""
    steps: int
    seed: int
    alpha: float

    @property
    def ranks(self) -> int:
        return len(self.frameworks)

    @property
    def bits_dtype(self) -> type[np.uint16] | type[np.uint32]:
        return np.uint16 if self.layer.dtype == "bfloat16" else np.uint32

    @property
    def row_bytes(self) -> int:
        return self.layer.hidden * np.dtype(self.bits_dtype).itemsize


@dataclass
class Report:
    """The report of one rank."""

    rank: int
    dispatch_seconds: list[float] = field(default_factory=list)
    combine_seconds: list[float] = field(default_factory=list)
    sent: list[IntArray] = field(default_factory=list)
    """For each step, tokens to each rank."""
    differences: list[str] = field(default_factory=list)
    compared_bytes: int = 0
    resident_bytes: int = 0

    def compare(self, what: str, actual: Any, expected: npt.NDArray[Any]) -> None:
        """Note the first difference between a tensor and the oracle's bits."""
        difference = testing.first_difference(actual, expected)
        self.compared_bytes += expected.nbytes
        if difference is not None:
            self.differences.append(f"{what}: {difference}")


def run_rank(comm: Communicator, job: Job) -> Report:
    report = Report(comm.rank)
    own = frameworks.load(job.frameworks[comm.rank])
    own.prepare(comm.rank)
    ep = moe.ExpertParallel(comm, job.layer.experts)
    for step in range(job.steps):
        _step(ep, own, job, step, report)
    report.resident_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return report


def _step(ep: moe.ExpertParallel, own: Framework, job: Job, step: int, report: Report) -> None:
    rank, expected = ep.comm.rank, Expected(job, step)
    x = _tensor(own, job.layer.dtype, expected.tokens(rank))
    choice = _tensor(own, "int32", expected.choice[rank])
    weights = _tensor(own, "float32", expected.weights[rank])
    ep.comm.barrier()
    started = time.perf_counter()
    routed = ep.dispatch(x, choice, weights)
    report.dispatch_seconds.append(time.perf_counter() - started)
    report.compare(f"step {step}: counts", routed.counts, expected.counts(rank))
    report.compare(f"step {step}: dispatched rows", routed.x, expected.dispatched(rank))

    y = routed.x * _tensor(own, job.layer.dtype, expected.factors(rank))
    ep.comm.barrier()
    started = time.perf_counter()
    back = ep.combine(y, routed)
    report.combine_seconds.append(time.perf_counter() - started)
    report.compare(f"step {step}: combined rows", back, expected.combined(rank))
    report.sent.append(expected.sent(rank))


def _tensor(own: Framework, dtype: str, bits: Bits) -> Any:
    return own.tensor(own.make(bits.reshape(-1).view(np.uint8)), 0, dtype, bits.shape)


class Expected:
    """One step of all ranks in one process: routing, tokens, and the expected results of every call, as bits."""

    def __init__(self, job: Job, step: int) -> None:
        self._job, self._step = job, step
        layer = job.layer
        chosen = route(layer, job.ranks, routing="zipf", seed=job.seed, step=step, alpha=job.alpha)
        self.choice = chosen.astype(np.int32)
        """[ranks, tokens, top_k]"""
        rng = np.random.default_rng([job.seed, step])
        self.weights = rng.dirichlet(np.ones(layer.top_k), chosen.shape[:2]).astype(np.float32)

    @property
    def _each(self) -> int:
        """The number of experts of a rank."""
        return self._job.layer.experts // self._job.ranks

    def _rows(self, rank: int) -> tuple[IntArray, IntArray, IntArray]:
        """Return expert, source and token of each row that arrives at the rank."""
        source, token, k = np.nonzero(self.choice // self._each == rank)
        expert = self.choice[source, token, k].astype(np.int64)
        order = np.argsort(expert, kind="stable")
        return expert[order], np.asarray(source[order], np.int64), np.asarray(token[order], np.int64)

    def counts(self, rank: int) -> IntArray:
        """Return the number of rows for each of the rank's experts."""
        return np.bincount(self._rows(rank)[0] - rank * self._each, minlength=self._each).astype(np.int64)

    def sent(self, rank: int) -> IntArray:
        """Return the number of tokens that go to each rank, each counted once."""
        ranks = self.choice[rank] // self._each
        return np.array([(ranks == peer).any(axis=1).sum() for peer in range(self._job.ranks)])

    def dispatched(self, rank: int) -> Bits:
        """Return the rows of the rank, by expert, source and token."""
        _, source, token = self._rows(rank)
        tokens: Bits = np.stack([self.tokens(peer) for peer in range(self._job.ranks)])
        return tokens[source, token]

    def factors(self, rank: int) -> Bits:
        """Return [rows, 1]: the factor of each row that arrives at the rank. Powers of two are the upper half of a
        float32 in bfloat16."""
        expert, _, _ = self._rows(rank)
        return self._bits_of(np.exp2(_exponents(expert)).astype(np.float32))[:, None]

    def combined(self, rank: int) -> Bits:
        """Return the weighted sums, in float32 and in the order of top-k, rounded once. No row is rounded, because
        factors are powers of two."""
        tokens, factors = self._floats_of(self.tokens(rank)), np.exp2(_exponents(self.choice[rank])).astype(np.float32)
        terms = [self.weights[rank][:, k, None] * (tokens * factors[:, k, None]) for k in range(self._job.layer.top_k)]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return self._bits_of(total)

    def tokens(self, rank: int) -> Bits:
        """Return [tokens, hidden] with random sign and mantissa, and an exponent far from overflow and from
        subnormals."""
        job = self._job
        rng = np.random.default_rng([job.seed, self._step, rank])
        dtype = job.bits_dtype
        shape = (job.layer.tokens, job.layer.hidden)
        raw: Bits = rng.integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)
        mantissa = _mantissa_bits(raw)
        exponent = 120 + ((raw >> mantissa) & 0xF)
        tokens: Bits = (raw & ~dtype(0xFF << mantissa)) | (exponent << mantissa).astype(dtype)
        return tokens

    def _floats_of(self, bits: Bits) -> npt.NDArray[np.float32]:
        wide = bits if self._job.bits_dtype == np.uint32 else bits.astype(np.uint32) << 16
        return wide.view(np.float32)

    def _bits_of(self, floats: npt.NDArray[np.float32]) -> Bits:
        """Round to nearest, ties to even."""
        bits = floats.view(np.uint32)
        if self._job.bits_dtype == np.uint32:
            return bits
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _exponents(experts: IntArray) -> IntArray:
    """Return (e mod 7) - 3 for expert e, which multiplies by two to this power. Every framework does that exactly."""
    return experts % 7 - 3


def _mantissa_bits(bits: Bits) -> int:
    return 7 if bits.dtype == np.uint16 else 23
