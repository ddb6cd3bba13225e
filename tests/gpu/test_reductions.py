"""Reductions and rooted operations on GPUs: one rank, and several ranks, which share a GPU where there are too few."""

from __future__ import annotations

import gpu_ranks
import pytest
from rank_pool import Pool

pytestmark = pytest.mark.timeout(150)


def test_every_dtype_and_operation(ranks: Pool, framework: str) -> None:
    print("dtypes:", *ranks.run(gpu_ranks.reductions, framework)[0])


def test_every_shape(ranks: Pool, framework: str) -> None:
    ranks.run(gpu_ranks.reduction, framework, "shapes")


@pytest.mark.parametrize("dtype", ["uint8", "float32", "complex128"])
def test_rooted_operations(ranks: Pool, framework: str, dtype: str) -> None:
    ranks.run(gpu_ranks.reduction, framework, "rooted", dtype)


@pytest.mark.parametrize("how", ["op", "root"])
def test_a_disagreement(ranks: Pool, how: str) -> None:
    if ranks.n < 2:
        pytest.skip("needs a peer")
    assert all("rank 1" in text for text in ranks.run(gpu_ranks.reduction, gpu_ranks.DRIVER, "disagree", how))


def test_an_allreduce_in_a_graph(ranks: Pool, framework: str) -> None:
    ranks.run(gpu_ranks.reduction_graph, framework)
