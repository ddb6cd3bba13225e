"""Torch on hosts that share nothing but a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment
from mpi import INSTALLED, Mpi, command_on_hosts
from network_hosts import namespace, remote_shell

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)
PROGRAM = str(Path(__file__).parents[1] / "support" / "torch_host_ranks.py")
# Gloo takes the interface of the host's name otherwise, which stands for another host here.
GLOO = {"GLOO_SOCKET_IFNAME": "eth0"}
FINE = ["rank 0 of 2 is fine, warned 1", "rank 1 of 2 is fine, warned 0"]


@pytest.mark.full
@pytest.mark.parametrize("mpi", INSTALLED, ids=lambda mpi: mpi.name)
def test_under_mpiexec(mpi: Mpi, addresses: list[str], tmp_path: Path) -> None:
    """The store of the default group is found from another host."""
    shell = remote_shell(tmp_path / "shell", addresses)
    command = command_on_hosts(mpi, shell, addresses[:2], 1, PROGRAM)
    env = mpi.environment(**GLOO)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, FINE), done.stdout + done.stderr


def test_under_torchrun_without_a_secret(addresses: list[str]) -> None:
    """Torch's own backend needs none."""
    env = environment(**GLOO, MASTER_ADDR=addresses[0], MASTER_PORT="29700", WORLD_SIZE="2", LOCAL_WORLD_SIZE="1")
    ranks = [
        subprocess.Popen(
            ["ip", "netns", "exec", namespace(rank), sys.executable, PROGRAM],
            env=env | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=90) for rank in ranks]
    assert [out.rstrip() for out, _ in said] == FINE, said
