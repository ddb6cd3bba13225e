"""What is exchanged: operations, sizes and layouts. Pure arithmetic, the same on every rank and for every contender."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from layers import PREFIX, Layer, expert_rows

WORD = 8
"""All parts are multiples of this many bytes, so that buffers can be written and checked as 64-bit words."""

EXPERTS_PER_RANK = 4
LARGEST_ROW = 14336
"""Bytes of a bfloat16 row of 7168 elements, the hidden size of DeepSeek-V3."""

ROUTINGS = {"global_scatter": "zipf", "global_scatter_uniform": "uniform", "global_scatter_hot": "hot"}
REDUCTIONS = ("allreduce", "reduce_scatter")
"""Sums of 64-bit integers: what arrives does not depend on the order, so all contenders have one right result."""
OPERATIONS = ("alltoall", "alltoallv", "alltoallv_skewed", "allgather", *REDUCTIONS, *ROUTINGS)

Integers = npt.NDArray[np.int64]


def checked_op(op: str) -> str:
    """``op`` if there is such an operation; raises ValueError otherwise."""
    if op.startswith(PREFIX):
        Layer.of_op(op, 1, WORD)
    elif op not in OPERATIONS:
        raise ValueError(f"op {op!r} is none of {', '.join(OPERATIONS)}, {PREFIX}ID")
    return op


@dataclass(frozen=True)
class Segment:
    """A run of words as it lands at its receiver: the words from ``block_word`` on of what ``source`` sends to it."""

    source: int
    block_word: int
    recv_word: int
    words: int


@dataclass(frozen=True)
class Case:
    """One operation between ``ranks`` ranks. ``size`` is in bytes per ordered pair of ranks (own part included); on
    average, where the parts differ. Of an allreduce it is in bytes of each rank's input."""

    op: str
    ranks: int
    size: int

    def __post_init__(self) -> None:
        checked_op(self.op)
        if self.ranks < 1 or self.size < WORD or self.size % WORD:
            raise ValueError(f"ranks {self.ranks} must be positive, size {self.size} a positive multiple of {WORD}")

    @cached_property
    def layer(self) -> Layer | None:
        """None unless rows are those of a layer of a model."""
        return Layer.of_op(self.op, self.ranks, self.size) if self.op.startswith(PREFIX) else None

    @property
    def unfit(self) -> str:
        """Why there is no such case; empty if there is."""
        return self.layer.unfit if self.layer else ""

    @property
    def routed(self) -> bool:
        return self.op in ROUTINGS or self.layer is not None

    @property
    def experts_per_rank(self) -> int:
        return int(self.expert_rows.shape[2])

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the tensor: one word, or one token where rows are routed to experts."""
        if self.layer:
            return self.layer.row_bytes
        return min(LARGEST_ROW, max(WORD, self.size // 8 // WORD * WORD)) if self.routed else WORD

    @cached_property
    def expert_rows(self) -> Integers:
        """Rows from each source to each expert of each destination, [source, destination, expert]."""
        if self.layer:
            return expert_rows(self.layer)
        rows = max(1, self.size // self.row_bytes) * self.ranks
        draw = np.random.default_rng((self.ranks, self.size)).multinomial(rows, self._popularity(), size=self.ranks)
        return draw.reshape(self.ranks, self.ranks, EXPERTS_PER_RANK)

    def _popularity(self) -> npt.NDArray[np.float64]:
        experts = self.ranks * EXPERTS_PER_RANK
        routing = ROUTINGS[self.op]
        if routing == "zipf":
            weights = np.random.default_rng(0).permutation(1.0 / np.arange(1, experts + 1) ** 1.2)
        elif routing == "hot":
            weights = np.where(np.arange(experts) < EXPERTS_PER_RANK, 4.0, 1.0)
        else:
            weights = np.ones(experts)
        return np.asarray(weights / weights.sum())

    @cached_property
    def matrix(self) -> Integers:
        """Bytes from each source to each destination, [source, destination]."""
        if self.routed:
            return np.asarray(self.expert_rows.sum(axis=2) * self.row_bytes)
        if self.op == "allreduce":  # what a rank reads of each other one, in two steps
            return np.full((self.ranks, self.ranks), 2 * self.size // self.ranks // WORD * WORD, dtype=np.int64)
        if self.op != "alltoallv_skewed":
            return np.full((self.ranks, self.ranks), self.size, dtype=np.int64)
        # The pattern of nccl-tests with spread 1: proportional to the distance, rounded down to 16 bytes.
        index = np.arange(self.ranks)
        distance = (index[None, :] - index[:, None]) % self.ranks
        total = self.size * self.ranks
        steps = max(1, self.ranks * (self.ranks - 1) // 2)
        return np.asarray(distance.astype(np.int64) * total // steps // 16 * 16)

    def send_words(self, rank: int) -> int:
        return (self.size if self.op in ("allgather", "allreduce") else int(self.matrix[rank].sum())) // WORD

    def recv_words(self, rank: int) -> int:
        if self.op in REDUCTIONS:
            return self.size // WORD
        return int(self.matrix[:, rank].sum()) // WORD

    @property
    def moved_bytes(self) -> int:
        """What the busiest rank sends or receives, own part included: the size that nccl-tests computes algbw from."""
        if self.op == "allreduce":
            return self.size
        if self.op == "allgather":
            return self.size * self.ranks
        return int(max(self.matrix.sum(axis=1).max(), self.matrix.sum(axis=0).max()))

    @property
    def memory_bytes(self) -> int:
        """What all ranks of one contender need for their buffers."""
        landings = 2 if self.routed else 1
        return WORD * sum(self.send_words(rank) + landings * self.recv_words(rank) for rank in range(self.ranks))

    def algbw(self, time_us: float) -> float:
        """GB/s."""
        return self.moved_bytes / time_us / 1e3

    def busbw(self, time_us: float) -> float:
        """GB/s that leave or enter a rank: algbw without the part that a rank keeps; of an allreduce twice that."""
        return self.algbw(time_us) * (self.ranks - 1) / self.ranks * (2 if self.op == "allreduce" else 1)

    def local_rows(self, rank: int) -> Integers:
        """global_scatter's ``local_count``: rows for expert e of rank r at [r * experts_per_rank + e]."""
        return np.asarray(self.expert_rows[rank].ravel())

    def global_rows(self, rank: int) -> Integers:
        """global_scatter's ``global_count``: rows from rank r for the own expert e at [r * experts_per_rank + e]."""
        return np.asarray(self.expert_rows[:, rank].ravel())

    def segments(self, rank: int) -> list[Segment]:
        """What ``rank`` receives, in the order of its output: by source, or by (expert, source) where routed."""
        blocks = self.matrix[:, rank] // WORD
        if not self.routed:
            starts = np.concatenate(([0], np.cumsum(blocks)))
            return [Segment(s, 0, int(starts[s]), int(blocks[s])) for s in range(self.ranks)]
        words = self.expert_rows[:, rank] * (self.row_bytes // WORD)
        before = np.cumsum(words, axis=1) - words
        result, recv_word = [], 0
        for expert in range(self.experts_per_rank):
            for source in range(self.ranks):
                count = int(words[source, expert])
                result.append(Segment(source, int(before[source, expert]), recv_word, count))
                recv_word += count
        return result

    def expert_order(self, rank: int) -> Integers:
        """The permutation of rows from (source, expert) order, as alltoallv delivers, to (expert, source) order."""
        rows = self.expert_rows[:, rank]
        first = (np.cumsum(rows) - rows.ravel()).reshape(rows.shape)
        runs = [
            np.arange(first[source, expert], first[source, expert] + rows[source, expert])
            for expert in range(self.experts_per_rank)
            for source in range(self.ranks)
        ]
        return np.concatenate(runs)
