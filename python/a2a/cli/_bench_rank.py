"""Runs one rank of ``a2a bench``. An operation is a case: arrays, a call, and the oracle's result."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import testing
from .._core import Communicator, UnsupportedError, host_facts
from ..workloads import IntArray, Workload, expert_counts, route
from ._bench_experts import Step, layer_of

OPERATIONS = ("alltoall", "alltoallv", "allgather", "global_scatter", "dispatch", "combine")
PEER_OPERATIONS = ("alltoall", "alltoallv", "allgather")
"""What torch.distributed has, too."""
# Without a workload: experts of a rank, and the largest row.
_EXPERTS = 4
_ROW_BYTES = 4096

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Sweep:
    """The measurements to make; the same for all ranks."""

    operation: str
    sizes: list[int]
    dtypes: list[str]
    iterations: int
    warmup: int
    checks: int
    seed: int
    layer: Workload | None
    routing: str
    peer_store: str = ""
    """The file in which the ranks meet for Gloo; "" unless it is measured, too."""


@dataclass
class Row:
    """One line of the table. Times in microseconds, bandwidths in GB/s."""

    name: str
    size: int
    count: int
    type: str
    time: float
    p50: float
    p99: float
    copy: float | None
    """The median of a copy alone: every rank copies as many bytes as it receives out of another's shared memory. None
    between hosts."""
    gloo: float | None
    """The median of torch.distributed on Gloo; None unless measured."""
    algbw: float
    busbw: float
    wrong: int
    messages: int
    """The bytes that all ranks together send between hosts for one call."""


@dataclass
class Case:
    """One operation on one size."""

    name: str
    size: int
    count: int
    dtype: str
    send: Array
    recv: Array
    expected: npt.NDArray[np.uint8]
    """The expected bytes of ``recv`` for the seeded bytes of ``send``."""
    call: Callable[[], object]
    step: Step | None = None
    """For tokens: the object that rewrites them and knows the expected result. ``recv`` is the result of the call."""
    splits: tuple[list[int], list[int]] | None = None
    """The bytes to and from each rank, where one exchange moves them."""


def header() -> list[str]:
    return ["size", "count", "type", "time", "p50", "p99", "copy", "gloo", "algbw", "busbw", "#wrong", "messages"]


def run_rank(comm: Communicator, sweep: Sweep) -> list[Row]:
    """Make all measurements; rank 0 prints each line when it is known. All ranks return the same rows."""
    several = host_facts(comm)["hosts"] > 1
    if comm.rank == 0:
        what = f" {sweep.layer.id}, {sweep.routing} routing," if sweep.layer else ""
        print(f"# {sweep.operation},{what} {comm.size} ranks, {sweep.iterations} iterations, {sweep.warmup} warm-up")
        print(_heads(sweep, several))
    peer = _Gloo(comm, sweep.peer_store) if sweep.peer_store else None
    rows = []
    for dtype in [sweep.layer.dtype] if sweep.layer else sweep.dtypes:
        for size in [0] if sweep.layer else sweep.sizes:
            row = _measure(comm, _case(comm, sweep, size, dtype), sweep, peer)
            rows.append(row)
            if comm.rank == 0:
                print(_line(row, several), flush=True)
    if peer:
        peer.close()
    return rows


def _heads(sweep: Sweep, several: bool) -> str:
    floor, peer = ("" if several else "    copy p50"), ("    gloo p50" if sweep.peer_store else "")
    times = f"   time us         p50         p99{floor}{peer}"
    return f"#     size       count        type {times}   algbw   busbw  #wrong" + ("    msgs" if several else "")


def _line(row: Row, several: bool) -> str:
    times = "".join(f" {us:11.2f}" for us in (row.p50, row.p99, row.copy, row.gloo) if us is not None)
    line = f"{row.size:10} {row.count:11} {row.type:>11} {row.time:10.2f}{times}"
    return f"{line} {row.algbw:7.2f} {row.busbw:7.2f} {row.wrong:7}" + (f" {row.messages:7}" if several else "")


def _measure(comm: Communicator, case: Case, sweep: Sweep, peer: _Gloo | None) -> Row:
    base = None if case.step else case.send.view(np.uint8).copy()
    slowest = _slowest(comm, sweep, case.call, lambda key: _rewrite(case, base, key))
    wrong = sum(_check(comm, case, base, key) for key in range(sweep.checks))
    before = host_facts(comm)["messages"]
    case.call()
    messages = host_facts(comm)["messages"] - before
    totals = np.empty((comm.size, 2), np.int64)
    comm.allgather(np.array([wrong, messages]), totals)
    copy = None if host_facts(comm)["hosts"] > 1 else _copy(comm, case, sweep)
    gloo = None
    if peer:
        gloo = float(np.median(_slowest(comm, sweep, peer.exchange(case), lambda key: _rewrite(case, base, key))))
    mean = float(slowest.mean())
    algbw = case.size / mean / 1e3
    return Row(
        case.name, case.size, case.count, case.dtype, mean, float(np.percentile(slowest, 50)),
        float(np.percentile(slowest, 99)), copy, gloo, algbw,
        algbw * (comm.size - 1) / comm.size, *totals.sum(axis=0).tolist(),
    )  # fmt: skip


def _slowest(
    comm: Communicator, sweep: Sweep, call: Callable[[], object], rewrite: Callable[[int], None]
) -> npt.NDArray[np.float64]:
    """Return the microseconds of the slowest rank in each iteration. Inputs are rewritten before each."""
    seconds = np.empty(sweep.iterations)
    for iteration in range(-sweep.warmup, sweep.iterations):
        rewrite(iteration)
        comm.barrier()
        started = time.perf_counter()
        call()
        elapsed = time.perf_counter() - started
        if iteration >= 0:
            seconds[iteration] = elapsed
    everybody = np.empty((comm.size, sweep.iterations))
    comm.allgather(seconds, everybody)
    slowest: npt.NDArray[np.float64] = everybody.max(axis=0) * 1e6
    return slowest


def _copy(comm: Communicator, case: Case, sweep: Sweep) -> float:
    """Return the median of the microseconds in which every rank copies as many bytes as the busiest one receives."""
    copies = _Copies(comm, case.recv.nbytes)
    try:
        return float(np.median(_slowest(comm, sweep, copies.call, copies.rewrite)))
    finally:
        copies.release()


class _Copies:
    """One copy on each rank, out of the next rank's shared memory, and no message."""

    def __init__(self, comm: Communicator, nbytes: int) -> None:
        every = np.empty(comm.size, np.int64)
        comm.allgather(np.array([nbytes]), every)
        self._comm, self._next = comm, (comm.rank + 1) % comm.size
        self._own = comm.empty(max(1, int(every.max())), "uint8")
        self._target = np.zeros_like(self._own)
        self._views: Any = None

    def rewrite(self, key: int) -> None:
        self.release()
        self._own[:] = key & 0xFF
        self._views = self._comm.allgather_views(self._own)
        self._source = self._views[self._next]

    def call(self) -> None:
        np.copyto(self._target, self._source)

    def release(self) -> None:
        if self._views is not None:
            self._source = None
            self._views.wait_released()


