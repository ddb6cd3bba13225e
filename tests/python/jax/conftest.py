"""Four ranks that live for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rank_pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    with Pool(4) as pool:
        yield pool
