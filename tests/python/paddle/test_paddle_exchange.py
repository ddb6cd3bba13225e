"""a2a.paddle against the oracle: 1 to 8 ranks, 1 to 8 experts on each, random counts with many zeros, every dtype,
forward and backward."""

from __future__ import annotations

import pytest
from rank_pool import Pool
from sample import with_full

pytest.importorskip("paddle")
import paddle_ranks
from paddle_ranks import ALSO, DTYPES

pytestmark = pytest.mark.timeout(110)
COUNTS = [3, *with_full([1, 2, *range(4, 9)])]


def require_none(found: list[list[str]]) -> None:
    problems = [f"rank {rank}: {text}" for rank, texts in enumerate(found) for text in texts]
    assert not problems, "\n".join(problems[:10])


@pytest.mark.parametrize("ranks", COUNTS)
def test_global_scatter_and_gather(paddle_pool: Pool, ranks: int) -> None:
    for experts in range(1, 9):
        require_none(paddle_pool.run(paddle_ranks.experts, ranks, experts, DTYPES + ALSO, 10 * ranks + experts))


@pytest.mark.parametrize("ranks", COUNTS)
def test_alltoall_single(paddle_pool: Pool, ranks: int) -> None:
    require_none(paddle_pool.run(paddle_ranks.singles, ranks, DTYPES + ALSO, ranks))


@pytest.mark.parametrize("ranks", COUNTS)
def test_alltoall_of_lists(paddle_pool: Pool, ranks: int) -> None:
    require_none(paddle_pool.run(paddle_ranks.lists, ranks, DTYPES + ALSO, ranks))


@pytest.mark.smoke
@pytest.mark.parametrize("ranks", COUNTS)
def test_all_gather(paddle_pool: Pool, ranks: int) -> None:
    require_none(paddle_pool.run(paddle_ranks.gathers, ranks, DTYPES + ALSO[:3], ranks))