class _Gloo:
    """torch.distributed on Gloo. The ranks meet in a file."""

    def __init__(self, comm: Communicator, store: str) -> None:
        self._torch = importlib.import_module("torch")
        self._torch.set_num_threads(1)
        self._group = self._torch.distributed
        self._group.init_process_group("gloo", init_method=f"file://{store}", rank=comm.rank, world_size=comm.size)

    def exchange(self, case: Case) -> Callable[[], object]:
        """Return the case's exchange, of bytes."""
        send, recv = self._torch.from_numpy(_flat(case.send)), self._torch.from_numpy(np.zeros_like(_flat(case.recv)))
        if case.splits is None:
            allgather = getattr(self._group, "all_gather_single", self._group.all_gather_into_tensor)  # Torch 2.13 on
            return lambda: allgather(recv, send)
        to, from_ = case.splits
        return lambda: self._group.all_to_all_single(recv, send, from_, to)

    def close(self) -> None:
        self._group.destroy_process_group()


def _rewrite(case: Case, base: npt.NDArray[np.uint8] | None, key: int) -> None:
    if case.step is not None:
        case.step.rewrite(key)
    elif base is not None:
        np.bitwise_xor(base, np.uint8(key & 0xFF), out=case.send.view(np.uint8))


def _check(comm: Communicator, case: Case, base: npt.NDArray[np.uint8] | None, key: int) -> int:
    """Return how many elements of a poisoned output are wrong after one more iteration."""
    _rewrite(case, base, key)
    testing.poison(case.recv)
    comm.barrier()
    case.call()
    if case.step is None:
        right = (case.expected ^ np.uint8(key & 0xFF)).view(case.recv.dtype).reshape(case.recv.shape)
    else:
        right = case.step.dispatched(key) if case.name == "dispatch" else case.step.combined(key)
    wrong = (_flat(case.recv) != _flat(right)).reshape(-1, case.recv.itemsize).any(axis=1)
    return int(wrong.sum())


