"""What one rank of ``a2a demo`` does: dispatch, scale per expert, combine, and compare with the oracle."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import frameworks, testing
from .._core import Communicator
from ..frameworks import Framework
from ..workloads import IntArray, Workload, dispatch_order, expert_counts, route

Bits = npt.NDArray[Any]
"""Elements as bit patterns: uint16 for bfloat16, uint32 for float32."""


@dataclass(frozen=True)
class Job:
    """The same for all ranks."""

    layer: Workload
    frameworks: list[str]
    """Of each rank."""
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
    """What one rank has to tell."""

    rank: int
    dispatch_seconds: list[float] = field(default_factory=list)
    combine_seconds: list[float] = field(default_factory=list)
    counts: list[IntArray] = field(default_factory=list)
    """For each step, rows to each expert."""
    differences: list[str] = field(default_factory=list)
    compared_bytes: int = 0
    resident_bytes: int = 0

    def compare(self, what: str, actual: Any, expected: npt.NDArray[Any]) -> None:
        """Notes the first difference between a tensor and the oracle's bits."""
        difference = testing.first_difference(actual, expected)
        self.compared_bytes += expected.nbytes
        if difference is not None:
            self.differences.append(f"{what}: {difference}")


def run_rank(comm: Communicator, job: Job) -> Report:
    report = Report(comm.rank)
    own = frameworks.load(job.frameworks[comm.rank])
    own.prepare(comm.rank)
    for step in range(job.steps):
        _step(comm, own, job, step, report)
    report.resident_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return report


def _step(comm: Communicator, own: Framework, job: Job, step: int, report: Report) -> None:
    expected = Expected(job, step)
    local_count = expected.local_counts[comm.rank]
    global_count = np.empty_like(local_count)
    comm.alltoall(local_count, global_count)
    report.compare(f"step {step}: counts", global_count, expected.global_count(comm.rank))

    x = _tensor(own, job.layer.dtype, expected.packed_tokens(comm.rank))
    comm.barrier()
    started = time.perf_counter()
    arrived = comm.global_scatter(x, local_count, global_count)
    report.dispatch_seconds.append(time.perf_counter() - started)
    report.compare(f"step {step}: dispatched rows", arrived, expected.scattered(comm.rank))

    y = arrived * _tensor(own, job.layer.dtype, expected.factors(comm.rank))
    comm.barrier()
    started = time.perf_counter()
    back = comm.global_gather(y, local_count, global_count)
    report.combine_seconds.append(time.perf_counter() - started)
    report.compare(f"step {step}: combined rows", back, expected.combined(comm.rank))
    report.counts.append(local_count)


def _tensor(own: Framework, dtype: str, bits: Bits) -> Any:
    return own.tensor(own.make(bits.reshape(-1).view(np.uint8)), 0, dtype, bits.shape)


class Expected:
    """One step of all ranks in one process: routing, tokens, and the oracle's result of each operation as bits."""

    def __init__(self, job: Job, step: int) -> None:
        self._job, self._step = job, step
        layer = job.layer
        self._choice = route(layer, job.ranks, routing="zipf", seed=job.seed, step=step, alpha=job.alpha)
        self.local_counts = np.stack([expert_counts(choice, layer.experts) for choice in self._choice])

    def global_count(self, rank: int) -> IntArray:
        return np.asarray(testing.global_counts(self.local_counts)[rank])

    def packed_tokens(self, rank: int) -> Bits:
        """The rank's token copies, packed by (rank, expert)."""
        order = dispatch_order(self._choice[rank])
        return self._tokens(rank)[order // self._job.layer.top_k]

    def scattered(self, rank: int) -> Bits:
        packed = [self.packed_tokens(source) for source in range(self._job.ranks)]
        return testing.global_scatter(packed, self.local_counts)[rank]

    def factors(self, rank: int) -> Bits:
        """[rows, 1]: what each row that arrives at the rank is multiplied with. Powers of two are the upper half of a
        float32 in bfloat16."""
        experts = np.arange(self._job.layer.experts).reshape(self._job.ranks, -1)[rank]
        rows = self.local_counts[:, experts].sum(axis=0)
        bits: Bits = np.exp2(np.repeat(_exponents(experts), rows)).astype(np.float32).view(np.uint32)[:, None]
        return bits if self._job.bits_dtype == np.uint32 else (bits >> 16).astype(np.uint16)

    def combined(self, rank: int) -> Bits:
        """What comes back: every token copy times its expert's factor. Done on the bits, independent of any framework:
        a power of two is added to the exponent field."""
        tokens = self.packed_tokens(rank)
        experts = np.repeat(np.arange(self._job.layer.experts), self.local_counts[rank])
        shift = _exponents(experts) << _mantissa_bits(tokens)
        scaled: Bits = tokens + shift[:, None].astype(tokens.dtype)  # wraps around as it should for negative shifts
        return scaled

    def _tokens(self, rank: int) -> Bits:
        """[tokens, hidden] with random sign and mantissa, and an exponent far from overflow and from subnormals."""
        job = self._job
        rng = np.random.default_rng([job.seed, self._step, rank])
        dtype = job.bits_dtype
        shape = (job.layer.tokens, job.layer.hidden)
        raw: Bits = rng.integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)
        mantissa = _mantissa_bits(raw)
        exponent = 120 + ((raw >> mantissa) & 0xF)
        tokens: Bits = (raw & ~dtype(0xFF << mantissa)) | (exponent << mantissa).astype(dtype)
        return tokens


def _exponents(experts: IntArray) -> IntArray:
    """Expert e multiplies by two to the power of (e mod 7) - 3, which every framework does exactly."""
    return experts % 7 - 3


def _mantissa_bits(bits: Bits) -> int:
    return 7 if bits.dtype == np.uint16 else 23
