"""More than 2 GiB and more than 2**31 elements between two ranks. Takes minutes and 9 GiB of memory, so it runs only
with A2A_TEST_LARGE=1."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_ranks import with_thresholds

import a2a
from a2a import _spawn, testing

ELEMENTS = 2**31 + 4097
STEP = 1 << 22
GUARD = 5


def available_gib() -> float:
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) / 2**20


pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("A2A_TEST_LARGE") != "1", reason="large: set A2A_TEST_LARGE=1"),
    pytest.mark.skipif(available_gib() < 9, reason="large: needs 9 GiB of memory"),
]


def pattern(start: int, stop: int) -> Any:
    """Bytes that differ from any shifted or wrapped copy of themselves."""
    numbers = np.arange(start, stop, dtype=np.uint64)
    numbers *= np.uint64(0x9E3779B97F4A7C15)
    numbers ^= numbers >> np.uint64(29)
    return numbers.astype(np.uint8)


def fill(flat: Any) -> None:
    for start in range(0, flat.size, STEP):
        part = flat[start : start + STEP]
        part[...] = pattern(start, start + part.size)


def first_wrong(flat: Any) -> str | None:
    for start in range(0, flat.size, STEP):
        part = flat[start : start + STEP]
        if difference := testing.first_difference(part, pattern(start, start + part.size)):
            return f"from byte {start}: {difference}"
    return None


def run_bytes(comm: a2a.Communicator, path: str, shared: bool) -> None:
    """Rank 0 sends all it has to rank 1, which sends three bytes back; displacements lie beyond 2**31, too."""
    with with_thresholds(comm, path) as group:
        size = ELEMENTS if comm.rank == 0 else 3
        send = group.empty(size, "uint8") if shared else np.empty(size, np.uint8)
        fill(send)
        other = 3 if comm.rank == 0 else ELEMENTS
        recv = np.empty(other + 2 * GUARD, np.uint8)
        testing.poison(recv[:GUARD]), testing.poison(recv[-GUARD:])
        to, from_ = ([0, size], [0, other]) if comm.rank == 0 else ([size, 0], [other, 0])
        at = GUARD if comm.rank else 0
        group.alltoallv(send, to, recv, from_, [0, 0], [at, GUARD])
        assert first_wrong(recv[GUARD:-GUARD]) is None
        assert set(recv[:GUARD]) == set(recv[-GUARD:]) == {testing.POISON}


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
@pytest.mark.parametrize("path", ["default", "staged"])
def test_elements_of_one_byte(path: str, shared: bool) -> None:
    _spawn.spawn(run_bytes, 2, path, shared, timeout=550)


def test_between_threads() -> None:
    _spawn.spawn(run_bytes, 2, "default", False, threads=True, timeout=550)


def run_rows(comm: a2a.Communicator) -> None:
    """A few rows of 512 MiB, with counts that look small, and half of the rows to the sender itself."""
    row, rows = 1 << 27, 5  # 512 MiB, 2.5 GiB
    counts = [[2, rows], [0, 1]]
    send = np.empty((sum(counts[comm.rank]), row), np.float32)
    fill(send.reshape(-1).view(np.uint8))
    recv_counts = [row[comm.rank] for row in counts]
    recv = np.empty((sum(recv_counts), row), np.float32)
    comm.alltoallv(send, counts[comm.rank], recv, recv_counts)
    flat = recv.reshape(-1).view(np.uint8)
    if comm.rank == 0:
        assert first_wrong(flat) is None
        return
    # Rows 2.. of rank 0, then the first of this rank.
    sent = 4 * row
    for start in range(0, rows * sent, STEP):
        expected = pattern(2 * sent + start, 2 * sent + start + STEP)
        assert testing.first_difference(flat[start : start + STEP], expected) is None, start
    assert first_wrong(flat[rows * sent :]) is None


def test_rows_of_many_bytes() -> None:
    _spawn.spawn(run_rows, 2, timeout=550)


def run_exchange(comm: a2a.Communicator) -> None:
    """Counts that are negotiated, and an output that is allocated."""
    size = ELEMENTS if comm.rank == 0 else 3
    send = np.empty(size, np.uint8)
    fill(send)
    recv, counts = comm.exchange(send, [0, size] if comm.rank == 0 else [size, 0])
    assert counts.tolist() == ([0, 3] if comm.rank == 0 else [ELEMENTS, 0])
    assert first_wrong(recv) is None


def test_negotiated() -> None:
    _spawn.spawn(run_exchange, 2, timeout=550)
