"""What ranks do in test_atb.py, and the cases that every rank, and the test, derive alike from a few numbers."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

import frameworks
import numpy as np

import a2a
from a2a import atb, testing
from a2a.testing import oracle

DTYPES = ("float16", "float32", "int8", "int32", "int16", "int64", "bfloat16")


@dataclass(frozen=True)
class Recipe:
    """One random AllToAllV: other counts on every rank, an input with gaps, an output in any order of the ranks."""

    seed: int
    dtype: str
    max_elems: int = 40

    def case(self, ranks: int) -> testing.Case:
        rng = np.random.default_rng(self.seed)
        counts = testing.random_counts(rng, ranks, self.max_elems)
        np.fill_diagonal(counts, np.maximum(counts.diagonal(), 1))  # a rank that receives nothing cannot take part
        received = np.ascontiguousarray(counts.T)
        send_displs, send_rows = oracle._random_displs(rng, counts, 3)
        recv_displs, recv_rows = oracle._random_displs(rng, received, 0)
        return testing.Case(counts, received, send_displs, recv_displs, send_rows, recv_rows)

    def array(self, rank: int, elems: int) -> Any:
        return testing.random_array(
            np.random.default_rng((self.seed, rank)), int(elems), frameworks.dtype_of(self.dtype)
        )


def expected(recipe: Recipe, ranks: int) -> list[Any]:
    """The output of each rank."""
    case = recipe.case(ranks)
    sends = [recipe.array(rank, elems) for rank, elems in enumerate(case.send_rows)]
    recvs = [np.zeros(elems, sends[0].dtype) for elems in case.recv_rows]
    return testing.alltoallv(sends, case.send_counts, recvs, case.send_displs, case.recv_displs)


def parameters(case: testing.Case, rank: int, camel: bool = False) -> dict[str, Any]:
    counts, displs = ("sendCounts", "recvCounts") if camel else ("send_counts", "recv_counts"), ("sdispls", "rdispls")
    return {
        "rank": rank,
        "rankSize" if camel else "rank_size": len(case.send_counts),
        counts[0]: case.send_counts[rank].tolist(),
        displs[0]: case.send_displs[rank],
        counts[1]: tuple(case.recv_counts[rank].tolist()),
        displs[1]: case.recv_displs[rank],
        "backend": "shm",
    }


def group(comm: a2a.Communicator, threads: bool, domain: str = "") -> dict[str, Any]:
    """What the ranks of this pool have in common: thread ranks are told apart from other pools by their domain."""
    mode = atb.CommMode.COMM_MULTI_THREAD if threads else atb.CommMode.COMM_MULTI_PROCESS
    name = comm.allgather_bytes(domain.encode() + str(id(comm)).encode())[0].decode()
    return {"comm_mode": mode, "comm_domain": f"{domain}{comm.size}-{name}"}


def run(comm: a2a.Communicator, recipe: Recipe, threads: bool, framework: str, shape: str = "flat") -> Any:
    """Returns (framework, shape, bytes) of the output."""
    case, rank = recipe.case(comm.size), comm.rank
    param = atb.AllToAllVParam(**parameters(case, rank, camel=rank % 2 == 0), **group(comm, threads))
    array = recipe.array(rank, case.send_rows[rank])
    if shape == "deep":
        array = array.reshape(1, 1, -1, 1, 1)
    operation = atb.AllToAllVOperation(param, timeout=40)
    x = frameworks.tensor(framework, array)
    (out,) = operation.forward([x])
    (again,) = operation.forward([x])
    assert testing.first_difference(again, out) is None
    assert testing.first_difference(x, array) is None
    return frameworks.name_of(out), tuple(out.shape), testing.as_bytes(out).tobytes()


def nothing_to_send(comm: a2a.Communicator, threads: bool) -> Any:
    """Rank 0 sends nothing, not even to itself, of a tensor that is not empty."""
    n = comm.size
    sent, received = [int(comm.rank > 0)] * n, [int(peer > 0) for peer in range(n)]
    displs = testing.packed(np.array([received]))[0]
    param = atb.AllToAllVParam(
        comm.rank, n, 0, sent, [0] * n, received, displs, "shm", **group(comm, threads, "nothing")
    )
    (out,) = atb.Operation(param, timeout=40).forward([np.full(2, comm.rank, np.int16)])
    return out.tolist()


def several_domains(comm: a2a.Communicator, threads: bool) -> list[int]:
    """Two domains of the same ranks, used in another order by each, and a pair of ranks of their own."""
    ones = {"send_counts": [1] * comm.size, "recv_counts": [1] * comm.size}
    displs = {"sdispls": range(comm.size), "rdispls": range(comm.size)}
    first = atb.AllToAllVParam(comm.rank, comm.size, **ones, **displs, backend="auto", **group(comm, threads, "a"))
    second = atb.AllToAllVParam(comm.rank, comm.size, **ones, **displs, backend="auto", **group(comm, threads, "b"))
    half = group(comm, threads, "half")
    half["comm_domain"] += "low" if comm.rank < 2 else "high"
    small = {key: list(value)[:2] for key, value in (ones | displs).items()}
    pair = atb.AllToAllVParam(comm.rank % 2, 2, **small, backend="auto", **half)
    sums = []
    for param in (first, second, pair, first):
        x = np.full(param.rank_size, 10 * comm.rank, np.int32)
        sums.append(int(atb.Operation(param).forward([x])[0].sum()))
    return sums


def bad_input_on_rank_1(comm: a2a.Communicator, threads: bool) -> list[str]:
    """A good call, one in which rank 1 passes something wrong, and a good one."""
    n = comm.size
    param = atb.AllToAllVParam(comm.rank, n, 0, [1] * n, range(n), [1] * n, range(n), "shm", **group(comm, threads))
    operation = atb.AllToAllVOperation(param, timeout=40)
    good = np.arange(n, dtype=np.float32)
    told = []
    wrong = [good[:-1], good.astype(np.float64), np.arange(2 * n, dtype=np.float32)[::2], None, good[:0], [good]]
    for x in (good, *wrong, good):
        try:
            operation.forward([good if comm.rank != 1 else x])
            told.append("")
        except a2a.Error as error:
            told.append(f"{type(error).__name__} {getattr(error, 'status', None)} {error}")
    return told


def disagreement(comm: a2a.Communicator, threads: bool) -> str:
    """Rank 0 sends two elements to rank 1, which expects one."""
    n = comm.size
    sent = [1] * n
    sent[1] += comm.rank == 0
    param = atb.AllToAllVParam(comm.rank, n, 0, sent, [0] * n, [1] * n, range(n), "shm", **group(comm, threads, "d"))
    try:
        atb.AllToAllVOperation(param, timeout=40).forward([np.zeros(2, np.int16)])
    except a2a.MismatchError as error:
        return f"{error.status} {error}"  # type: ignore[attr-defined]
    return ""


def from_rank_table(comm: a2a.Communicator, path: str) -> list[float]:
    """Rank and size come from the environment and the table."""
    os.environ["RANK_ID"] = str(comm.rank)
    n = comm.size
    param = atb.AllToAllVParam(sendCounts=[1] * n, sdispls=range(n), recvCounts=[1] * n, rdispls=range(n))
    param.backend, param.rankTableFile = "shm", path
    (out,) = atb.AllToAllVOperation(param, timeout=40).forward([np.full(n, comm.rank, np.float32)])
    return [float(value) for value in out[0]]


def interrupted(comm: a2a.Communicator) -> list[bool]:
    """Ctrl-C while rank 0 waits for rank 1, which comes later and gets what rank 0 wanted to send."""
    n, elems = comm.size, 300_000
    counts = {"send_counts": [elems] * n, "recv_counts": [elems] * n, "rdispls": [peer * elems for peer in range(n)]}
    param = atb.AllToAllVParam(comm.rank, n, sdispls=[0] * n, backend="shm", **counts, **group(comm, False, "int"))
    atb.AllToAllVOperation(param).forward([np.zeros(elems, np.int32)])
    told = []
    for value in (1, 2):
        if value == 1 and comm.rank == 0:
            timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
            timer.start()
            try:
                atb.AllToAllVOperation(param).forward([np.full(elems, value, np.int32)])
            except KeyboardInterrupt:
                told.append(True)
            timer.join()
            garbage = [np.full(elems, 99, np.int32) for _ in range(20)]
            del garbage
        else:
            time.sleep(0.6 if value == 1 else 0)
            (out,) = atb.AllToAllVOperation(param).forward([np.full(elems, value, np.int32)])
            told.append(bool((out == value).all()))
    return told
