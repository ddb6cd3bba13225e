"""ATB's AllToAllV in Python: against the oracle, and each constraint from both sides. The checks themselves are the C++
operation's; atb_checks_test.cc has all of them."""

from __future__ import annotations

import copy
import importlib
import os
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
from atb_ranks import DTYPES, Recipe, expected
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


@pytest.fixture(scope="module", params=range(1, 9))
def pool(request: pytest.FixtureRequest, threads: bool) -> Iterator[Pool]:
    with Pool(request.param, threads) as pool:
        yield pool


@pytest.fixture(scope="module")
def four(threads: bool) -> Iterator[Pool]:
    with Pool(4, threads) as pool:
        yield pool


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


def test_a_rank_may_send_nothing(four: Pool) -> None:
    outputs = four.run(atb_ranks.nothing_to_send, four.threads)
    assert outputs == [[[1, 2, 3]], [[1, 2, 3]], [[1, 2, 3]], [[1, 2, 3]]]


def test_several_domains(four: Pool) -> None:
    assert four.run(atb_ranks.several_domains, four.threads) == [
        [60, 60, 10, 60],
        [60, 60, 10, 60],
        [60, 60, 50, 60],
        [60, 60, 50, 60],
    ]


def test_many_operations_at_once_in_threads() -> None:
    """24 operations, each in a thread of its own: 4 domains of 4 ranks, and 4 of 2."""
    right: list[bool] = []

    def rank_main(domain: int, rank: int, size: int) -> None:
        for round_ in range(5):
            recipe = Recipe(100 * domain + round_, DTYPES[round_])
            case, wanted = recipe.case(size), expected(recipe, size)
            group = {"comm_mode": atb.CommMode.COMM_MULTI_THREAD, "comm_domain": f"at once {domain}"}
            operation = atb.Operation(atb.AllToAllVParam(**atb_ranks.parameters(case, rank), **group), timeout=60)
            (out,) = operation.forward([recipe.array(rank, case.send_rows[rank])])
            right.append(testing.first_difference(out[0], wanted[rank]) is None)

    in_threads(rank_main, [(d, rank, size) for d, size in enumerate([4, 2] * 4) for rank in range(size)])
    assert right == [True] * (24 * 5)


def test_two_threads_of_a_rank_meet_its_group_once() -> None:
    """Both need the communicator of one domain; whoever comes second uses what the first has made."""
    told: list[Any] = []

    def rank_main(rank: int) -> None:
        ones = {"send_counts": [1, 1], "sdispls": [0, 1], "recv_counts": [1, 1], "rdispls": [0, 1]}
        param = atb.AllToAllVParam(rank, 2, **ones, backend="shm", comm_mode=1, comm_domain="met once")
        told.append(atb.Operation(param, timeout=20).forward([np.full(2, rank, np.int32)])[0].tolist())

    in_threads(rank_main, [(rank,) for rank in (0, 0, 1, 1)])
    assert told == [[[0, 1]]] * 4


def in_threads(fn: Any, calls: list[tuple[Any, ...]]) -> None:
    """All calls at once."""
    start = threading.Barrier(len(calls))

    def body(*args: Any) -> None:
        start.wait(30)
        fn(*args)

    threads = [threading.Thread(target=body, args=args) for args in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)


def test_domains_are_no_part_of_the_rest_of_a_meeting_place() -> None:
    """A domain that looks like what tells threads apart does not lead to the threads of another domain."""
    param = {"rank_size": 2, "send_counts": [1, 1], "sdispls": [0, 1], "recv_counts": [1, 1], "rdispls": [0, 1]}
    told: list[str] = []

    def rank_main(rank: int, mode: int, domain: str) -> None:
        operation = atb.Operation(good(rank=rank, comm_mode=mode, comm_domain=domain, **param), timeout=0.5)
        with pytest.raises(a2a.TimeoutError) as late:
            operation.forward([np.zeros(2, np.float32)])
        told.append(str(late.value))

    in_threads(rank_main, [(0, 1, "trap"), (1, 0, f"trap/threads-{os.getpid()}")])
    assert len(told) == 2