def _case(comm: Communicator, sweep: Sweep, size: int, name: str) -> Case:
    if sweep.operation == "allgather":
        return _allgather(comm, sweep, size, name)
    if sweep.operation == "global_scatter":
        return _global_scatter(comm, sweep, size, name)
    if sweep.operation in ("dispatch", "combine"):
        return _experts(comm, sweep, size, name)
    return _alltoallv(comm, sweep, size, name)


def _alltoallv(comm: Communicator, sweep: Sweep, size: int, name: str) -> Case:
    dtype, equal = _dtype(name), sweep.operation == "alltoall"
    width = sweep.layer.hidden if sweep.layer else 1
    count = size // (dtype.itemsize * comm.size) if equal else 0
    if sweep.layer:
        counts = _per_rank(_layer_counts(sweep.layer, comm.size, sweep), comm.size)
    elif equal:
        counts = np.full((comm.size, comm.size), count)
    else:
        counts = _spread(size, comm.size) // dtype.itemsize
    send, blocks = _inputs(comm, sweep, counts, width, dtype)
    expected = np.concatenate(blocks)
    recv = np.zeros_like(expected)
    sent, received = counts[comm.rank].copy(), counts[:, comm.rank].copy()

    def call() -> object:
        if equal:
            return comm.alltoall(send, recv)
        return comm.alltoallv(send, sent, recv, received)

    title = sweep.layer.id if sweep.layer else sweep.operation
    row = width * dtype.itemsize
    splits = ((sent * row).tolist(), (received * row).tolist())
    return Case(title, _busiest(counts) * row, count, name, send, recv, _flat(expected), call, None, splits)


def _allgather(comm: Communicator, sweep: Sweep, size: int, name: str) -> Case:
    dtype = _dtype(name)
    count = size // (dtype.itemsize * comm.size)
    sends = [_bytes(sweep.seed, rank, (count,), dtype) for rank in range(comm.size)]
    expected = testing.allgather(sends)[comm.rank]
    send, recv = sends[comm.rank], np.zeros_like(expected)
    return Case(
        sweep.operation, recv.nbytes, count, name, send, recv, _flat(expected), lambda: comm.allgather(send, recv)
    )


