"""Writes python/a2a/conformance/cases/families.json: the case families of the upstream suites and of our own, for 1 to
8 ranks. Run it after a change of the formulas; a test compares the file with what this gives."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np

import a2a
from a2a.conformance.collectives import COLLECTIVES

FILE = Path(__file__).parents[2] / "python" / "a2a" / "conformance" / "cases" / "families.json"
Family = dict[str, Any]

TORCH = "torch/testing/_internal/distributed/distributed_test.py of pytorch"
FUNCTIONAL = "test/distributed/test_functional_api.py of pytorch"
PADDLE = "test/collective/{} of Paddle"
MPI4PY = "test/{} of mpi4py"
NCCL_TESTS = "src/{} of nccl-tests"
ATB = "tests/apitest/opstest/python/operations/all_to_allv/{} of ascend-transformer-boost"
FASTMOE = "tests/{} of fastmoe"
OWN = "a2a"


def alltoallv(name: str, source: str, counts: Any, row: list[int], **more: Any) -> Family:
    counts = np.asarray(counts).tolist()
    return {"name": f"{name}, {len(counts)} ranks", "source": source, "op": "alltoallv", "ranks": len(counts),
            "dtypes": "all", "row": row, "send_counts": counts, **more}  # fmt: skip


def of_shape(op: str, name: str, source: str, n: int, **more: Any) -> Family:
    return {"name": f"{name}, {n} ranks", "source": source, "op": op, "ranks": n, "dtypes": "all", **more}


def torch_families(n: int) -> list[Family]:
    ones, rank = np.ones((n, n), np.int64), np.arange(n)
    growing = (rank[:, None] + 1) * (rank + 1)
    grown = [[[peer + 1, n] for peer in range(n)] for _ in range(n)]
    return [
        alltoallv("equal splits", f"{TORCH}, _test_all_to_all_single_equal_split_helper", ones, [n]),
        alltoallv(
            "splits grow with the peer",
            f"{TORCH}, _test_all_to_all_single_unequal_split_helper",
            ones * (rank + 1),
            [n],
        ),
        alltoallv("splits grow with both ranks", f"{FUNCTIONAL}, test_all_to_all_single", growing, [5]),
        alltoallv("splits of a vector", f"{FUNCTIONAL}, test_all_to_all_single_1d_input", growing, []),
        of_shape(
            "alltoall_list", "lists that grow with the peer", f"{TORCH}, _test_all_to_all_helper", n, shapes=grown
        ),
        of_shape("allgather", "all_gather", f"{TORCH}, _test_all_gather_helper", n, shape=[n, n, n]),
        of_shape("allgather", "all_gather of vectors", f"{TORCH}, _all_gather_into_tensor_helper", n, shape=[2]),
    ]


def paddle_families(n: int, rng: np.random.Generator) -> list[Family]:
    ones, rank = np.ones((n, n), np.int64), np.arange(n)
    single = PADDLE.format("collective_alltoall_single.py")
    stream, gather = "communication_stream_alltoall_single_api_dygraph.py", "collective_allgather_api_dygraph.py"
    halves = [[[5, 16] for _ in range(n)] for _ in range(n)]
    counts = rng.integers(1, 4, (n, 2 * n)).tolist()
    experts = {"row": [2], "experts": 2, "local_count": counts}
    cases = [
        alltoallv("one row each", f"{single}, case 1", ones, [n]),
        alltoallv("rows grow with the peer", f"{single}, case 2", ones * (rank + 1), [n]),
        alltoallv("five rows each", PADDLE.format(stream), ones * 5, [16]),
        of_shape("alltoall_list", "equal lists", PADDLE.format("collective_alltoall_api_dygraph.py"), n, shapes=halves),
        of_shape("allgather", "all_gather of rows", PADDLE.format(gather), n, shape=[10, 4]),
        *(of_shape(op, f"{op} of two experts", PADDLE.format(f"collective_{op}_dygraph.py"), n, **experts)
          for op in ("global_scatter", "global_gather")),
    ]  # fmt: skip
    if n == 2:
        uneven = [[[4, 3], [4, 5]], [[6, 2], [6, 6]]]  # a matrix [10, 8] cut unevenly in both directions
        source = PADDLE.format("collective_alltoall_api_unequal_split_dygraph.py")
        cases.append(of_shape("alltoall_list", "lists cut in both directions", source, n, shapes=uneven))
    return cases


def mpi_families(n: int) -> list[Family]:
    cases = []
    for count in sorted({0, n // 2, n - 1}):
        strided = {"send_displs": [[n * peer for peer in range(n)]] * n, "send_rows": [n * n] * n}
        strided |= {"recv_displs": strided["send_displs"], "recv_rows": strided["send_rows"]}
        counts = np.full((n, n), count)
        source = MPI4PY.format("test_cco_vec.py, testAlltoallv")
        cases.append(alltoallv(f"{count} of every {n} elements", source, counts, [], **strided))
    cases.append(
        alltoallv("as many elements as ranks", MPI4PY.format("test_cco_buf.py, testAlltoall"), np.full((n, n), n), [])
    )
    cases.append(
        of_shape("allgather", "seven elements each", MPI4PY.format("test_cco_buf.py, testAllgather"), n, shape=[7])
    )
    return cases


def nccl_families(n: int) -> list[Family]:
    distance = (np.arange(n) - np.arange(n)[:, None]) % n
    cases = [alltoallv(f"{count} elements each", NCCL_TESTS.format("alltoall.cu"), np.full((n, n), count), [])
             for count in (1, 4096)]  # fmt: skip
    for spread in (0.5, 1.0):
        even, steep = (1 - spread) / n, spread * distance / max(1, n * (n - 1) // 2)
        counts = (1024 * n * (even + steep)).astype(np.int64) // 16 * 16
        cases.append(alltoallv(f"spread {spread}", NCCL_TESTS.format("alltoallv.cu"), counts, []))
    cases.append(of_shape("allgather", "1024 elements each", NCCL_TESTS.format("all_gather.cu"), n, shape=[1024]))
    return cases


def displaced(rng: np.random.Generator, counts: Any, gap: int) -> tuple[list[list[int]], list[int]]:
    """Displacements in any order with gaps of at most ``gap``, and the rows of each rank's tensor."""
    displs, rows = np.zeros_like(counts), []
    for rank, row in enumerate(counts):
        at = int(rng.integers(gap + 1))
        for peer in rng.permutation(len(row)):
            displs[rank, peer] = at
            at += int(row[peer]) + int(rng.integers(gap + 1))
        rows.append(at)
    return displs.tolist(), rows


