"""What ranks do in test_exchange.py, and the cases that every rank, and the test, derive alike from a few numbers.
Apart from the tests, because 64 ranks that import pytest take long to start."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import a2a
from a2a import testing

# Rows around every output that no exchange may touch.
GUARD = 3

DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128"
    " float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e4m3b11fnuz float8_e3m4 float8_e4m3"
    " float8_e8m0fnu"
).split()


@dataclass(frozen=True)
class Recipe:
    """One random exchange for any number of ranks. ``trailing`` is the shape of a row."""

    seed: int
    dtype: str = "float32"
    trailing: tuple[int, ...] = ()
    max_rows: int = 50
    max_gap: int = 3
    empty: float = 0.2
    experts: int = 1
    """Experts of each rank in global_scatter."""

    def case(self, ranks: int) -> testing.Case:
        return testing.random_case(np.random.default_rng(self.seed), ranks, self.max_rows, self.max_gap, self.empty)

    def local_counts(self, ranks: int) -> np.ndarray:
        """Row r is the ``local_count`` of rank r."""
        rng = np.random.default_rng(self.seed)
        counts = testing.random_counts(rng, ranks * self.experts, self.max_rows, self.empty)
        return counts[:ranks]

    def array(self, rank: int, rows: int, part: int = 0) -> Any:
        """What a rank sends. It starts in the middle of a buffer, as slices of tensors do."""
        rng = np.random.default_rng((self.seed, rank, part))
        return testing.random_array(rng, (rows + 1, *self.trailing), dtype_of(self.dtype))[1:]

    def poisoned(self, rows: int) -> Any:
        return testing.poison(np.empty((rows, *self.trailing), dtype_of(self.dtype)))

    def list_shapes(self, ranks: int) -> Any:
        """``shapes[r][p]`` is the shape of what rank r sends to rank p in the list form."""
        rng = np.random.default_rng(self.seed)
        counts = testing.random_counts(rng, ranks, self.max_rows, self.empty).tolist()
        forms = rng.integers(3, size=(ranks, ranks)).tolist()
        shapes = [((count,), (count, 1, 2), (1, count)) for count in range(self.max_rows + 1)]
        return [[shapes[n][form] for n, form in zip(*row, strict=True)] for row in zip(counts, forms, strict=True)]


def dtype_of(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name, name))


def guarded(recipe: Recipe, rows: int) -> tuple[Any, Any]:
    """A poisoned output and the buffer around it."""
    whole = recipe.poisoned(rows + 2 * GUARD)
    return whole, whole[GUARD : GUARD + rows]


def unguarded(recipe: Recipe, result: Any) -> bytes:
    """What the buffer of guarded() has to hold."""
    guard = recipe.poisoned(GUARD).tobytes()
    return guard + np.ascontiguousarray(result).tobytes() + guard


def alltoallv(comm: a2a.Communicator, recipe: Recipe, packed: bool, how: str) -> bytes:
    case, rank = recipe.case(comm.size), comm.rank
    send = recipe.array(rank, case.send_rows[rank])
    sent = send.tobytes()
    whole, recv = guarded(recipe, case.recv_rows[rank])
    displs = () if packed else (case.send_displs[rank], case.recv_displs[rank])
    arguments = (send, case.send_counts[rank], recv, case.recv_counts[rank], *displs)
    if how == "call":
        assert comm.alltoallv(*arguments) is None
    elif how == "async":
        comm.alltoallv(*arguments, async_op=True).wait()
    else:
        comm.plan_alltoallv(*arguments).run(send, recv)
    assert send.tobytes() == sent
    return whole.tobytes()


def alltoall(comm: a2a.Communicator, recipe: Recipe, how: str) -> bytes:
    rows = recipe.max_rows * comm.size
    send, (whole, recv) = recipe.array(comm.rank, rows), guarded(recipe, rows)
    if how == "call":
        comm.alltoall(send, recv)
    elif how == "async":
        comm.alltoall(send, recv, async_op=True).wait()
    else:
        comm.plan_alltoall(send, recv).run(send, recv)
    return whole.tobytes()


def allgather(comm: a2a.Communicator, recipe: Recipe, stacked: bool, how: str) -> bytes:
    send, (whole, recv) = recipe.array(comm.rank, recipe.max_rows), guarded(recipe, recipe.max_rows * comm.size)
    out = recv.reshape(comm.size, recipe.max_rows, *recipe.trailing) if stacked else recv
    if how == "call":
        comm.allgather(send, out)
    elif how == "async":
        comm.allgather(send, out, async_op=True).wait()
    else:
        comm.plan_allgather(send, out).run(send, out)
    return whole.tobytes()


def list_parts(recipe: Recipe, rank: int, ranks: int) -> list[Any]:
    """What one rank sends in the list form."""
    shapes = recipe.list_shapes(ranks)[rank]
    parts = [
        Recipe(recipe.seed, recipe.dtype, shape[1:]).array(rank, shape[0], peer) for peer, shape in enumerate(shapes)
    ]
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def alltoall_list(comm: a2a.Communicator, recipe: Recipe, how: str) -> bytes:
    shapes = [row[comm.rank] for row in recipe.list_shapes(comm.size)]
    outputs = [guarded(recipe, int(np.prod(shape))) for shape in shapes]
    # Another shape of as many elements: the ranks agree about bytes.
    recvs = [recv.reshape(-1, 1) for _, recv in outputs]
    work = comm.alltoall_list(list_parts(recipe, comm.rank, comm.size), recvs, async_op=how == "async")
    if work is not None:
        work.wait()
    return b"".join(whole.tobytes() for whole, _ in outputs)


def exchange(comm: a2a.Communicator, recipe: Recipe) -> tuple[bytes, list[int]]:
    counts = recipe.case(comm.size).send_counts[comm.rank]
    recv, recv_counts = comm.exchange(recipe.array(comm.rank, counts.sum()), counts)
    assert type(recv) is np.ndarray and recv.dtype == dtype_of(recipe.dtype)
    assert recv.shape == (recv_counts.sum(), *recipe.trailing)
    return recv.tobytes(), recv_counts.tolist()


def there_and_back(comm: a2a.Communicator, recipe: Recipe, how: str) -> tuple[bytes, bytes]:
    """global_scatter, and global_gather of its result."""
    counts = recipe.local_counts(comm.size)
    local, global_ = counts[comm.rank], testing.global_counts(counts)[comm.rank]
    x = recipe.array(comm.rank, local.sum())
    steps = ((comm.global_scatter, global_.sum()), (comm.global_gather, local.sum()))
    results = []
    for call, rows in steps:
        whole, out = guarded(recipe, rows)
        if how == "out":
            # An output may be larger than needed.
            assert call(x, local, global_, whole[GUARD:]) is not None
        elif how == "async":
            work = call(x, local, global_, out=out, async_op=True)
            work.wait()
            assert work.result is out
        elif how == "plan":
            make = comm.plan_global_scatter if call == comm.global_scatter else comm.plan_global_gather
            make(x, local, global_).run(x, out)
        else:
            out[...] = call(x, local, global_) if how == "none" else _allocated_later(call, x, local, global_)
        x = out
        results.append(whole.tobytes())
    return results[0], results[1]


def _allocated_later(call: Any, *arguments: Any) -> Any:
    work = call(*arguments, async_op=True)
    work.wait()
    return work.result


def strings(comm: a2a.Communicator, seed: int, longest: int) -> list[bytes]:
    return comm.allgather_bytes(string(seed, comm.rank, longest))


def string(seed: int, rank: int, longest: int) -> bytes:
    rng = np.random.default_rng((seed, rank))
    return rng.bytes(int(rng.integers(longest + 1)))


def barriers(comm: a2a.Communicator, count: int) -> None:
    for _ in range(count):
        comm.barrier()


def with_thresholds(comm: a2a.Communicator, path: str) -> a2a.Communicator:
    """Another communicator of the same ranks, whose pairs take one path as far as they can."""
    environment = {"direct": "1", "staged": str(1 << 60)}
    names = ("A2A_SHM_DIRECT_MIN", "A2A_SHM_CMA_MIN")
    if path in environment:
        os.environ.update(dict.fromkeys(names, environment[path]))
    comm.barrier()  # Threads share the environment.
    made = comm.split(0)
    comm.barrier()
    for name in names:
        os.environ.pop(name, None)
    assert made is not None
    return made


def sizes(comm: a2a.Communicator, path: str, shared: bool, bytes_per_pair: Sequence[int]) -> list[str]:
    """Every pair exchanges as many bytes, from and to odd addresses. Returns what differs."""
    problems = []
    with with_thresholds(comm, path) as group:
        for size in bytes_per_pair:
            sends = [Recipe(size, "uint8").array(comm.rank, size, peer) for peer in range(comm.size)]
            total = size * comm.size
            send = np.asarray(group.empty(total + 1, "uint8")) if shared else np.empty(total + 1, "u1")
            send[1:] = np.concatenate(sends)
            whole, recv = guarded(Recipe(0, "uint8"), total)
            group.alltoall(send[1:], recv)
            received = [Recipe(size, "uint8").array(peer, size, comm.rank) for peer in range(comm.size)]
            expected = unguarded(Recipe(0, "uint8"), np.concatenate(received))
            if difference := testing.first_difference(whole, expected):
                problems.append(f"{size} bytes per pair: {difference}")
    return problems
