"""Paddle on hosts that share nothing but a network. tests/python/torch/test_torch_hosts.py has the errors of a meeting,
which is the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment
from mpi import INSTALLED, Mpi, command_on_hosts
from network_hosts import namespace, remote_shell

pytest.importorskip("paddle")
pytestmark = pytest.mark.timeout(110)
PROGRAM = str(Path(__file__).parents[1] / "support" / "paddle_host_ranks.py")
SECRET = "0123456789abcdef0123456789abcdef"
PORT = 29800
# Paddle's Gloo takes the interface of the host's name otherwise, which stands for another host here.
GLOO = {"GLOO_SOCKET_IFNAME": "eth0"}


def run(
    addresses: list[str], each: int, function: str, of_paddle: bool = True, **variables: str
) -> tuple[list[str], str]:
    """The lines of so many ranks on each host, with the variables of Paddle's launcher, or torchrun's."""
    size = each * len(addresses)
    env = environment(**GLOO, **variables)
    endpoints = [f"{addresses[rank // each]}:{PORT + 1 + rank}" for rank in range(size)]

    def own(rank: int) -> dict[str, str]:
        if not of_paddle:
            place = {"MASTER_ADDR": addresses[0], "MASTER_PORT": str(PORT)}
            return place | {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(each)}
        return {
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_TRAINERS_NUM": str(size),
            "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_MASTER": f"{addresses[0]}:{PORT}",
            "PADDLE_DISTRI_BACKEND": "gloo",
        }

    ranks = [
        subprocess.Popen(
            ["ip", "netns", "exec", namespace(rank // each), sys.executable, PROGRAM, function],
            env=env | own(rank),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        said = [rank.communicate(timeout=60) for rank in ranks]
    finally:
        for one in ranks:
            one.kill()
    lines = sorted(line for out, _ in said for line in out.splitlines() if "rank" in line or "Error" in line)
    return lines, "".join(err for _, err in said)


def fine(size: int) -> list[str]:
    return [f"rank {rank} of {size} is fine" for rank in range(size)]


def test_a_store_that_is_trusted(addresses: list[str]) -> None:
    lines, errors = run(addresses[:2], 2, "everything", A2A_TRUST_STORE="1")
    assert lines == fine(4), errors


@pytest.mark.full
def test_the_variables_of_torchrun(addresses: list[str]) -> None:
    lines, errors = run(addresses[:2], 2, "everything", of_paddle=False, A2A_SECRET=SECRET)
    assert lines == fine(4), errors


@pytest.mark.full
@pytest.mark.parametrize("mpi", INSTALLED, ids=lambda mpi: mpi.name)
def test_under_mpiexec(mpi: Mpi, addresses: list[str], tmp_path: Path) -> None:
    shell = remote_shell(tmp_path / "shell", addresses)
    command = command_on_hosts(mpi, shell, addresses[:2], 2, PROGRAM, "everything")
    done = subprocess.run(command, env=mpi.environment(**GLOO), capture_output=True, text=True, timeout=90, check=False)
    lines = sorted(line for line in done.stdout.splitlines() if " is fine" in line)
    assert (done.returncode, lines) == (0, fine(4)), done.stdout + done.stderr


@pytest.mark.full
def test_no_secret(addresses: list[str]) -> None:
    lines, errors = run(addresses[:2], 1, "fails")
    assert len(lines) == 2, errors
    for rank, line in enumerate(lines):
        number, seconds, text = line.split(" ", 2)
        assert int(number) == rank and float(seconds) < 30
        assert text.startswith("InvalidArgumentError: 'rank 0 and rank 1 are on different hosts"), text
        assert "A2A_SECRET_FILE=" in text and "A2A_TRUST_STORE=1" in text
