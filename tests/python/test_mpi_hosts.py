"""Ranks on hosts that share nothing but a network, over real MPI libraries."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from mpi import LIBRARIES, Mpi, placement
from network_hosts import remote_shell

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not LIBRARIES, reason="no MPI is installed: pip install mpich"),
]
PROGRAM = str(Path(__file__).with_name("mpi_ranks.py"))


@pytest.fixture(params=LIBRARIES, ids=lambda mpi: mpi.name)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize(("count", "each"), [(2, 2), (3, 1), (2, 1)])
def test_exchanges(mpi: Mpi, addresses: list[str], count: int, each: int, tmp_path: Path) -> None:
    shell = remote_shell(tmp_path / "shell", addresses)
    command = mpi.command(count * each, PROGRAM, "works", str(count))
    command[1:1] = placement(mpi, shell, addresses[:count], each)
    env = mpi.environment()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    ranks = count * each
    assert done.returncode == 0, done.stdout + done.stderr
    fine = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    assert sorted(fine) == [f"rank {rank} of {ranks} is fine" for rank in range(ranks)], done.stdout + done.stderr
