"""Exchanges of CUDA memory, on the doubles of NCCL and the CUDA driver that the C++ build makes. What the ranks do is
in nccl_ranks.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cmake_tools
import nccl_ranks as ranks
import pytest
from mpi import LIBRARIES
from rank_pool import Pool
from reduction_ranks import DTYPES, folded_by_nccl
from sample import with_full

pytestmark = [
    pytest.mark.skipif(not (Path(__file__).parents[3] / "CMakeLists.txt").exists(), reason="no source tree"),
    pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}"),
    pytest.mark.timeout(900),  # the first test builds the doubles
]


@pytest.fixture(scope="module", params=["", "nccl-2.18"])
def version(request: pytest.FixtureRequest, build_dir: Path) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A2A_TEST_DOUBLES", "1")
        patch.setenv("A2A_NCCL_LIBRARY", str(build_dir / "fakes" / request.param / "libnccl.so.2"))
        patch.setenv("A2A_CUDA_LIBRARY", str(build_dir / "fakes" / "libcuda.so.1"))
        yield request.param


POOLS = [Pool(1), Pool(5), Pool(4, hosts="a,b,a,b"), *with_full([Pool(2)])]
POOLS += with_full(Pool(4, hosts="a,b,a,b", mpi=mpi) for mpi in LIBRARIES[:1])


@pytest.fixture(scope="module", params=POOLS, ids=repr)
def pool(request: pytest.FixtureRequest, version: str) -> Iterator[Pool]:
    with request.param as pool:
        yield pool


@pytest.mark.parametrize("how", ["call", "async", "plan"])
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "complex128"])
def test_uneven_parts_with_gaps(pool: Pool, dtype: str, how: str) -> None:
    pool.run(ranks.uneven, dtype, how)


def test_the_other_calls(pool: Pool) -> None:
    pool.run(ranks.other_calls)


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions(pool: Pool, version: str, dtype: str) -> None:
    pool.run(ranks.reduction, "every_operation", dtype, 7, "NCCL", folded_by_nccl(dtype, not version))


def test_reductions_of_float8_on_older_gpus(pool: Pool) -> None:
    pool.run(ranks.old_gpu)


def test_reductions_of_every_shape(pool: Pool) -> None:
    pool.run(ranks.reduction, "shapes")


@pytest.mark.parametrize("dtype", ["int8", "float32", "complex128"])
def test_rooted_operations(pool: Pool, dtype: str) -> None:
    pool.run(ranks.reduction, "rooted", dtype)


@pytest.mark.parametrize("how", ["op", "dtype", "size", "root", "root of reduce", "call"])
def test_a_disagreement_about_a_reduction_is_told_on_all(pool: Pool, how: str) -> None:
    if pool.n < 2:
        pytest.skip("needs a peer")
    assert all("rank 1" in text for text in pool.run(ranks.reduction, "disagree", how))


def test_what_a_reduction_calls(
    version: str, run_ranks: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL's own call, and uneven parts as one group."""
    monkeypatch.setenv("A2A_FAKE_LOG", str(tmp_path / "log"))
    for told in run_ranks(3, ranks.reduction_calls, tmp_path / "log"):
        assert {name: calls[-1] for name, calls in told.items()} == dict.fromkeys(told, "cuEventRecord")
        assert {name: [call for call in calls[:-1] if "Group" not in call] for name, calls in told.items()} == {
            "allreduce": ["AllReduce"],
            "reduce": ["Reduce"],
            "reduce_scatter": ["ReduceScatter"],
            "reduce_scatterv": ["Reduce"] * 3,
            "broadcast": ["Broadcast"],
        }
        assert told["reduce_scatterv"].count("ncclGroupStart") == 1


def test_streams_in_every_form(pool: Pool) -> None:
    pool.run(ranks.streams)


@pytest.mark.parametrize("how", ["call", "async", "plan"])
@pytest.mark.parametrize("framework", ["exchange API", "CuPy", "protocol"])
def test_what_is_enqueued_already_comes_first(pool: Pool, framework: str, how: str) -> None:
    pool.run(ranks.pending_work, framework, how)


def test_a_framework_that_has_to_be_told_the_stream(pool: Pool) -> None:
    pool.run(ranks.pending_work, "protocol", "stream")
    pool.run(ranks.told)


def test_new_jax_arrays(pool: Pool) -> None:
    pool.run(ranks.new_jax_arrays)


def test_a_communicator_of_the_programs_own(pool: Pool) -> None:
    pool.run(ranks.adopted)


def test_generations(pool: Pool) -> None:
    pool.run(ranks.generations)


def test_what_an_exchange_calls(
    version: str, run_ranks: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One group and one event, and one copy where this rank's own part is the largest: nothing that allocates, and
    nothing that waits for the device."""
    monkeypatch.setenv("A2A_FAKE_LOG", str(tmp_path / "log"))
    exchange = ["ncclGroupStart", *["Send", "Recv"] * 3, "ncclGroupEnd", "cuEventRecord"]
    own = ["cuMemcpyAsync", "ncclGroupStart", *["Send", "Recv"] * 2, "ncclGroupEnd", "cuEventRecord"]
    after_the_stream = ["cuEventRecord", "cuStreamWaitEvent"]
    for told in run_ranks(3, ranks.calls, tmp_path / "log"):
        assert told == {"call": exchange, "plan": exchange, "async": after_the_stream + exchange, "own": own}


def test_tensors_in_the_wrong_place(pool: Pool) -> None:
    if pool.n < 2:
        pytest.skip("needs a peer")
    told = pool.run(ranks.refusals)
    wanted = [
        "send is in cuda:1 memory, but recv is in cuda:7 memory",
        "send is in host memory, but recv is in cuda:1 memory",
        "the tensors are on cuda:7, but this communicator uses cuda:1",
    ]
    for rank, texts in enumerate(told):
        assert len(texts) == len(wanted)
        for text, reason in zip(texts, wanted, strict=True):
            assert text.startswith("InvalidArgumentError: " if rank == 1 else "MismatchError: ") and reason in text


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("how", ["plan", "call"])
def test_an_abort_between_calls(pool: Pool, how: str, asks: bool) -> None:
    for before, told, after in pool.run(ranks.aborted, how, asks):
        assert before and after and told.startswith("AbortedError: ") and "rank 0 aborted: enough" in told


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("how", ["plan", "call"])
def test_a_death_between_calls(version: str, rank_outcomes: Callable[..., Any], how: str, asks: bool) -> None:
    for outcome in rank_outcomes(3, ranks.killed, how, asks)[1:]:
        before, told, after = outcome.value
        assert before and after and told.startswith("PeerLostError: ") and "lost rank 0 (" in told


@pytest.mark.parametrize("how", ["plan", "call"])
def test_a_deadline_that_nobody_waits_for(pool: Pool, how: str) -> None:
    if pool.n < 2:
        pytest.skip("needs a peer")
    for _, told, after in pool.run(ranks.late, how):
        assert after and told.startswith("TimeoutError: ") and "timeout on rank " in told
