"""ATB's AllToAllV in Python: against the oracle, and each constraint from both sides. The checks themselves are the C++
operation's; atb_checks_test.cc has all of them."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import atb_ranks
import frameworks
import numpy as np
import pytest
from atb_ranks import DTYPES, Recipe
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rank_pool import Pool

import a2a
from a2a import atb, testing

pytestmark = pytest.mark.timeout(110)
MAX = 2**63 - 1

SETTINGS = settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=[False, True], ids=["processes", "threads"])
def threads(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module", params=[1, 2, 3, 5, 8])
def pool(request: pytest.FixtureRequest, threads: bool) -> Iterator[Pool]:
    with Pool(request.param, threads) as pool:
        yield pool


@pytest.fixture(scope="module")
def four(threads: bool) -> Iterator[Pool]:
    with Pool(4, threads) as pool:
        yield pool


def expected(recipe: Recipe, ranks: int) -> list[Any]:
    case = recipe.case(ranks)
    sends = [recipe.array(rank, elems) for rank, elems in enumerate(case.send_rows)]
    recvs = [np.zeros(elems, sends[0].dtype) for elems in case.recv_rows]
    return testing.alltoallv(sends, case.send_counts, recvs, case.send_displs, case.recv_displs)


def require_oracle(results: list[Any], recipe: Recipe, framework: str) -> None:
    for rank, (result, right) in enumerate(zip(results, expected(recipe, len(results)), strict=True)):
        name, shape, got = result
        assert (name, shape) == (framework, (1, right.size)), f"rank {rank}"
        assert testing.first_difference(got, right.tobytes()) is None, f"rank {rank}"


@SETTINGS
@given(seed=st.integers(0, 2**32), dtype=st.sampled_from(DTYPES), shape=st.sampled_from(["flat", "deep"]))
def test_random_parameters(pool: Pool, seed: int, dtype: str, shape: str) -> None:
    recipe = Recipe(seed, dtype)
    require_oracle(pool.run(atb_ranks.run, recipe, pool.threads, "numpy", shape), recipe, "numpy")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("framework", [name for name in frameworks.INSTALLED if name != "numpy"])
def test_every_framework(four: Pool, framework: str, dtype: str) -> None:
    if framework == "jax" and dtype == "int64":
        pytest.skip("JAX has 64 bits only when asked at its start")
    if four.threads:
        importlib.import_module(framework)  # Paddle's eager mode is that of the thread that imports it first
    recipe = Recipe(7, dtype)
    require_oracle(four.run(atb_ranks.run, recipe, four.threads, framework), recipe, framework)


def test_the_documents_formula(four: Pool) -> None:
    """It holds where all ranks have the same parameters and a packed output."""
    recipe = Recipe(1, "float32")
    case = recipe.case(4)
    xs = [recipe.array(rank, 20) for rank in range(4)]
    sends, displs = [5] * 4, [0, 5, 10, 15]
    golden = [np.concatenate([x[displs[r] : displs[r] + sends[r]] for x in xs]) for r in range(4)]
    recvs = [np.empty(20, np.float32) for _ in range(4)]
    ours = testing.alltoallv(xs, [sends] * 4, recvs, [displs] * 4, [displs] * 4)
    for left, right in zip(ours, golden, strict=True):
        assert testing.first_difference(left, right) is None
    assert case.recv_displs.tolist() != testing.packed(case.recv_counts).tolist()  # the other tests go beyond it


def test_several_domains(four: Pool) -> None:
    assert four.run(atb_ranks.several_domains, four.threads) == [
        [60, 60, 10, 60],
        [60, 60, 10, 60],
        [60, 60, 50, 60],
        [60, 60, 50, 60],
    ]


def test_peers_learn_of_a_refused_input(four: Pool) -> None:
    told = four.run(atb_ranks.bad_input_on_rank_1, four.threads)
    assert [[said[0], said[-1]] for said in told] == [["", ""]] * 4
    reasons = [
        ("InvalidArgumentError 1", "sendCounts + sdispls is out of bounds"),
        ("InvalidArgumentError 13", "inTensor[0]: dtype double (11) is not one of float16, float"),
        ("InvalidArgumentError None", "inTensor[0] of shape (4,) is not contiguous"),
        ("InvalidArgumentError None", "inTensor[0] is not a tensor"),
        ("InvalidArgumentError 9", "shape [0] of dtype float (0) has 0 bytes"),
        ("InvalidArgumentError None", "inTensor[0] is not a tensor: list"),
    ]
    for rank, said in enumerate(told):
        for text, (kind, reason) in zip(said[1:-1], reasons, strict=True):
            assert reason in text
            assert text.startswith(kind if rank == 1 else "MismatchError 25"), text
            assert "rank 1" in text or rank == 1


def test_ranks_that_disagree(four: Pool) -> None:
    told = four.run(atb_ranks.disagreement, four.threads)
    text = "rank 0 sends 2 elements to rank 1, which expects 1 (element = 2 bytes, int16) (ERROR_HCCL_FAIL)"
    assert [said.endswith(text) and said.startswith("25 ") for said in told] == [True, True, False, False]


# ---- parameters -----------------------------------------------------------------------------------------------------


def good(**changes: Any) -> atb.AllToAllVParam:
    fields = {"rank": 0, "rank_size": 1, "send_counts": [2], "sdispls": [1], "recv_counts": [2], "rdispls": [0]}
    return atb.AllToAllVParam(**{**fields, "backend": "shm", **changes})


def test_both_spellings() -> None:
    snake = atb.AllToAllVParam(rank=1, rank_size=2, send_counts=[1, 2], comm_mode=1, comm_domain="d")
    camel = atb.AllToAllVParam(rank=1, rankSize=2, sendCounts=[1, 2], commMode=1, commDomain="d")
    assert snake == camel and snake.rankSize == snake.rank_size == 2
    camel.rankRoot = 1
    assert camel.rank_root == 1 and camel != snake
    assert (
        atb.AllToAllVParam(**{"rank": 1, "rankSize": 2, "sendCounts": [1, 2], "commMode": 1, "commDomain": "d"})
        == snake
    )
    assert repr(good()).startswith("AllToAllVParam(rank=0, rank_size=1, ")
    assert good() == good(send_counts=np.array([2]), rsv=[0] * 64) != good(send_counts=np.array([3]))
    assert pickle.loads(pickle.dumps(good())) == copy.copy(good()) == good()
    with pytest.raises(a2a.InvalidArgumentError, match="rank_size twice, once as rankSize"):
        atb.AllToAllVParam(rank_size=1, rankSize=1)
    with pytest.raises(TypeError, match="no field 'ranksize'"):
        atb.AllToAllVParam(ranksize=1)  # type: ignore[call-overload]
    with pytest.raises(AttributeError, match="no field 'send_count'"):
        snake.send_count = []  # type: ignore[attr-defined]


def test_defaults_and_order_are_the_documents() -> None:
    param = atb.AllToAllVParam()
    assert list(vars(param).values()) == [0, 0, 0, [], [], [], [], "hccl", None, 0, "", "", bytes(64)]
    assert atb.AllToAllVParam(0, 1, 2, [3], [4], [5], [6], "shm", None, 1, "t", "d", bytes(64)) == atb.AllToAllVParam(
        rank=0, rankSize=1, rankRoot=2, sendCounts=[3], sdispls=[4], recvCounts=[5], rdispls=[6], backend="shm",
        commMode=1, rankTableFile="t", commDomain="d",
    )  # fmt: skip


def test_an_operation() -> None:
    operation = atb.Operation(good())
    assert (operation.name, operation.input_num, operation.output_num) == ("AllToAllVOperation", 1, 1)
    (out,) = operation.forward([np.arange(4, dtype=np.int64).reshape(2, 2)])
    assert out.tolist() == [[1, 2]] and out.dtype == np.int64


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rsv": bytes(63) + b"\1"}, "rsv[63] is 1"),
        ({"rsv": bytes(65)}, "rsv has 65 bytes"),
        ({"backend": "lccl"}, "backend is lccl, must be hccl, shm, nccl, mpi or auto"),
        ({"backend": 3}, "backend is 3; pass a string"),
        ({"comm_mode": atb.CommMode.COMM_UNDEFINED}, "commMode: -1 is invalid"),
        ({"comm_domain": "x" * 129}, "len(commDomain) is illegal: 129 bytes"),
        ({"comm_domain": "é" * 65}, "len(commDomain) is illegal: 130 bytes"),
        ({"rank_size": 0}, "rankSize [0] is invalid"),
        ({"rank_size": 2**31}, "rankSize = 2147483648 does not fit in 32 bits"),
        ({"rank": -1}, "rank [-1] should be >= 0 and smaller than rankSize [1]"),
        ({"rank": 1}, "rank [1] should be"),
        ({"rank_root": 1}, "rankRoot [1] should be"),
        ({"send_counts": [2, 0]}, "sendCounts size should be equal to ranksize: it has 2 entries, rankSize is 1"),
        ({"rdispls": []}, "rdispls size should be equal to ranksize: it has 0 entries"),
        ({"sdispls": [-1]}, "sdispls[0] = -1 is negative"),
        ({"recv_counts": [2**63]}, f"recvCounts[0] = {2**63} does not fit in 64 bits"),
        ({"send_counts": [1.5]}, "sendCounts[0] is 1.5; counts are integers"),
        ({"hccl_comm": 4096}, "hcclComm is set, but backend is shm"),
        ({"hccl_comm": "x"}, "hcclComm is 'x'; pass the address"),
        ({"rank_table_file": "/nowhere/table.json"}, "rankTableFile path: /nowhere/table.json does not exist."),
    ],
)  # fmt: skip
def test_refused_parameters(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(a2a.InvalidArgumentError) as refused:
        atb.AllToAllVOperation(good(**changes))
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [{"comm_domain": "x" * 128}, {"rsv": []}, {"comm_mode": 1}, {"send_counts": np.array([0]), "recv_counts": (0,)}],
)  # fmt: skip
def test_accepted_parameters(changes: dict[str, Any]) -> None:
    assert atb.AllToAllVOperation(good(**changes)).name == "AllToAllVOperation"


@pytest.mark.parametrize(
    ("changes", "x", "status", "words"),
    [
        ({"sdispls": [3]}, np.zeros(4, "f4"), 1, "sendCounts[0] = 2 + sdispls[0] = 3 is more than the 4 elements"),
        ({"sdispls": [MAX]}, np.zeros(4, "f4"), 1, "sendCounts + sdispls is out of bounds"),
        ({"send_counts": [0], "recv_counts": [0]}, np.zeros(4, "f4"), 1, "sum(recvCounts) should more than 0, it is 0"),
        ({"rdispls": [1]}, np.zeros(4, "f4"), 1, "recvCounts[0] = 2 + rdispls[0] = 1 is more than the 2 elements"),
        ({"send_counts": [1]}, np.zeros(4, "f4"), 1, "rank 0 sends itself sendCounts[0] = 1 but expects recvCounts[0]"),
        ({}, np.zeros((1,) * 8 + (4,), "f4"), 8, "dimNum [9] should be between 1 and 8"),
        ({}, np.float32(1)[()].reshape(()), 8, "dimNum [0]"),
        ({}, np.zeros(4, "u1"), 13, "dtype uint8 (4) is not one of"),
        ({}, np.zeros(4, frameworks.dtype_of("float8_e5m2")), 13, "dtype float8_e5m2 is not one of"),
    ],
)  # fmt: skip
def test_refused_inputs(changes: dict[str, Any], x: Any, status: int, words: str) -> None:
    with pytest.raises(a2a.InvalidArgumentError) as refused:
        atb.AllToAllVOperation(good(**changes)).forward([x])
    assert words in str(refused.value)
    assert refused.value.status == status  # type: ignore[attr-defined]
    assert f"({atb.ErrorType(status).name})" in str(refused.value)


def test_the_other_side_of_these_boundaries() -> None:
    for changes, elems in (({"sdispls": [2]}, 4), ({}, 3), ({"sdispls": [0]}, 2)):
        (out,) = atb.AllToAllVOperation(good(**changes)).forward([np.arange(elems, dtype=np.float32)])
        assert out.shape == (1, 2)
    (out,) = atb.AllToAllVOperation(good()).forward([np.zeros((1,) * 7 + (4,), np.float32)])
    assert out.shape == (1, 2)


def test_number_of_inputs() -> None:
    operation = atb.AllToAllVOperation(good())
    x = np.zeros(4, np.float32)
    for inputs, said in (([], "0 tensors instead of 1"), ([x, x], "2 tensors instead of 1")):
        with pytest.raises(a2a.InvalidArgumentError, match=said) as refused:
            operation.forward(inputs)
        assert refused.value.status == atb.ErrorType.ERROR_INVALID_IN_TENSOR_NUM  # type: ignore[attr-defined]
    with pytest.raises(a2a.InvalidArgumentError, match="pass a list with one tensor"):
        operation.forward(x)  # type: ignore[arg-type]
    with pytest.raises(a2a.InvalidArgumentError, match="pass an AllToAllVParam"):
        atb.AllToAllVOperation({"rank": 0})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        ("hccl", "cannot find HCCL; looked for"),
        ("nccl", "cannot find NCCL; looked for"),
        ("mpi", "this build has no MPI"),
    ],
)
def test_backends_without_their_library(backend: str, why: str) -> None:
    with pytest.raises(a2a.UnsupportedError, match=rf"(?s)backend {backend}: {why}.*ERROR_COMM_EMPTY"):
        atb.AllToAllVOperation(good(backend=backend)).forward([np.zeros(4, np.float32)])


def test_a_rank_that_does_not_come() -> None:
    two = {"send_counts": [1, 1], "sdispls": [0, 1], "recv_counts": [1, 1], "rdispls": [0, 1]}
    operation = atb.AllToAllVOperation(good(rank_size=2, comm_domain="alone", **two), timeout=0.2)
    with pytest.raises(a2a.TimeoutError, match=r"waiting for rank 1 \(ERROR_COMM_EMPTY\)"):
        operation.forward([np.zeros(2, np.float32)])


def test_ctrl_c_while_waiting_for_a_rank() -> None:
    two = {"send_counts": [1, 1], "sdispls": [0, 1], "recv_counts": [1, 1], "rdispls": [0, 1]}
    operation = atb.AllToAllVOperation(good(rank_size=2, comm_domain="interrupted", **two), timeout=30)
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        operation.forward([np.zeros(2, np.float32)])
    assert time.monotonic() - start < 5
    timer.join()


def test_an_interrupted_exchange_keeps_its_tensors() -> None:
    with Pool(2) as pool:
        assert pool.run(atb_ranks.interrupted) == [[True, True]] * 2


# ---- rank tables ----------------------------------------------------------------------------------------------------


def table(ranks: int, servers: int = 1) -> dict[str, Any]:
    per_server = ranks // servers
    return {
        "status": "completed",
        "version": "1.0",
        "server_count": str(servers),
        "server_list": [
            {
                "server_id": f"node_{server}",
                "device": [
                    {
                        "device_id": str(d),
                        "device_ip": f"10.0.{server}.{d + 1}",
                        "rank_id": str(server * per_server + d),
                    }
                    for d in range(per_server)
                ],
            }
            for server in range(servers)
        ],
    }


def test_rank_table(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table(4, 2)))
    read = atb.read_rank_table(path)
    assert (read.version, read.size, read.hosts) == ("1.0", 4, ("node_0", "node_1"))
    assert read.ranks[3] == atb.RankPlace("node_1", "", "1", "10.0.1.2", "", "")
    content = table(4, 2)
    content["server_list"][1]["device"][0]["rank_id"] = 2
    path.write_text(json.dumps(content))
    said = r"table\.json: \$\.server_list\[1\]\.device\[0\]\.rank_id: is a number, not a string"
    with pytest.raises(a2a.InvalidArgumentError, match=said):
        atb.read_rank_table(path)


def test_rank_and_size_from_a_rank_table(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table(3)))
    with Pool(3) as pool:
        assert pool.run(atb_ranks.from_rank_table, str(path)) == [[0.0, 1.0, 2.0]] * 3


def test_a_rank_table_of_several_servers(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table(2, 2)))
    two = {"send_counts": [1, 1], "sdispls": [0, 1], "recv_counts": [1, 1], "rdispls": [0, 1]}
    operation = atb.AllToAllVOperation(good(rank_size=2, rank_table_file=path, **two))
    with pytest.raises(a2a.UnsupportedError, match="places the ranks on 2 servers"):
        operation.forward([np.zeros(2, np.float32)])
    with pytest.raises(a2a.InvalidArgumentError, match=r"rankSize \[1\], but the rank table .* has 2 ranks"):
        atb.AllToAllVOperation(good(rank_table_file=path))
