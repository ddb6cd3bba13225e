"""Ranks on hosts that share nothing but a network, over real MPI libraries."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
from commands import needs
from mpi import LEAVES_OTHERS_ALONE, LIBRARIES, Mpi, command_on_hosts
from network_hosts import remote_shell
from networks import ONE_ABI, assert_disagreements

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not LIBRARIES, reason="no MPI is installed: pip install mpich"),
]
PROGRAM = str(Path(__file__).parents[1] / "support" / "mpi_ranks.py")


@pytest.fixture(params=ONE_ABI, ids=lambda mpi: mpi.name)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    return request.param  # type: ignore[no-any-return]


class Hosts:
    """Runs mpi_ranks.py on them."""

    def __init__(self, mpi: Mpi, addresses: list[str], folder: Path) -> None:
        self.mpi, self.addresses, self.shell = mpi, addresses, remote_shell(folder / "shell", addresses)

    def run(
        self, count: int, each: int, *program: str, options: tuple[str, ...] = (), **changes: str
    ) -> tuple[int, list[str]]:
        """The exit status of mpiexec and the lines that ranks printed, sorted."""
        command = command_on_hosts(self.mpi, self.shell, self.addresses[:count], each, PROGRAM, *program)
        command[1:1] = options
        env = self.mpi.environment(**changes)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
        if done.returncode != 0:
            print(done.stdout, done.stderr)
        # UCX writes there, too.
        return done.returncode, sorted(line for line in done.stdout.splitlines() if not line.startswith("["))


@pytest.fixture
def hosts(mpi: Mpi, addresses: list[str], tmp_path: Path) -> Hosts:
    return Hosts(mpi, addresses, tmp_path)


def fine(ranks: int) -> list[str]:
    return [f"rank {rank} of {ranks} is fine" for rank in range(ranks)]


@pytest.mark.parametrize(
    ("count", "each"), [(2, 2), *(pytest.param(*one, marks=pytest.mark.full) for one in [(3, 1), (2, 1)])]
)
def test_exchanges(hosts: Hosts, count: int, each: int) -> None:
    assert hosts.run(count, each, "works", str(count)) == (0, fine(count * each))


def test_ranks_that_are_named_for_torch(hosts: Hosts) -> None:
    """RANK and WORLD_SIZE do not say that there are several hosts; mpiexec does."""
    assert hosts.run(2, 1, "named_for_torch", "2") == (0, fine(2))


def test_disagreements(hosts: Hosts) -> None:
    status, lines = hosts.run(2, 2, "disagreements")
    assert status == 0
    assert_disagreements(lines)


def test_plans(hosts: Hosts) -> None:
    assert hosts.run(2, 2, "plans") == (0, fine(4))


def test_a_communicator_of_mpi4py(hosts: Hosts) -> None:
    needs("mpi4py")
    # With this module Open MPI's own barrier hangs between these hosts, without a2a, too.
    without_han = {"OMPI_MCA_coll": "^han"}
    status, lines = hosts.run(2, 2, "adopted", **hosts.mpi.for_mpi4py(), **without_han)
    assert (status, lines) == (0, [f"rank {rank} is fine" for rank in range(4)])


@pytest.fixture
def open_mpi(hosts: Hosts) -> Hosts:
    if hosts.mpi.name != "openmpi":
        pytest.skip("the launcher ends the job")
    return hosts


def test_a_killed_rank_where_mpi_bears_it(open_mpi: Hosts) -> None:
    _, lines = open_mpi.run(2, 2, "killed", options=("--with-ft", "ulfm"))
    told = [line.split(" ", 2) for line in lines if line[:2] in ("0 ", "1 ", "2 ")]
    assert len(told) == 3, lines
    for _, seconds, text in told:
        assert float(seconds) < 1.5
        assert text.startswith("PeerLostError: ") or "MPI_ERR_PROC_FAILED" in text, lines


def test_a_killed_rank_where_mpi_ends_those_connected_to_it(open_mpi: Hosts) -> None:
    """While they wait for it, though the launcher leaves them alone. One on its own host may hear of it before."""
    begin = time.monotonic()
    _, lines = open_mpi.run(2, 2, "killed", options=LEAVES_OTHERS_ALONE)
    assert time.monotonic() - begin < 20
    assert lines.count("ready") == 4, lines
    assert all(re.match(r"2 \S+ PeerLostError: ", line) for line in lines if line != "ready"), lines
