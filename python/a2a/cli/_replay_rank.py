"""What a rank does in ``a2a replay``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from .._core import Communicator, TcpBootstrap
from ..launch import init
from ..traffic import Matrix

Times = npt.NDArray[np.float64]

_PERIOD = 251
"""A prime: parts that are shifted, or are those of another pair, differ."""
_PIECE = _PERIOD << 12
_PATTERN = np.resize(np.arange(_PERIOD, dtype=np.uint8), _PIECE + _PERIOD)


def run_steps(comm: Communicator, matrices: Sequence[Matrix]) -> tuple[Times, int]:
    """Exchange the matrices one after another. Return for each one the time of the slowest rank, and how many bytes of
    all ranks were wrong."""
    rank = comm.rank
    most_sent = max((int(matrix[rank].sum()) for matrix in matrices), default=0)
    most_received = max((int(matrix[:, rank].sum()) for matrix in matrices), default=0)
    sent, received = np.empty(most_sent, np.uint8), np.empty(most_received, np.uint8)
    times, wrong = np.zeros(len(matrices)), 0
    for step, matrix in enumerate(matrices):
        to, from_ = matrix[rank].astype(np.int64), matrix[:, rank].astype(np.int64)
        _fill(sent, to, [_shift(step, rank, peer) for peer in range(comm.size)])
        received[: from_.sum()] = 0xFF
        comm.barrier()
        begin = time.perf_counter()
        comm.alltoallv(sent, to, received, from_)
        times[step] = time.perf_counter() - begin
        wrong += _differences(received, from_, [_shift(step, peer, rank) for peer in range(comm.size)])
    return _slowest(comm, times, wrong)


def run_over_tcp(
    comm: Communicator, matrices: Sequence[Matrix], hosts: Sequence[str], port: int, secret: bytes
) -> tuple[Times, int]:
    """The same over TCP: as if the ranks were on these hosts."""
    os.environ["A2A_HOSTS"] = ",".join(hosts)
    meeting = TcpBootstrap(comm.rank, comm.size, f"127.0.0.1:{port}", job=f"replay-{port}", secret=secret)
    with init(comm.rank, comm.size, bootstrap=meeting) as apart:
        return run_steps(apart, matrices)


def _shift(step: int, sender: int, receiver: int) -> int:
    return (step * 31 + sender * 7 + receiver * 13) % _PERIOD


def _parts(
    tensor: npt.NDArray[np.uint8], counts: npt.NDArray[np.int64], shifts: Sequence[int]
) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]]:
    """Pieces of the tensor, part by part, and the bytes that belong there."""
    at = 0
    for count, shift in zip(counts.tolist(), shifts, strict=True):
        pattern = _PATTERN[shift:]
        for begin in range(0, count, _PIECE):
            nbytes = min(_PIECE, count - begin)
            yield tensor[at + begin : at + begin + nbytes], pattern[:nbytes]
        at += count


def _fill(sent: npt.NDArray[np.uint8], counts: npt.NDArray[np.int64], shifts: Sequence[int]) -> None:
    for part, wanted in _parts(sent, counts, shifts):
        part[:] = wanted


def _differences(received: npt.NDArray[np.uint8], counts: npt.NDArray[np.int64], shifts: Sequence[int]) -> int:
    return sum(int(np.count_nonzero(part != wanted)) for part, wanted in _parts(received, counts, shifts))


def _slowest(comm: Communicator, times: Times, wrong: int) -> tuple[Times, int]:
    mine = np.append(times, float(wrong))
    everybody = np.empty((comm.size, len(mine)))
    comm.allgather(mine.reshape(1, -1), everybody)
    return everybody[:, :-1].max(axis=0), int(everybody[:, -1].sum())
