"""Eight ranks that live for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rank_pool import Pool
from torch_worlds import RANKS


@pytest.fixture(scope="session")
def ranks() -> Iterator[Pool]:
    with Pool(RANKS) as pool:
        yield pool


@pytest.fixture(scope="session")
def peer(pytestconfig: pytest.Config) -> str:
    """Whose answers are tested: a2a's, or with ``--peer gloo`` those of torch's own backend."""
    return str(pytestconfig.getoption("--peer", "a2a"))
