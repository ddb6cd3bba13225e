"""A signal handler that raises inside a call of several operations: the peers raise MismatchError at once, or have the
result, and the ranks stay in step. See interrupts.py."""

from __future__ import annotations

from collections.abc import Iterator

import interrupt_ranks as ranks
import pytest
from rank_pool import Pool
from sample import with_full

pytestmark = pytest.mark.timeout(110)


@pytest.fixture(scope="module", params=[Pool(2), *with_full([Pool(3), Pool(3, hosts="a,b,a")])], ids=repr)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with request.param as pool:
        yield pool


@pytest.mark.parametrize("name", ranks.CORE)
@pytest.mark.parametrize("opcodes", [False, *with_full([True])])
def test_at_every_step(pool: Pool, name: str, opcodes: bool) -> None:
    steps = pool.run(ranks.core, name, opcodes)
    assert name in ranks.BRIEF or min(steps) > 2, steps


@pytest.mark.parametrize("name", [name for name in ranks.CORE if name not in ranks.BRIEF])
@pytest.mark.parametrize("trials", [100, *with_full([2000])])
def test_at_random_times(pool: Pool, name: str, trials: int) -> None:
    hits = pool.run(ranks.core_at_random, name, trials)
    assert hits[1] > 10, hits
