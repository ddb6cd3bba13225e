"""Bytes that tell where they come from: every word is a function of source, destination, position and iteration."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from cases import REDUCTIONS, Case, Segment

Words = npt.NDArray[np.uint64]
_MASK = (1 << 64) - 1
_CHUNK = 1 << 15
_RAMP = np.arange(_CHUNK, dtype=np.uint64)


def first_word(source: int, destination: int) -> int:
    """Blocks of different pairs never share a word, as long as a block has fewer than 2**40 words."""
    return (source * 4096 + destination + 1) << 40


class Pattern:
    """What one rank sends and must receive. The send buffer starts as iteration 0; each further iteration adds 1 to
    every word."""

    def __init__(self, case: Case, rank: int) -> None:
        self._case = case
        self._rank = rank
        alike = case.op in ("allgather", "allreduce")
        self._first = [first_word(s, 0 if alike else rank) for s in range(case.ranks)]
        self._words = case.recv_words(rank)
        # How many inputs each word of the output is the sum of.
        self._terms = case.ranks if case.op in REDUCTIONS else 1
        if self._terms > 1:
            self._segments = [Segment(source, 0, 0, self._words) for source in range(case.ranks)]
        else:
            self._segments = case.segments(rank)
        self._sum = sum(self._segment_sum(s.source, s.block_word, s.words) for s in self._segments)

    def fill(self, send: Words) -> None:
        case, start = self._case, 0
        alike = case.op in ("allgather", "allreduce")
        blocks = [send.size] if alike else [int(b) // 8 for b in case.matrix[self._rank]]
        for destination, words in enumerate(blocks):
            block = send[start : start + words]
            for chunk in range(0, words, _CHUNK):
                part = block[chunk : chunk + _CHUNK]
                np.add(_RAMP[: part.size], np.uint64(first_word(self._rank, destination) + chunk), out=part)
            start += words

    def checksum(self, iteration: int) -> int:
        """The sum of all words that this rank receives, modulo 2**64."""
        return (self._sum + self._words * self._terms * iteration) & _MASK

    def wrong_words(self, recv: Words, iteration: int) -> int:
        """How many words are not the one that belongs at their position."""
        if self._terms > 1:
            return self._wrong_sums(recv, iteration)
        wrong = 0
        for segment in self._segments:
            block = recv[segment.recv_word : segment.recv_word + segment.words]
            first = self._first[segment.source] + segment.block_word + iteration
            for chunk in range(0, segment.words, _CHUNK):
                part = block[chunk : chunk + _CHUNK]
                wrong += int(np.count_nonzero(part - _RAMP[: part.size] != np.uint64(first + chunk)))
        return wrong

    def _wrong_sums(self, recv: Words, iteration: int) -> int:
        first = sum(self._first) + self._terms * iteration
        wrong = 0
        for chunk in range(0, self._words, _CHUNK):
            part = recv[chunk : chunk + _CHUNK]
            expected = _RAMP[: part.size] * np.uint64(self._terms) + np.uint64((first + self._terms * chunk) & _MASK)
            wrong += int(np.count_nonzero(part != expected))
        return wrong

    def _segment_sum(self, source: int, block_word: int, words: int) -> int:
        return words * (self._first[source] + block_word) + words * (words - 1) // 2
