"""The Python side of ``bare.cc``: which bytes are copied when."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cases import WORD, Case
from pattern import Words

_ALL_PIECES_BYTES = 512 << 10
"""Of the pieces that a rank puts for all peers together: what stays in its CPU's cache."""

_LINE_BYTES = 64

_AREA_BYTES = 8 << 30
"""Of a rank's tensors in shared memory; only what is written exists."""

_HEAD_BYTES = mmap.PAGESIZE
"""Of an area, before its tensors."""


class BareGroup:
    """Membership of a rank that has no library, with private arrays. The ranks are placed evenly on the CPUs: what they
    do shall be as fast as it can be."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._piece_bytes = max(4096, _ALL_PIECES_BYTES // size)
        self._library = ctypes.CDLL(os.environ["A2A_BENCH_BARE_LIBRARY"])
        self._library.bare_join.restype = ctypes.c_void_p
        self._library.bare_join.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_size_t]
        path = os.environ["A2A_BENCH_BARRIER_FILE"] + ".bare"
        member = self._library.bare_join(path.encode(), rank, size, self._piece_bytes + _LINE_BYTES)
        if not member:
            raise OSError(f"rank {rank} cannot map {path}")
        self._member = ctypes.c_void_p(member)
        _stay_on_one_cpu(rank)

    def prepare(self, case: Case, send: Words, recv: Words) -> Callable[[], object]:
        """The exchange as one foreign call."""
        alike = case.op == "allgather"
        blocks = case.matrix[self._rank]
        starts = np.zeros_like(blocks) if alike else np.cumsum(blocks) - blocks
        head = WORD if case.matrix.max() <= _LINE_BYTES - WORD else _LINE_BYTES
        puts, takes = (_Copies(self._size, self._piece_bytes, head) for _ in range(2))
        for peer in range(self._size):
            if peer != self._rank:
                puts.add_pieces((peer - self._rank) % self._size, int(starts[peer]), 0, int(blocks[peer]), put=True)
        for segment in case.segments(self._rank):
            block_byte, recv_byte, count = segment.block_word * WORD, segment.recv_word * WORD, segment.words * WORD
            if segment.source == self._rank:
                puts.add(0, 0, int(starts[self._rank]) + block_byte, recv_byte, count)
            else:
                takes.add_pieces((self._rank - segment.source) % self._size, block_byte, recv_byte, count, put=False)
        rounds = max(1, -(-int(case.matrix.max()) // self._piece_bytes))
        lists = (*puts.arguments(rounds), *takes.arguments(rounds))
        exchange = _Exchange(self._member, rounds, alike, *lists, send.ctypes.data, recv.ctypes.data)
        return partial(self._library.bare_exchange, ctypes.byref(exchange))


class BareSharedGroup:
    """The same with tensors in shared memory: each rank's are an area, a file in memory that all ranks map."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._yield = size > len(os.sched_getaffinity(0))
        self._library = ctypes.CDLL(os.environ["A2A_BENCH_BARE_LIBRARY"])
        self._round = ctypes.c_uint64(0)
        self._used = 0
        path = os.environ["A2A_BENCH_BARRIER_FILE"] + ".area-"
        own = os.memfd_create("bare")
        os.ftruncate(own, _AREA_BYTES)
        Path(f"{path}{rank}").symlink_to(f"/proc/{os.getpid()}/fd/{own}")
        self._maps = [mmap.mmap(_opened(f"{path}{peer}"), _AREA_BYTES) for peer in range(size)]
        starts = [ctypes.addressof(ctypes.c_char.from_buffer(area)) for area in self._maps]
        self._areas = (ctypes.c_void_p * size)(*starts)
        _stay_on_one_cpu(rank)

    def allocate(self, words: int, *, first: bool) -> Words:
        """A tensor behind the last one; the ``first`` of two takes the place of earlier ones. Its memory is given back
        when nobody has it any more."""
        start = _HEAD_BYTES if first else self._used
        self._used = _tensor_end(start, words)
        tensor = np.frombuffer(self._maps[self._rank], np.uint64, words, start)
        if words:
            area, size = self._maps[self._rank], self._used - start
            weakref.finalize(tensor, area.madvise, mmap.MADV_REMOVE, start, size)
        return tensor

    def prepare(self, case: Case, send: Words) -> Callable[[], object]:
        """The exchange as one foreign call. Outputs stand behind the inputs of their rank."""
        blocks = case.matrix[self._rank]
        starts = np.zeros_like(blocks) if case.op == "allgather" else np.cumsum(blocks) - blocks
        puts = _Copies(self._size, _AREA_BYTES, 0)
        for step in range(self._size):
            peer = (self._rank + step) % self._size
            recv = _tensor_end(_HEAD_BYTES, case.send_words(peer))
            for segment in (one for one in case.segments(peer) if one.source == self._rank):
                source = int(starts[peer]) + segment.block_word * WORD
                puts.add(0, step, source, recv + segment.recv_word * WORD, segment.words * WORD)
        where = (self._areas, self._rank, self._size, self._yield, ctypes.pointer(self._round))
        placing = _Placing(*where, *puts.arguments(1), send.ctypes.data)
        return partial(self._library.bare_place, ctypes.byref(placing))


