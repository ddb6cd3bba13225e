"""Several operations of torch in flight on the same tensors run in the order in which they were started."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rank_pool import Pool
from sample import examples
from torch_in_flight_ranks import rounds
from torch_worlds import WAYS

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(3) as made:
        yield made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [2, 3])
def test_random_operations(pool: Pool, way: str, size: int) -> None:
    pool.run(rounds, way, size, list(range(examples(200))))
