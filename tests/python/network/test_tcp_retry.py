"""Ranks that meet over TCP though they come late, try again, are restarted, or leave something behind; and who is
blamed when they do not."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import environment
from forked import apart, run, values
from tcp_peer import free_address
from tcp_ranks import SECRET, join, outcome

import a2a

pytestmark = pytest.mark.timeout(60)

HOSTS = ["", "a,b,c,d"]


def appear(address: str, hosts: str) -> None:
    os.environ |= {"A2A_BOOTSTRAP": f"tcp://{address}", "A2A_SECRET": SECRET.decode(), "A2A_JOB": "job"}
    os.environ |= {"A2A_HOSTS": hosts} if hosts else {}


def try_until_met(rank: int, size: int, timeout: float, seed: int = 0) -> list[str]:
    """How the attempts before the last one ended; the last one is a communicator that works."""
    pauses, ends = random.Random(seed), list[str]()
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            with a2a.init(rank, size, timeout=timeout) as comm:
                comm.barrier()
                return ends
        except a2a.Error as error:
            ends.append(f"{type(error).__name__}: {error}")
        time.sleep(pauses.random() * timeout if seed else 0)
    raise AssertionError(f"rank {rank} never met the others: {ends}")


def come_late(rank: int, lates: list[float], timeout: float, address: str, hosts: str) -> list[str]:
    appear(address, ",".join(hosts.split(",")[: len(lates)]))
    time.sleep(lates[rank])
    return try_until_met(rank, len(lates), timeout)


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("lates", [[0, 0.8], [0.8, 0], [0.15, 1.25, 0.4], [1.25, 0.3, 0.15]])
@apart
def test_late_ranks(lates: list[float], hosts: str) -> None:
    for ends in values(run(len(lates), come_late, lates, 0.5, free_address(), hosts)):
        assert len(ends) <= 5 and all(end.startswith(("TimeoutError", "PeerLostError")) for end in ends), ends


def come_and_go(rank: int, size: int, address: str, hosts: str, seed: int) -> int:
    appear(address, hosts)
    return sum(len(try_until_met(rank, size, 0.3, seed + rank)) for _ in range(3))


@pytest.mark.parametrize("hosts", HOSTS)
@apart
def test_ranks_that_try_again_at_any_time(hosts: str) -> None:
    values(run(4, come_and_go, 4, free_address(), hosts, 10))


# ---- ranks that are restarted ----------------------------------------------------------------------------------------


def live_twice(i: int, victim: int, address: str, hosts: str, folder: str) -> None:
    """The last process is the victim's second life."""
    size = 3
    appear(address, hosts)
    if i < size:
        comm = a2a.init(i, size, timeout=10)
        if i == victim:
            comm.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(a2a.PeerLostError):  # the first barrier may raise: news of the end may overtake it
            while True:
                comm.barrier()
        Path(folder, str(i)).touch()
        comm.close()
        try_until_met(i, size, 2)
    else:
        while len(list(Path(folder).iterdir())) < size - 1:
            time.sleep(0.01)
        try_until_met(victim, size, 2)


@pytest.mark.parametrize("hosts", ["", "a,b,c"])
@pytest.mark.parametrize("victim", [0, 2])
@apart
def test_a_restarted_rank(victim: int, hosts: str, tmp_path: Path) -> None:
    for end in run(4, live_twice, victim, free_address(), hosts, str(tmp_path)):
        assert end.rank == victim or end.error is None, end.trace


def die_while_meeting(i: int, address: str, folder: str) -> list[str]:
    """Process 1 dies as rank 1 and leaves a child that holds its connection; process 2 is the next rank 1; rank 2 comes
    after that."""
    appear(address, "")
    born = Path(folder, "joined")
    if i == 1:
        bootstrap = join(1, 3, address)
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        born.touch()
        os.kill(os.getpid(), signal.SIGKILL)
        del bootstrap
    while i >= 2 and not born.exists():
        time.sleep(0.01)
    time.sleep([0, 0, 0.2, 0.5][i])
    return try_until_met([0, 1, 1, 2][i], 3, 5)


@apart
def test_a_dead_rank_whose_child_lives_has_not_joined(tmp_path: Path) -> None:
    for end in run(4, die_while_meeting, free_address(), str(tmp_path)):
        assert end.rank == 1 or (end.error is None and end.value == []), end


LONE = "sysctl -qw net.ipv4.ip_local_port_range='29500 29501' && ip link set lo up && exec \"$@\""
LOOKS_FOR_RANK_0 = """
import a2a
for rank in (1, 0):
    for port in (29500, 29501):
        try:
            a2a.TcpBootstrap(rank, 2, f"127.0.0.1:{port}", timeout=0.5)
        except a2a.TimeoutError as error:
            print(error)
"""


def test_a_rank_that_met_itself_leaves_the_port() -> None:
    """A client can be connected to itself where the kernel gives out rank 0's port."""
    enter = ["unshare", "-n", "sh", "-c", LONE, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*enter, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace with a range of ports")
    done = subprocess.run(
        [*enter, sys.executable, "-c", LOOKS_FOR_RANK_0],
        env=environment(A2A_SECRET=SECRET.decode()),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and all("rank 0, at" in line for line in lines[2:]), lines


# ---- who is blamed ---------------------------------------------------------------------------------------------------


def wait_in_vain(rank: int, size: int, lates: list[float], address: str) -> tuple[str, str, float]:
    appear(address, "")
    time.sleep(lates[rank])
    return outcome(a2a.init, rank, size, timeout=0.8)


@pytest.mark.parametrize("lates", [[0.4, 0], [0, 0.4], [0.2, 0.4, 0]])
@apart
def test_the_rank_that_never_came_is_blamed(lates: list[float]) -> None:
    size = len(lates) + 2
    missing = f" timed out waiting for rank {size - 2}, {size - 1}"
    for name, text, seconds in values(run(len(lates), wait_in_vain, size, lates, free_address())):
        assert name == "TimeoutError" and missing in text and seconds < 1.3, (name, text, seconds)


def stay_away(rank: int, size: int, address: str) -> tuple[str, str, float]:
    """The last rank joins and says nothing; rank 1's deadline is the first."""
    bootstrap = join(rank, size, address, timeout=0.5 if rank == 1 else 5)
    if rank == size - 1:
        time.sleep(1)
        return "", "", 0.0
    return outcome(bootstrap.allgather, b"x")


@apart
def test_the_rank_that_joined_and_does_not_go_on_is_blamed() -> None:
    for name, text, seconds in values(run(4, stay_away, 4, free_address()))[:-1]:
        assert name == "TimeoutError" and text == "job 'job': rank 1 timed out waiting for rank 3", (name, text)
        assert seconds < 1