def atb_families(n: int, rng: np.random.Generator) -> list[Family]:
    """The outputs have no gaps, and no rank receives nothing, which ATB demands."""
    counts = np.where(rng.random((n, n)) < 0.3, 0, rng.integers(1, 9, (n, n)))
    np.fill_diagonal(counts, rng.integers(1, 9, n))
    sends, rows = displaced(rng, counts, 2)
    recvs, recv_rows = displaced(rng, counts.T, 0)
    more = {"send_displs": sends, "send_rows": rows, "recv_displs": recvs, "recv_rows": recv_rows}
    alike = {"send_displs": [list(range(n))] * n, "send_rows": [n + 2] * n}
    cases = [
        alltoallv("any order without gaps in the output", OWN, counts, [], **more),
        alltoallv("any order without gaps in the output, rows", OWN, counts, [2, 3], **more),
        alltoallv("input ranges that overlap", OWN, np.full((n, n), 3), [], **alike),
    ]
    if n == 2:
        two = {"send_displs": [[0, 2], [0, 2]], "send_rows": [8, 6], "input_shapes": [[2, 4], [2, 3]],
               "recv_displs": [[0, 2], [0, 4]], "recv_rows": [4, 5]}  # fmt: skip
        two |= {"send": [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 6]], "expected": [[0, 1, 0, 1], [2, 3, 4, 5, 2]]}
        two["dtypes"] = ["float16", "float32", "int8", "int16", "int32", "int64", "bfloat16"]
        source = ATB.format("test_all_to_allv_operation.py")
        cases.append(alltoallv("matrices seen as flat", source, [[2, 4], [2, 1]], [], **two))
    return cases


