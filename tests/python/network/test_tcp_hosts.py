"""Ranks on hosts that share nothing but a network: TCP between network namespaces with addresses of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import environment, needs
from network_hosts import namespace
from tcp_ranks import SECRET

pytestmark = pytest.mark.timeout(100)
PROGRAM = str(Path(__file__).parents[1] / "support" / "mpi_ranks.py")


def start(addresses: list[str], each: int, *program: str) -> list[subprocess.Popen[str]]:
    """So many ranks on each host, with the variables of torchrun."""
    size = each * len(addresses)
    env = environment(A2A_SECRET=SECRET.decode(), MASTER_ADDR=addresses[0], MASTER_PORT="29500")
    env |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(each)}
    return [
        subprocess.Popen(
            ["ip", "netns", "exec", namespace(rank // each), sys.executable, PROGRAM, *program],
            env=env | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def finish(ranks: list[subprocess.Popen[str]]) -> tuple[list[str], str]:
    """The lines that they printed, sorted, and what went wrong in words."""
    said = [rank.communicate(timeout=80) for rank in ranks]
    return sorted(line for out, _ in said for line in out.splitlines()), "".join(err for _, err in said)


@pytest.mark.parametrize(
    ("count", "each"), [(2, 2), *(pytest.param(*one, marks=pytest.mark.full) for one in [(3, 1), (2, 1), (3, 2)])]
)
def test_exchanges(addresses: list[str], count: int, each: int) -> None:
    lines, errors = finish(start(addresses[:count], each, "works", str(count)))
    ranks = count * each
    assert lines == [f"rank {rank} of {ranks} is fine" for rank in range(ranks)], errors


def test_torchrun(addresses: list[str]) -> None:
    needs("torch")
    agents = [
        subprocess.Popen(
            [
                *("ip", "netns", "exec", namespace(node), sys.executable, "-m", "torch.distributed.run"),
                *("--nnodes", "2", "--nproc-per-node", "2", "--node-rank", str(node)),
                *("--master-addr", addresses[0], "--master-port", "29600", PROGRAM, "works", "2"),
            ],
            env=environment(A2A_SECRET=SECRET.decode()),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    lines, errors = finish(agents)
    assert [line for line in lines if "rank" in line] == [f"rank {rank} of 4 is fine" for rank in range(4)], errors


def test_a_killed_rank(addresses: list[str]) -> None:
    lines, errors = finish(start(addresses, 1, "killed"))
    assert lines.count("ready") == 3, errors
    told = [line.split(" ", 2) for line in lines if line != "ready"]
    assert sorted(rank for rank, _, _ in told) == ["0", "1"], lines
    for _, seconds, text in told:
        assert float(seconds) < 1.5 and text.startswith("PeerLostError: ") and "lost rank 2 (" in text, lines
        assert f" at {addresses[2]})" in text, lines


def test_a_host_that_vanishes(addresses: list[str]) -> None:
    """Nothing tells of it: the deadline does."""
    ranks = start(addresses, 1, "unplugged")
    try:
        assert ranks[2].stdout is not None
        assert ranks[2].stdout.readline() == "ready\n"
        subprocess.run(["ip", "-n", namespace(2), "link", "set", "eth0", "down"], check=True, timeout=20)
        begin = time.monotonic()
        lines, errors = finish(ranks[:2])
        assert time.monotonic() - begin < 10
        assert len(lines) == 2, errors
        assert all("TimeoutError: " in line and "rank 2 (" in line for line in lines), lines
    finally:
        ranks[2].kill()
        ranks[2].communicate()
        with contextlib.suppress(subprocess.SubprocessError):
            subprocess.run(["ip", "-n", namespace(2), "link", "set", "eth0", "up"], check=True, timeout=20)


def test_what_it_says_without_a_secret(addresses: list[str]) -> None:
    env = environment(MASTER_ADDR=addresses[0], MASTER_PORT="29500", WORLD_SIZE="2", LOCAL_WORLD_SIZE="1", RANK="0")
    done = subprocess.run([sys.executable, PROGRAM, "works", "2"], env=env, capture_output=True, text=True, timeout=60)
    assert "InvalidArgumentError: ranks that meet over TCP need a common secret: set A2A_SECRET_FILE" in done.stderr
    assert os.environ.get("A2A_SECRET") is None
