"""Exchanges of CUDA memory, on the doubles of NCCL and the CUDA driver that the C++ build makes. What the ranks do is
in nccl_ranks.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cmake_tools
import nccl_ranks as ranks
import pytest
from mpi import LIBRARIES
from rank_pool import Pool

pytestmark = [
    pytest.mark.skipif(not (Path(__file__).parents[2] / "CMakeLists.txt").exists(), reason="no source tree"),
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


POOLS = [*map(Pool, [1, 2, 5]), *(Pool(4, hosts="a,b,a,b") for _ in LIBRARIES[:1])]
POOLS.append(Pool(4, hosts="a,b,a,b", network="TCP"))


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


def test_streams_in_every_form(pool: Pool) -> None:
    pool.run(ranks.streams)


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