def test_peers_learn_of_a_refused_input(four: Pool) -> None:
    told = four.run(atb_ranks.bad_input_on_rank_1, four.threads)
    assert [[said[0], said[-1]] for said in told] == [["", ""]] * 4
    reasons = [
        ("InvalidArgumentError 1", "sendCounts + sdispls is out of bounds"),
        ("InvalidArgumentError 13", "inTensor[0]: dtype double (11) is not one of float16, float"),
        ("InvalidArgumentError 1", "inTensor[0] of shape (4,) is not contiguous"),
        ("InvalidArgumentError 1", "inTensor[0] is not a tensor"),
        ("InvalidArgumentError 9", "shape [0] of dtype float (0) has 0 bytes"),
        ("InvalidArgumentError 1", "inTensor[0] is not a tensor: list"),
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
    for odd in (None, 1.5, float, object(), "x", 10**30, np.zeros((2, 2))):
        wrong = good(rank=odd, rsv=odd, send_counts=odd)  # checked later, but it can be looked at
        assert wrong == copy.copy(wrong) != good() and "rsv=" in repr(wrong)
    with pytest.raises(a2a.InvalidArgumentError, match="rank_size twice, once as rankSize"):
        atb.AllToAllVParam(rank_size=1, rankSize=1)
    with pytest.raises(TypeError, match="no field 'ranksize'"):
        atb.AllToAllVParam(ranksize=1)  # type: ignore[call-overload]
    with pytest.raises(AttributeError, match="no field 'send_count'"):
        snake.send_count = []  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="always has its field 'rank'"):
        del snake.rank


def test_defaults_and_order_are_the_documents() -> None:
    param = atb.AllToAllVParam()
    assert list(vars(param).values()) == [0, 0, 0, [], [], [], [], "hccl", None, 0, "", "", bytes(64)]
    assert atb.AllToAllVParam(0, 1, 2, [3], [4], [5], [6], "shm", None, 1, "t", "d", bytes(64)) == atb.AllToAllVParam(
        rank=0, rankSize=1, rankRoot=2, sendCounts=[3], sdispls=[4], recvCounts=[5], rdispls=[6], backend="shm",
        commMode=1, rankTableFile="t", commDomain="d",
    )  # fmt: skip


@pytest.mark.smoke
def test_an_operation() -> None:
    operation = atb.Operation(good())
    assert (operation.name, operation.input_num, operation.output_num) == ("AllToAllVOperation", 1, 1)
    x = np.arange(4, dtype=np.int64).reshape(2, 2)
    x.flags.writeable = False
    (out,) = operation.forward([x])
    assert out.tolist() == [[1, 2]] and out.dtype == np.int64 and out.flags.writeable


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rsv": bytes(63) + b"\1"}, "rsv[63] is 1"),
        ({"rsv": bytes(65)}, "rsv has 65 bytes"),
        ({"backend": "lccl"}, 'backend is "lccl", must be hccl, shm, nccl, mpi or auto'),
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
        ({"rank_table_file": 3}, "rankTableFile is 3; pass a path"),
        ({"rank_table_file": "\ud800"}, r"rankTableFile is '\ud800'; pass a path"),
        ({"comm_domain": "\ud800"}, r"commDomain is '\ud800'; pass a string"),
        ({"comm_domain": Path("x")}, "commDomain is PosixPath('x'); pass a string"),
        ({"comm_domain": np.zeros(3)}, "commDomain is array([0., 0., 0.]); pass a string"),
        ({"backend": "shm\0"}, r'backend is "shm\x00", must be'),
        ({"comm_domain": "0:99999999999"}, "its size of 99999999999 MB must be between 200 and 4294967295"),
    ],
)  # fmt: skip
def test_refused_parameters(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(a2a.InvalidArgumentError) as refused:
        atb.AllToAllVOperation(good(**changes))
    assert words in str(refused.value)
    assert refused.value.status == atb.ErrorType.ERROR_INVALID_PARAM  # type: ignore[attr-defined]


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
        (
            "nccl",
            ".*cannot find (NCCL|the CUDA driver); looked for",
        ),  # it stays loaded, where another test has found it
        ("mpi", "cannot find MPI; looked for"),
    ],
)
def test_backends_without_their_library(backend: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in (backend, "cuda"):
        monkeypatch.setenv(f"A2A_{library.upper()}_LIBRARY", f"/nowhere/lib{library}.so")
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
