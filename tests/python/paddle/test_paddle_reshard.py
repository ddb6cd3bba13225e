"""a2a.paddle.reshard, against the parts that Paddle cuts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rank_pool import Pool

pytest.importorskip("paddle")
import paddle_reshard_ranks as on_ranks

pytestmark = pytest.mark.timeout(110)


@pytest.fixture(scope="module")
def four() -> Iterator[Pool]:
    with Pool(4) as pool:
        yield pool


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bool", marks=pytest.mark.full), "int64"])
def test_random_layouts(four: Pool, dtype: str) -> None:
    four.run(on_ranks.at_random, dtype)


def test_partial_sources_and_gradients(four: Pool) -> None:
    four.run(on_ranks.partial_and_gradients)


def test_bad_arguments_are_refused_here_and_a_mismatch_there(four: Pool) -> None:
    four.run(on_ranks.refused)