def atb_families_of_several_servers(n: int, rng: np.random.Generator) -> list[Family]:
    counts = rng.integers(1, 8, (n, n))
    more = {
        "send_displs": (np.cumsum(counts, 1) - counts).tolist(),
        "send_rows": [64] * n,
        "input_shapes": [[8, 8]] * n,
    }
    source = ATB.format("test_all_to_allv_operation_multi_server.py")
    return [alltoallv("the first elements of a matrix", source, counts, [], **more)]


def fastmoe_families(n: int, rng: np.random.Generator) -> list[Family]:
    """What its gates leave to global_scatter and global_gather: each token goes to its top experts."""
    cases = []
    for tokens, top, experts, row, dropped, test in (
        (4, 2, 4, 16, False, "test_ddp.py, test_fmoe_linear_distributed"),
        (4, 2, 8, 16, False, "test_ddp.py, test_fmoe_distributed"),
        (12, 2, 4, 6, True, "test_local_exchange.py, test_scatter"),
        (12, 1, 8, 6, True, "test_local_exchange.py, test_scatter"),
    ):
        local = np.zeros((n, n * experts), np.int64)
        for rank in range(n):
            for _ in range(tokens):
                chosen = rng.permutation(n * experts + dropped)[:top]
                local[rank, chosen[chosen < n * experts]] += 1
        what = f"{tokens} tokens to {top} of {experts} experts a rank{', some to none' if dropped else ''}"
        more = {"row": [row], "experts": experts, "local_count": local.tolist()}
        for op in ("global_scatter", "global_gather"):
            cases.append(of_shape(op, f"{op}, {what}", FASTMOE.format(test), n, **more))
    return cases


def own_families(n: int, rng: np.random.Generator) -> list[Family]:
    ones, rank = np.ones((n, n), np.int64), np.arange(n)
    random = np.where(rng.random((n, n)) < 0.3, 0, rng.integers(1, 9, (n, n)))
    neighbour = rank[None] == (rank[:, None] + 1) % n
    shapes = [[[(s + d) % 3, 2] if (s + d) % 2 else [s + 1] for d in range(n)] for s in range(n)]
    cases = [
        alltoallv("random rows", OWN, random, [3]),
        alltoallv("nothing at all", OWN, ones * 0, [2]),
        alltoallv("rows of nothing", OWN, random, [3, 0]),
        alltoallv("one rank sends nothing", OWN, ones * (rank[:, None] > 0), [1]),
        alltoallv("one rank receives everything", OWN, ones * 5 * (rank == n - 1), [2]),
        alltoallv("each to its neighbour", OWN, neighbour * 7, [3]),
        alltoallv("thousands of rows", OWN, random * 2000, [2]),
        {**alltoallv("more than a MiB", OWN, neighbour * 400_001, [3]), "dtypes": ["int8"]},
        of_shape("alltoall_list", "list of shapes", OWN, n, shapes=shapes),
        of_shape("alltoall_list", "list of scalars", OWN, n, shapes=[[[] for _ in range(n)] for _ in range(n)]),
        of_shape("alltoall_list", "list of nothing", OWN, n, shapes=[[[0, 3] for _ in range(n)] for _ in range(n)]),
        of_shape("allgather", "all_gather of nothing", OWN, n, shape=[0, 2]),
        of_shape("allgather", "all_gather of scalars", OWN, n, shape=[]),
    ]
    for permuted in (False, True):
        sends, rows = displaced(rng, random, 2)
        received, recv_rows = displaced(rng, random.T, 2)
        more = {"send_displs": sends, "send_rows": rows}
        if permuted:
            more |= {"recv_displs": received, "recv_rows": recv_rows}
        name = "gaps and any order on both sides" if permuted else "gaps in the input"
        cases.append(alltoallv(name, OWN, random, [2] if permuted else [], **more))
    for experts, empty in ((1, 0.0), (3, 0.6), (4, 1.0)):
        local = np.where(rng.random((n, n * experts)) < empty, 0, rng.integers(1, 5, (n, n * experts))).tolist()
        what = f"{experts} experts a rank{', most without tokens' if 0 < empty < 1 else ', no tokens' if empty else ''}"
        for op in ("global_scatter", "global_gather"):
            cases.append(of_shape(op, f"{op}, {what}", OWN, n, row=[3], experts=experts, local_count=local))
    for name, channels in (("one scale", 1), ("a scale for each channel", 13)):
        scale = (0.25 + rng.random(channels)).astype(np.float32).tolist()
        offset = rng.integers(-8, 8, channels).astype(float).tolist()
        more = {"dtypes": ["int8"], "shape": [40, 13], "scale": scale, "offset": offset}
        cases.append({**of_shape("quantized_all_reduce", f"all-reduce with {name}", OWN, n), **more})
    return cases


INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS, COMPLEX = ["float16", "bfloat16", "float32", "float64"], ["complex64", "complex128"]
FOLDED = {
    "sum": [*INTEGERS, *FLOATS, *COMPLEX, "bool"],
    "prod": [*INTEGERS, *FLOATS, *COMPLEX, "bool"],
    "min": [*INTEGERS, *FLOATS, "bool"],
    "max": [*INTEGERS, *FLOATS, "bool"],
    "avg": [*FLOATS, *COMPLEX],
    "band": [*INTEGERS, "bool"],
    "bor": [*INTEGERS, "bool"],
    "bxor": [*INTEGERS, "bool"],
    "premul_sum": [*FLOATS, *COMPLEX],
}
"""The dtypes of each fold."""


def collective_families(n: int, folds: list[str], shape: list[int], counts: list[int]) -> list[Family]:
    """A case of each collective, and of each reduction with each fold."""
    cases = []
    for op in COLLECTIVES:
        arguments = inspect.signature(getattr(a2a.Communicator, op)).parameters
        more: Family = {"shape": shape}
        if "root" in arguments:
            more["root"] = n - 1
        if "counts" in arguments or "recv_counts" in arguments:
            more["counts"] = counts
        for fold in folds if "op" in arguments else [""]:
            name = f"{op} with {fold}" if fold else op
            folded = {"fold": fold, "dtypes": FOLDED[fold]} if fold else {}
            cases.append(of_shape(op, f"{name}, {' x '.join(map(str, shape))}", OWN, n, **more, **folded))
    return cases


def every_collective(n: int) -> list[Family]:
    counts = [(rank + n) % 3 for rank in range(n)]
    every_fold = collective_families(n, list(FOLDED), [5, 3], counts)
    several = collective_families(n, ["sum", "max"], [5, 3], counts)
    return [*(case for case in every_fold if case["op"] == "allreduce"),
            *(case for case in several if case["op"] != "allreduce"),
            *collective_families(n, ["sum"], [0, 2], [0] * n)]  # fmt: skip


def large_families(n: int, rng: np.random.Generator) -> list[Family]:
    """Bytes enough for each pair of ranks that transports take their other ways, with runs of odd lengths in them."""
    rank, local = np.arange(n), rng.integers(0, 12, (n, 2 * n)).tolist()
    lists = [[[30_001 + 7000 * int((source + peer) % n)] for peer in rank] for source in rank]
    cases = [
        of_shape("alltoall_list", "lists of many KiB", OWN, n, shapes=lists),
        of_shape("allgather", "all_gather of many KiB", OWN, n, shape=[70_001]),
        *(of_shape(op, f"{op} of many KiB", OWN, n, row=[8191], experts=2, local_count=local)
          for op in ("global_scatter", "global_gather")),
        *collective_families(n, ["sum"], [70_001], [30_001 * (peer % 3) for peer in range(n)]),
    ]  # fmt: skip
    return [{**case, "dtypes": ["int8"]} for case in cases]


def of_ranks(n: int) -> list[Family]:
    rng = np.random.default_rng(n)
    return [
        *torch_families(n),
        *paddle_families(n, rng),
        *mpi_families(n),
        *nccl_families(n),
        *atb_families(n, rng),
        *own_families(n, rng),
        *every_collective(n),
        *atb_families_of_several_servers(n, rng),
        *fastmoe_families(n, rng),
        *large_families(n, rng),
    ]


def text() -> str:
    cases = [json.dumps(case) for n in range(1, 9) for case in of_ranks(n)]
    about = json.dumps("Case families for 1 to 8 ranks, written by tests/conformance/make_families.py.")
    return f'{{"about": {about}, "cases": [\n' + ",\n".join(cases) + "\n]}\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