def _global_scatter(comm: Communicator, sweep: Sweep, size: int, name: str) -> Case:
    dtype, ranks = _dtype(name), comm.size
    if sweep.layer:
        width, counts = sweep.layer.hidden, _layer_counts(sweep.layer, ranks, sweep)
    else:
        cells = ranks * _EXPERTS
        width = max(1, min(_ROW_BYTES, size // cells) // dtype.itemsize)
        counts = np.full((ranks, cells), size // (cells * width * dtype.itemsize))
    pairs = _per_rank(counts, ranks)
    send, blocks = _inputs(comm, sweep, pairs, width, dtype)
    # Each rank sends rows by expert; the receiver has them by expert and then by rank.
    mine = counts.reshape(ranks, ranks, -1)[:, comm.rank]
    cells_of = [np.split(block, np.cumsum(mine[source])[:-1]) for source, block in enumerate(blocks)]
    expected = np.concatenate([cells_of[source][expert] for expert in range(mine.shape[1]) for source in range(ranks)])
    local, global_ = counts[comm.rank].copy(), testing.global_counts(counts)[comm.rank].copy()
    recv = np.zeros_like(expected)
    title = sweep.layer.id if sweep.layer else sweep.operation
    return Case(
        title, _busiest(pairs) * width * dtype.itemsize, 0, name, send, recv, _flat(expected),
        lambda: comm.global_scatter(send, local, global_, out=recv),
    )  # fmt: skip


def _experts(comm: Communicator, sweep: Sweep, size: int, name: str) -> Case:
    dtype = _dtype(name)
    layer = sweep.layer or layer_of(size, dtype, name, comm.size)
    step = Step(comm, layer, dtype, sweep.routing if sweep.layer else "uniform", sweep.seed)
    size = layer.tokens * layer.top_k * layer.hidden * dtype.itemsize
    case = Case(sweep.operation, size, 0, name, step.x, step.rows, _flat(step.x), lambda: None, step)

    def dispatch() -> None:
        case.recv = step.ep.dispatch(step.x, step.choice, step.weights).x

    def combine() -> None:
        case.recv = step.ep.combine(step.rows, step.routed)

    case.call = dispatch if sweep.operation == "dispatch" else combine
    return case


def _inputs(
    comm: Communicator, sweep: Sweep, counts: IntArray, width: int, dtype: np.dtype[Any]
) -> tuple[Array, list[Array]]:
    """Return this rank's rows for all ranks, and every rank's rows for this one. Holds one other rank's rows at a
    time."""
    blocks = []
    send = np.empty((0, width), dtype)
    for source in range(comm.size):
        rows = _bytes(sweep.seed, source, (int(counts[source].sum()), width), dtype)
        blocks.append(np.split(rows, np.cumsum(counts[source]))[comm.rank].copy())
        if source == comm.rank:
            send = rows
    return send, blocks


def _layer_counts(layer: Workload, ranks: int, sweep: Sweep) -> IntArray:
    if layer.experts % ranks:
        raise UnsupportedError(f"{layer.id}: {layer.experts} experts do not divide among {ranks} ranks")
    choice = route(layer, ranks, routing=sweep.routing, seed=sweep.seed)
    return np.stack([expert_counts(own, layer.experts) for own in choice])


def _spread(size: int, ranks: int) -> IntArray:
    """Bytes from rank i to j grow with d = (j - i) mod ranks, as nccl-tests does it; rounded down to 16."""
    rank = np.arange(ranks)
    distance = (rank[None, :] - rank[:, None]) % ranks
    counts: IntArray = distance * size // max(1, ranks * (ranks - 1) // 2) // 16 * 16
    return counts


def _per_rank(counts: IntArray, ranks: int) -> IntArray:
    return np.asarray(counts.reshape(ranks, ranks, -1).sum(axis=2))


def _flat(array: Array) -> npt.NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def _busiest(counts: IntArray) -> int:
    return int(max(counts.sum(axis=0).max(), counts.sum(axis=1).max()))


def _bytes(seed: int, rank: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return testing.random_array(np.random.default_rng([seed, rank]), shape, dtype)


def _dtype(name: str) -> np.dtype[Any]:
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise UnsupportedError("bfloat16 needs ml_dtypes beside NumPy: pip install ml_dtypes") from None
    return np.dtype(ml_dtypes.bfloat16)  # type: ignore[no-any-return, unused-ignore]
