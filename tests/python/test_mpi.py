"""Ranks on several hosts over real MPI libraries. The hosts are assigned by A2A_HOSTS: messages between them go through
MPI, whatever MPI does with them; test_mpi_hosts.py has hosts with addresses of their own."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
from commands import needs
from mpi import LIBRARIES, Mpi

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.skipif(not LIBRARIES, reason="no MPI is installed: pip install mpich"),
]
PROGRAM = str(Path(__file__).with_name("mpi_ranks.py"))


@pytest.fixture(params=LIBRARIES, ids=lambda mpi: mpi.name)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    return request.param  # type: ignore[no-any-return]


def run(mpi: Mpi, hosts: str, *program: str, options: tuple[str, ...] = (), **changes: str) -> tuple[int, list[str]]:
    """The exit status of mpiexec and the lines that ranks printed, sorted."""
    ranks = hosts.count(",") + 1
    command = mpi.command(ranks, PROGRAM, *program)
    command[1:1] = options
    env = mpi.environment(A2A_HOSTS=hosts, **changes)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=80, check=False)
    if done.returncode != 0:
        print(done.stdout, done.stderr)
    return done.returncode, sorted(done.stdout.splitlines())


@pytest.mark.parametrize("hosts", ["a,b", "a,a,b", "a,b,a,b", "a,a,b,b,c", "a,a,a,a,b,b,b,b"])
def test_exchanges(mpi: Mpi, hosts: str) -> None:
    status, lines = run(mpi, hosts, "works", str(len(set(hosts.split(",")))))
    ranks = hosts.count(",") + 1
    assert (status, lines) == (0, [f"rank {rank} of {ranks} is fine" for rank in range(ranks)])


def test_more_bytes_than_one_call_takes(mpi: Mpi) -> None:
    if mpi.name == "mpich-abi":
        pytest.skip("the same library as mpich")
    assert run(mpi, "a,b", "huge") == (0, ["rank 0 is fine", "rank 1 is fine"])


def test_disagreements(mpi: Mpi) -> None:
    status, lines = run(mpi, "a,a,b,b", "disagreements")
    assert status == 0
    said = {tuple(line.split(" ", 2)[:2]): line.split(" ", 2)[2] for line in lines}
    for name, elems in (("few", 1), ("some", 2000), ("many", 100_000)):
        text = f"rank 3 sends {elems} elements to rank 0, which expects {elems + 1}"
        for rank in ("0", "3"):
            assert said[name, rank].startswith("MismatchError: alltoallv #") and text in said[name, rank]
        assert said[name, "1"] == said[name, "2"] == "no error"
    for rank in ("1", "2", "3"):
        assert "rank 0 has float32, rank" in said["dtype", rank] or "float32" in said["dtype", rank]
        assert said["refused", rank].startswith("MismatchError: ")
        assert "rank 0 does not take part" in said["refused", rank] and "-1 is negative" in said["refused", rank]
        assert "allgather" in said["operation", rank] and "MismatchError" in said["operation", rank]
    assert said["refused", "0"].startswith("InvalidArgumentError: ")


@pytest.mark.parametrize("hosts", ["a,a,b,b", "a,b,c"])
def test_a_rank_that_does_not_come(mpi: Mpi, hosts: str) -> None:
    _, lines = run(mpi, hosts, "missing")
    last = hosts.count(",")
    for rank in range(last):
        seconds, text = next(line.split(" ", 2)[1:] for line in lines if line.startswith(f"{rank} "))
        assert float(seconds) < 3 and "TimeoutError: alltoallv #2: timed out on rank" in text, lines
    # Whoever waits for that rank directly names it and what it did last.
    assert any(f"rank {last} (" in line and "last operation alltoallv #1" in line for line in lines), lines
    assert any(line.startswith("afterwards TimeoutError: ") for line in lines), lines


def test_a_killed_rank_with_a_launcher_that_leaves_the_others_alone() -> None:
    mpi = next((mpi for mpi in LIBRARIES if mpi.name == "openmpi"), None)
    if mpi is None:
        pytest.skip("Open MPI's launcher has the option")
    _, lines = run(mpi, "a,a,b,b", "killed", options=("--runtime-options", "continuous"))
    told = [line.split(" ", 2) for line in lines if line[:2] in ("0 ", "1 ", "2 ")]
    assert len(told) == 3, lines
    for _, seconds, text in told:
        assert float(seconds) < 1.5 and text.startswith("PeerLostError: ") and "rank 3 (" in text, lines


def test_a_killed_rank_with_a_launcher_that_ends_the_job(mpi: Mpi) -> None:
    begin = time.monotonic()
    status, _ = run(mpi, "a,a,b,b", "killed")
    assert time.monotonic() - begin < 20
    assert status != 0


def test_a_rank_that_leaves(mpi: Mpi) -> None:
    status, lines = run(mpi, "a,b,b", "leaves")
    assert status == 0
    assert len(lines) == 2
    for line in lines:
        assert re.match(r"[01] PeerLostError: alltoallv #2: rank [01] misses, because it has left", line), lines


def test_ctrl_c(mpi: Mpi) -> None:
    status, lines = run(mpi, "a,a,b,b", "interrupted")
    assert status == 0
    assert lines[1:] == [f"rank {rank} goes on" for rank in range(4)]
    assert float(lines[0].removeprefix("interrupted after ")) < 0.1


def test_memory_that_mpi_still_has(mpi: Mpi) -> None:
    _, lines = run(mpi, "a,b", "abandoned")
    assert "rank 0 gave up" in lines
    assert any(line.startswith("1 AbortedError: rank 0 aborted: enough") for line in lines), lines


def test_messages_are_counted(mpi: Mpi) -> None:
    """Two hosts, each with a leader for the other."""
    _, lines = run(mpi, "a,a,a,b,b,b", "counts_messages")
    assert lines == ["messages 0"] * 4 + ["messages 1"] * 2
    _, lines = run(mpi, "a,a,a,b,b,b", "counts_messages", A2A_MPI_AGGREGATE_MAX="0")
    assert lines == ["messages 3"] * 6


def test_bench(mpi: Mpi) -> None:
    command = mpi.command(4, "-m", "a2a", "bench", "-b", "64", "-n", "2", "-w", "1")
    env = mpi.environment(A2A_HOSTS="a,a,b,b")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    columns, row = done.stdout.splitlines()[1:]
    assert columns.split()[-1] == "msgs" and row.split()[-1] == "2", done.stdout


def test_a_communicator_of_mpi4py(mpi: Mpi) -> None:
    needs("mpi4py")
    status, lines = run(mpi, "a,b,b,a", "adopted", **mpi.for_mpi4py())
    assert (status, lines) == (0, [f"rank {rank} is fine" for rank in range(4)])


def test_mpi_without_threads(mpi: Mpi) -> None:
    needs("mpi4py")
    _, lines = run(mpi, "a,b", "without_threads", **mpi.for_mpi4py())
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("UnsupportedError: MPI (") and "MPI_THREAD_MULTIPLE" in line


def test_atb(mpi: Mpi) -> None:
    status, lines = run(mpi, "a,b,b", "atb")
    assert (status, lines) == (0, [f"rank {rank} is fine" for rank in range(3)])


def test_fork(mpi: Mpi) -> None:
    status, lines = run(mpi, "a,b", "forked")
    assert status == 0
    assert lines[2:] == ["parent 0 is fine", "parent 1 is fine"]
    for line in lines[:2]:
        assert re.match(r"child AbortedError: .*before fork\(\).* / AbortedError: ", line), line


def test_a_communicator_of_another_library() -> None:
    needs("mpi4py")
    mpi = next((mpi for mpi in LIBRARIES if mpi.name == "mpich"), None)
    if mpi is None:
        pytest.skip("MPICH is one library in two ABIs")
    given = mpi.for_mpi4py() | {"A2A_MPI_LIBRARY": str(mpi.prefix / "lib" / mpi.library)}
    _, lines = run(mpi, "a,b", "without_threads", **given)
    assert len(lines) == 2 and all("is not the library that made the communicator" in line for line in lines), lines


def test_no_mpi() -> None:
    mpi = LIBRARIES[0]
    env = mpi.environment(A2A_HOSTS="a,b") | {"A2A_MPI_LIBRARY": "/nowhere/libmpi.so"}
    command = mpi.command(2, "-c", "import a2a; a2a.init()")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "UnsupportedError: cannot find MPI; looked for" in done.stderr
    assert "/nowhere/libmpi.so" in done.stderr
