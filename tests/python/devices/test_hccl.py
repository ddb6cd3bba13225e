"""Exchanges of Ascend memory, on the doubles of HCCL and AscendCL that the C++ build makes. What the ranks do is in
hccl_ranks.py."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cmake_tools
import hccl_ranks as ranks
import pytest
from exchange_ranks import Recipe, unguarded
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mpi import LIBRARIES
from rank_pool import Pool
from reduction_ranks import folded_by_hccl
from sample import examples, with_full

from a2a import testing

pytestmark = [
    pytest.mark.skipif(not (Path(__file__).parents[3] / "CMakeLists.txt").exists(), reason="no source tree"),
    pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}"),
    pytest.mark.timeout(900),  # the first test builds the doubles
]

DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128"
    " float8_e4m3fn float8_e5m2"
).split()
HOWS = ("call", "async", "plan")


@pytest.fixture(scope="module", autouse=True)
def doubles(build_dir: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A2A_TEST_DOUBLES", "1")
        patch.setenv("A2A_HCCL_LIBRARY", str(build_dir / "fakes" / "libhccl.so"))
        patch.setenv("A2A_ASCENDCL_LIBRARY", str(build_dir / "fakes" / "libascendcl.so"))
        yield


POOLS = [Pool(2), Pool(8), Pool(4, hosts="a,b,a,b"), *with_full([Pool(3)])]
POOLS += with_full(Pool(4, hosts="a,b,a,b", mpi=mpi) for mpi in LIBRARIES[:1])


@pytest.fixture(scope="module", params=POOLS, ids=repr)
def pool(request: pytest.FixtureRequest, doubles: None) -> Iterator[Pool]:
    with request.param as pool:
        yield pool


@pytest.fixture(scope="module")
def two(doubles: None) -> Iterator[Pool]:
    with Pool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def three(doubles: None) -> Iterator[Pool]:
    with Pool(3) as pool:
        yield pool


# ---- every operation against the oracle ------------------------------------------------------------------------------


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    return Recipe(
        seed=draw(st.integers(0, 2**32 - 1)),
        dtype=draw(st.sampled_from(DTYPES)),
        trailing=draw(st.sampled_from([(), (1,), (3,), (2, 5), (0,)])),
        max_rows=draw(st.sampled_from([0, 1, 5, 40])),
        max_gap=draw(st.sampled_from([0, 3])),
        empty=draw(st.sampled_from([0, 0.2, 0.8, 1])),
        experts=draw(st.sampled_from([1, 2, 3])),
    )


def for_examples(check: Callable[..., None], **strategies: st.SearchStrategy[Any]) -> None:
    limits = settings(
        max_examples=examples(25),
        phases=[Phase.explicit, Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    limits(given(recipe=recipes(), **strategies)(check))()


def require_same(recipe: Recipe, actual: Sequence[bytes], results: Sequence[Any]) -> None:
    for rank, (left, right) in enumerate(zip(actual, results, strict=True)):
        expected = unguarded(recipe, right)
        if left != expected:
            pytest.fail(f"rank {rank}: {testing.first_difference(left, expected)}")


def expected_alltoallv(recipe: Recipe, n: int, packed: bool) -> list[Any]:
    case = recipe.case(n)
    displs = () if packed else (case.send_displs, case.recv_displs)
    sends = [recipe.array(rank, rows) for rank, rows in enumerate(case.send_rows)]
    recvs = [recipe.poisoned(rows) for rows in case.recv_rows]
    return testing.alltoallv(sends, case.send_counts, recvs, *displs)


def test_alltoallv(pool: Pool) -> None:
    def check(recipe: Recipe, packed: bool, how: str) -> None:
        require_same(recipe, pool.run(ranks.alltoallv, recipe, packed, how), expected_alltoallv(recipe, pool.n, packed))

    for_examples(check, packed=st.booleans(), how=st.sampled_from((*HOWS, "handle", "object", "pointer")))


@pytest.mark.parametrize("dtype", DTYPES)
def test_alltoallv_of_every_dtype(three: Pool, dtype: str) -> None:
    recipe = Recipe(seed=len(dtype), dtype=dtype, trailing=(3,), max_rows=20)
    require_same(recipe, three.run(ranks.alltoallv, recipe, False, "call"), expected_alltoallv(recipe, 3, False))


def test_alltoall(pool: Pool) -> None:
    def check(recipe: Recipe, how: str) -> None:
        sends = [recipe.array(rank, recipe.max_rows * pool.n) for rank in range(pool.n)]
        require_same(recipe, pool.run(ranks.alltoall, recipe, how), testing.alltoall(sends))

    for_examples(check, how=st.sampled_from(HOWS))


def test_allgather(pool: Pool) -> None:
    def check(recipe: Recipe, how: str) -> None:
        sends = [recipe.array(rank, recipe.max_rows) for rank in range(pool.n)]
        require_same(recipe, pool.run(ranks.allgather, recipe, how), testing.allgather(sends))

    for_examples(check, how=st.sampled_from((*HOWS, "in place")))


def test_alltoall_list(pool: Pool) -> None:
    def check(recipe: Recipe, how: str) -> None:
        recipe = dataclasses.replace(recipe, trailing=())  # the entries have shapes of their own
        actual = pool.run(ranks.alltoall_list, recipe, how)
        sends = [ranks.list_parts(recipe, rank, pool.n) for rank in range(pool.n)]
        expected = testing.alltoall_list(sends)
        wanted = [b"".join(unguarded(recipe, part) for part in row) for row in expected]
        assert actual == wanted

    for_examples(check, how=st.sampled_from(("call", "async")))


def test_global_scatter_and_back(pool: Pool) -> None:
    def check(recipe: Recipe, how: str) -> None:
        counts = recipe.local_counts(pool.n)
        xs = [recipe.array(rank, counts[rank].sum()) for rank in range(pool.n)]
        scattered = testing.global_scatter(xs, counts)
        there, back = zip(*pool.run(ranks.there_and_back, recipe, how), strict=True)
        require_same(recipe, there, scattered)
        require_same(recipe, back, testing.global_gather(scattered, counts))

    for_examples(check, how=st.sampled_from(HOWS))


def test_generations(pool: Pool) -> None:
    pool.run(ranks.generations)


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions(pool: Pool, dtype: str) -> None:
    pool.run(ranks.reduction, "every_operation", dtype, 7, "HCCL", folded_by_hccl(dtype))


def test_reductions_of_every_shape(pool: Pool) -> None:
    pool.run(ranks.reduction, "shapes")


@pytest.mark.parametrize("dtype", ["int8", "float32", "complex128"])
def test_rooted_operations(pool: Pool, dtype: str) -> None:
    pool.run(ranks.reduction, "rooted", dtype)


@pytest.mark.parametrize("how", ["op", "dtype", "size", "root", "root of reduce", "call"])
def test_a_disagreement_about_a_reduction_is_told_on_all(pool: Pool, how: str) -> None:
    assert all("rank 1" in text for text in pool.run(ranks.reduction, "disagree", how))


def test_outputs_that_the_framework_of_the_input_makes(three: Pool) -> None:
    for rank, (exchanged, scattered, gathered, refused) in enumerate(three.run(ranks.allocated)):
        assert exchanged == scattered == [0, 1, 2]
        assert gathered == [rank] * 3
        assert refused.startswith("UnsupportedError: rank ") and "receive into a tensor of your own" in refused


# ---- streams and memory ----------------------------------------------------------------------------------------------


def test_order_before(pool: Pool) -> None:
    assert pool.run(ranks.ordered) == [[True] * 4] * pool.n


def test_streams_that_are_none(two: Pool) -> None:
    for told in two.run(ranks.refused_streams):
        assert "stream is 0, the default stream, which HCCL does not take" in told[0]
        assert all("pass a handle, an object with __cuda_stream__" in text for text in told[1:4])
        assert all(text.startswith("InvalidArgumentError: ") for text in told)
        assert "stream is 0, the default stream, which HCCL does not take" in told[4]


@pytest.mark.parametrize("how", ["async", "stream"])
def test_tensors_are_held_while_in_flight(two: Pool, how: str) -> None:
    assert two.run(ranks.dropped, how) == [(True, True, True)] * 2


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_tensors_in_the_wrong_place(three: Pool) -> None:
    others, own, _ = three.run(ranks.misplaced)
    wanted = [
        "send is in host memory, but recv is in npu:1 memory",
        "send is in npu:1 memory, but recv is in host memory",
        "send is in npu:1 memory, but recv is in npu:7 memory",
        "the tensors are on npu:7, but this communicator uses npu:1",
        "send and recv are in npu:1 memory, but plan 1 was made for host memory",
        "recv (a2a._core.SharedArray) cannot be written: it is read-only",
        "send and recv share memory; receive into a tensor of its own",
        "send_counts is on a device, but counts are needed on the host",
    ]
    for text, peer, reason in zip(own, others, wanted, strict=True):
        assert text.startswith("InvalidArgumentError: ") and reason in text
        assert peer.startswith("MismatchError: ") and "rank 1 does not take part" in peer and reason in peer


def test_a_disagreement_of_two_ranks_is_told_on_all(three: Pool) -> None:
    told = three.run(ranks.disagreement)
    for counts, dtypes in told:
        assert counts.startswith("MismatchError: ")
        assert "rank 0 sends 2 rows to rank 1, which expects 1 (row = 12 bytes, float32)" in counts
        assert "uses dtype float32, rank" in dtypes


def test_devices_by_name(two: Pool) -> None:
    for rank, told in enumerate(two.run(ranks.devices)):
        names, connected, adopted = told[:6], told[6], told[7:]
        assert all(text.startswith("InvalidArgumentError: ") for text in told)
        assert 'device is 3; pass a name such as "cuda:0" or "npu:1"' in names[4]
        assert 'memory is \'gpu\'; pass "cuda" or "npu"' in names[1]
        assert "device npu:99 does not exist, this process has 8" in names[5]
        assert f"device is npu:7, but this communicator uses npu:{rank}" in connected
        assert "communicator is 0; pass the address" in adopted[0]
        assert "memory is 'gpu'" in adopted[1]
        assert "before the first operation" in adopted[2]


@pytest.mark.parametrize("check", ["always", "first", "off"])
@pytest.mark.parametrize("by_variable", [False, True])
def test_check(two: Pool, check: str, by_variable: bool) -> None:
    given = [None if by_variable else check] * 2
    for told in two.run(ranks.checks, given, check if by_variable else ""):
        if check == "always":
            assert told.startswith("usable MismatchError: ") and "rank 0 sends 2 elements to rank 1" in told
        else:  # HCCL finds it, after the call
            assert told.startswith("broken BackendError: ") and "rank 0 sends HcclAlltoAllV" in told


def test_ranks_that_differ_in_check(two: Pool) -> None:
    for told in two.run(ranks.checks, ["always", "off"]):
        assert told.startswith("MismatchError: ")
        assert "rank 0 has HCCL, check=always, rank 1 has HCCL, check=off" in told


# ---- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["call", "work"])
def test_an_operation_that_never_ends(three: Pool, how: str) -> None:
    for told, took, broken in three.run(ranks.stalled, how):
        assert told.startswith("TimeoutError: alltoall #") and "timeout on rank " in told and "; peers: rank" in told
        assert 0.9 < took < 1.5 and broken


@pytest.mark.parametrize("how", ["thread", "process"])
@pytest.mark.parametrize("where", ["connect", "first operation", "comparison", "ATB"])
def test_ctrl_c(two: Pool, where: str, how: str) -> None:
    (told, took), (peer, _) = two.run(ranks.interrupted, where, how)
    assert told == "KeyboardInterrupt" and took < 0.2
    if where == "connect":
        assert peer == "nothing was raised"
    else:
        assert peer.startswith("AbortedError: ") and "rank 0" in peer and "interrupted by a signal" in peer


# ---- ATB -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["hccl", "auto"])
@pytest.mark.parametrize("by", ["nothing", "rank table", "communicator"])
def test_atb(three: Pool, tmp_path: Path, backend: str, by: str) -> None:
    table = tmp_path / "table.json"
    devices = [{"device_id": str(rank), "device_ip": "10.0.0.1", "rank_id": str(rank)} for rank in range(3)]
    servers = [{"server_id": "node", "device": devices}]
    table.write_text(json.dumps({"status": "completed", "version": "1.0", "server_count": "1", "server_list": servers}))
    for result, (on_host, without_allocator) in three.run(ranks.atb, backend, by, str(table)):
        assert result == [0, 1, 1, 2, 2, 2]
        if backend == "hccl" or by == "communicator":
            assert "inTensor[0] is not in npu memory" in on_host
        else:
            assert on_host == "nothing was raised"  # host memory goes another way
        assert without_allocator.startswith("UnsupportedError: ") and "receive into a tensor of" in without_allocator
