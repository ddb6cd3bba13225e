"""Ranks that share GPUs on hosts that are assigned: they meet, and compare, over TCP or MPI, and exchange over NCCL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import gpu_ranks
import pytest
from gpu_ranks import DRIVER
from mpi import INSTALLED
from rank_pool import Pool

pytestmark = pytest.mark.timeout(150)

HOSTS = "a,b,a,b"
POOLS = [Pool(4, hosts=HOSTS), *(Pool(4, hosts=HOSTS, mpi=mpi) for mpi in INSTALLED)]


@pytest.fixture(scope="module", params=POOLS, ids=repr)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with pytest.MonkeyPatch.context() as patch, request.param as pool:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # for programs of their own
        for name, value in gpu_ranks.sharing().items():
            patch.setenv(name, value)
        refused = pool.run(gpu_ranks.meet, DRIVER)
        if any(refused):
            pytest.skip(f"NCCL does not take {pool.n} ranks on these GPUs: {refused[0]}")
        yield pool


@pytest.mark.parametrize("how", ["call", "plan", "async"])
def test_exchanges(pool: Pool, how: str) -> None:
    pool.run(gpu_ranks.exchange, DRIVER, "uneven", how)


def test_a_disagreement(pool: Pool) -> None:
    for told in pool.run(gpu_ranks.disagreement, DRIVER):
        assert told.startswith("MismatchError: "), told