def _stay_on_one_cpu(rank: int) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})


def _opened(path: str) -> int:
    """As soon as its owner has made it."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR)
        time.sleep(0.001)
    raise TimeoutError(f"{path} was not made")


def _tensor_end(start: int, words: int) -> int:
    return start + -(-words * WORD // mmap.PAGESIZE) * mmap.PAGESIZE


class _Placing(ctypes.Structure):
    """``Placing`` in ``bare.cc``."""

    _fields_ = (
        ("areas", ctypes.POINTER(ctypes.c_void_p)),
        ("rank", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("yield_", ctypes.c_int64),
        ("round", ctypes.POINTER(ctypes.c_uint64)),
        ("puts", ctypes.POINTER(ctypes.c_int64)),
        ("put_starts", ctypes.POINTER(ctypes.c_int64)),
        ("send", ctypes.c_void_p),
    )


class _Exchange(ctypes.Structure):
    """``Exchange`` in ``bare.cc``."""

    _fields_ = (
        ("member", ctypes.c_void_p),
        ("rounds", ctypes.c_int64),
        ("alike", ctypes.c_int64),
        ("puts", ctypes.POINTER(ctypes.c_int64)),
        ("put_starts", ctypes.POINTER(ctypes.c_int64)),
        ("takes", ctypes.POINTER(ctypes.c_int64)),
        ("take_starts", ctypes.POINTER(ctypes.c_int64)),
        ("send", ctypes.c_void_p),
        ("recv", ctypes.c_void_p),
    )


class _Copies:
    """From where to where how many bytes are copied in each step of each round."""

    def __init__(self, ranks: int, piece_bytes: int, head_bytes: int) -> None:
        self._ranks, self._piece_bytes, self._head_bytes = ranks, piece_bytes, head_bytes
        self._copies: list[tuple[int, int, int, int]] = []

    def add(self, round_: int, step: int, source: int, target: int, count: int) -> None:
        if count:
            self._copies.append((round_ * self._ranks + step, source, target, count))

    def add_pieces(self, step: int, source: int, target: int, count: int, *, put: bool) -> None:
        """``count`` bytes on their way through pieces, which one end of the copies lies in: their target where they are
        put, otherwise their source. There the place is that in the whole block."""
        while count:
            round_, offset = divmod(target if put else source, self._piece_bytes)
            part = min(count, self._piece_bytes - offset)
            offset += self._head_bytes
            self.add(round_, step, source if put else offset, offset if put else target, part)
            source, target, count = source + part, target + part, count - part

    def arguments(self, rounds: int) -> tuple[Any, ...]:
        """The list, and where each step begins in it, as long as the pointers live."""
        copies = np.array(sorted(self._copies), dtype=np.int64).reshape(-1, 4)
        starts = np.searchsorted(copies[:, 0], np.arange(rounds * self._ranks + 1))
        numbers = (np.append(copies[:, 1:].ravel(), 0), starts)
        return tuple(
            ctypes.cast((ctypes.c_int64 * array.size)(*array.tolist()), ctypes.POINTER(ctypes.c_int64))
            for array in numbers
        )
