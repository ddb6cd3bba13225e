"""What a rank does in ``a2a replay``."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .._core import Communicator, InvalidArgumentError, TcpBootstrap
from ..launch import init
from ..traffic import Matrix

Times = npt.NDArray[np.float64]

_PERIOD = 251
"""A prime: parts that are shifted, or are those of another pair, differ."""


def run_steps(comm: Communicator, matrices: Sequence[Matrix]) -> tuple[Times, int]:
    """Exchange the matrices one after another. Return for each one the time of the slowest rank, and how many bytes of
    all ranks were wrong."""
    rank = comm.rank
    most_sent = max((int(matrix[rank].sum()) for matrix in matrices), default=0)
    most_received = max((int(matrix[:, rank].sum()) for matrix in matrices), default=0)
    longest = max((int(matrix.max()) for matrix in matrices), default=0)
    pattern = np.resize(np.arange(_PERIOD, dtype=np.uint8), longest + _PERIOD)
    sent, received = np.empty(most_sent, np.uint8), np.empty(most_received, np.uint8)
    times, wrong = np.zeros(len(matrices)), 0
    for step, matrix in enumerate(matrices):
        to, from_ = matrix[rank].astype(np.int64), matrix[:, rank].astype(np.int64)
        _fill(sent, to, [_shift(step, rank, peer) for peer in range(comm.size)], pattern)
        received[: from_.sum()] = 0xFF
        comm.barrier()
        begin = time.perf_counter()
        comm.alltoallv(sent, to, received, from_)
        times[step] = time.perf_counter() - begin
        wrong += _differences(received, from_, [_shift(step, peer, rank) for peer in range(comm.size)], pattern)
    return _slowest(comm, times, wrong)


def run_over_tcp(
    comm: Communicator, matrices: Sequence[Matrix], hosts: Sequence[str], port: int, secret: bytes
) -> tuple[Times, int]:
    """The same over TCP: as if the ranks were on these hosts."""
    os.environ["A2A_HOSTS"] = ",".join(hosts)
    meeting = TcpBootstrap(comm.rank, comm.size, f"127.0.0.1:{port}", job=f"replay-{port}", secret=secret)
    with init(comm.rank, comm.size, bootstrap=meeting) as apart:
        return run_steps(apart, matrices)


def require_ranks(comm: Communicator, matrices: Sequence[Matrix]) -> None:
    for matrix in matrices:
        if len(matrix) != comm.size:
            raise InvalidArgumentError(f"replay: traffic of {len(matrix)} ranks with {comm.size}")


def _shift(step: int, sender: int, receiver: int) -> int:
    return (step * 31 + sender * 7 + receiver * 13) % _PERIOD


def _fill(
    sent: npt.NDArray[np.uint8], counts: npt.NDArray[np.int64], shifts: Sequence[int], pattern: npt.NDArray[np.uint8]
) -> None:
    at = 0
    for count, shift in zip(counts.tolist(), shifts, strict=True):
        sent[at : at + count] = pattern[shift : shift + count]
        at += count


def _differences(
    received: npt.NDArray[np.uint8],
    counts: npt.NDArray[np.int64],
    shifts: Sequence[int],
    pattern: npt.NDArray[np.uint8],
) -> int:
    at, wrong = 0, 0
    for count, shift in zip(counts.tolist(), shifts, strict=True):
        part, wanted = received[at : at + count], pattern[shift : shift + count]
        if not np.array_equal(part, wanted):
            wrong += int((part != wanted).sum())
        at += count
    return wrong


def _slowest(comm: Communicator, times: Times, wrong: int) -> tuple[Times, int]:
    mine = np.append(times, float(wrong))
    everybody = np.empty((comm.size, len(mine)))
    comm.allgather(mine.reshape(1, -1), everybody)
    return everybody[:, :-1].max(axis=0), int(everybody[:, -1].sum())
