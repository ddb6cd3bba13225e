"""Ranks on several hosts over real MPI libraries. The hosts are assigned by A2A_HOSTS: messages between them go through
MPI, whatever MPI does with them; test_mpi_hosts.py has hosts with addresses of their own."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
from commands import needs
from mpi import LEAVES_OTHERS_ALONE, LIBRARIES, Mpi
from networks import HUGE, ONE_ABI, assert_disagreements
from sample import with_full

import a2a

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.skipif(not LIBRARIES, reason="no MPI is installed: pip install mpich"),
]
EITHER_ABI = pytest.mark.parametrize("mpi", LIBRARIES, ids=lambda mpi: mpi.name)
PROGRAM = str(Path(__file__).parents[1] / "support" / "mpi_ranks.py")


@pytest.fixture(params=ONE_ABI, ids=lambda mpi: mpi.name)
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


@EITHER_ABI
def test_exchanges_with_either_abi(mpi: Mpi) -> None:
    """test_exchange.py has the values of other exchanges."""
    status, lines = run(mpi, "a,a,b,b,c", "works", "3")
    assert (status, lines) == (0, [f"rank {rank} of 5 is fine" for rank in range(5)])


@pytest.mark.parametrize("hosts", ["a,b", "a,a,b,b,c", *with_full(["a,b,c", "a,a,b,b"])])
def test_repeated_exchanges(mpi: Mpi, hosts: str) -> None:
    ranks = hosts.count(",") + 1
    assert run(mpi, hosts, "repeats", str(ranks)) == (0, [f"rank {rank} is fine" for rank in range(ranks)])


@pytest.mark.parametrize("size", HUGE)
def test_more_bytes_than_one_call_takes(mpi: Mpi, size: int) -> None:
    if mpi.name == "mpich-abi":
        pytest.skip("the same library as mpich")
    assert run(mpi, "a,b", "huge", str(size)) == (0, ["rank 0 is fine", "rank 1 is fine"])


def test_disagreements(mpi: Mpi) -> None:
    status, lines = run(mpi, "a,a,b,b", "disagreements")
    assert status == 0
    assert_disagreements(lines)


@pytest.mark.parametrize("hosts", ["a,a,b,b", *with_full(["a,b,c"])])
def test_a_rank_that_does_not_come(mpi: Mpi, hosts: str) -> None:
    _, lines = run(mpi, hosts, "missing")
    last = hosts.count(",")
    for rank in range(last):
        seconds, text = next(line.split(" ", 2)[1:] for line in lines if line.startswith(f"{rank} "))
        assert float(seconds) < 3 and "TimeoutError: alltoallv #2: timeout on rank" in text, lines
    # Whoever waits for that rank directly names it and what it did last.
    assert any(f"rank {last} (" in line and "last operation alltoallv #1" in line for line in lines), lines
    assert any(line.startswith("afterwards TimeoutError: ") for line in lines), lines


@pytest.fixture
def open_mpi() -> Mpi:
    mpi = next((mpi for mpi in LIBRARIES if mpi.name == "openmpi"), None)
    if mpi is None:
        pytest.skip("Open MPI's launcher has the option")
    return mpi


def test_a_killed_rank_with_a_launcher_that_leaves_the_others_alone(open_mpi: Mpi) -> None:
    _, lines = run(open_mpi, "a,a,b,b", "killed", options=LEAVES_OTHERS_ALONE)
    told = [line.split(" ", 2) for line in lines if line[:2] in ("0 ", "1 ", "2 ")]
    assert len(told) == 3, lines
    for _, seconds, text in told:
        assert float(seconds) < 1.5 and text.startswith("PeerLostError: ") and "rank 3 (" in text, lines


def test_a_host_whose_ranks_are_gone_is_told_of_by_the_deadline(open_mpi: Mpi) -> None:
    """MPI does not, and nobody else sees it."""
    _, lines = run(open_mpi, "a,b,c", "killed", "2", options=LEAVES_OTHERS_ALONE)
    told = [line.split(" ", 2) for line in lines if line[:2] in ("0 ", "1 ")]
    assert len(told) == 2, lines
    for _, seconds, text in told:
        assert 1.5 < float(seconds) < 4 and text.startswith("TimeoutError: "), lines
    assert any("rank 2 (" in text for _, _, text in told), lines


def test_a_killed_rank_with_a_launcher_that_ends_the_job(mpi: Mpi) -> None:
    begin = time.monotonic()
    status, lines = run(mpi, "a,a,b,b", "killed_with_the_job")
    assert time.monotonic() - begin < 20
    assert status != 0
    assert "ready" in lines and "still there" not in lines


def test_a_rank_that_leaves(mpi: Mpi) -> None:
    status, lines = run(mpi, "a,b,b", "leaves")
    assert status == 0
    assert len(lines) == 2
    for line in lines:
        assert re.match(r"[01] PeerLostError: alltoallv #2: rank [01] waits for a rank that has left", line), lines


def test_ctrl_c(mpi: Mpi) -> None:
    status, lines = run(mpi, "a,a,b,b", "interrupted")
    assert status == 0
    assert lines[1:] == [f"rank {rank} goes on" for rank in range(4)]
    assert float(lines[0].removeprefix("interrupted after ")) < 0.1


def test_memory_that_mpi_still_has(mpi: Mpi) -> None:
    """Both tensors are held, whatever becomes of the communicator, until the other rank has taken what was sent."""
    status, lines = run(mpi, "a,b", "abandoned")
    assert status == 0
    (other,) = (line for line in lines if line.startswith("the other one: "))
    # It may take all before it hears that it is too late.
    assert other in ("the other one: no error", "the other one: AbortedError: rank 0 aborted: enough")
    assert [line for line in lines if line != other] == [
        *("after abort() 2", "handed over 1", "in the end 0", "in the end 0", "without the communicator 2")
    ]


def test_messages_are_counted(mpi: Mpi) -> None:
    """Two hosts, each with a leader for the other."""
    _, lines = run(mpi, "a,a,a,b,b,b", "counts_messages")
    assert lines == ["messages 0"] * 4 + ["messages 1"] * 2
    _, lines = run(mpi, "a,a,a,b,b,b", "counts_messages", A2A_AGGREGATE_MAX="0")
    assert lines == ["messages 3"] * 6


def test_large_memory_waits_for_its_receiver(mpi: Mpi) -> None:
    """Otherwise MPI would keep what comes early in memory of its own."""
    _, lines = run(mpi, "a,b", "awaits_receivers")
    assert lines == ["0 100000 2", "0 20000 1", "1 100000 2", "1 20000 1"]


def test_bench(mpi: Mpi) -> None:
    command = mpi.command(4, "-m", "a2a", "bench", "-b", "64", "-n", "2", "-w", "1")
    env = mpi.environment(A2A_HOSTS="a,a,b,b")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    columns, row = done.stdout.splitlines()[1:]
    assert columns.split()[-1] == "msgs" and row.split()[-1] == "2", done.stdout


@EITHER_ABI
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
        assert re.match(r"child AbortedError: .*before fork\(\).* / no error", line), line  # one rank of its own


def test_a_communicator_of_another_library() -> None:
    needs("mpi4py")
    mpi = next((mpi for mpi in LIBRARIES if mpi.name == "mpich"), None)
    if mpi is None:
        pytest.skip("MPICH is one library in two ABIs")
    given = mpi.for_mpi4py() | {"A2A_MPI_LIBRARY": str(mpi.prefix / "lib" / mpi.library)}
    _, lines = run(mpi, "a,b", "without_threads", **given)
    assert len(lines) == 2 and all("is not the library that made the communicator" in line for line in lines), lines


def test_the_mpi_of_the_launcher_is_found(mpi: Mpi) -> None:
    """Without a variable and without mpi4py, also where this environment has another MPI."""
    if mpi.name == "mpich-abi":
        pytest.skip("the launcher's MPI is the same as mpich's")
    status, lines = run(mpi, "a,b", "names_mpi", A2A_MPI_LIBRARY="")
    known = {"mpich": "MPICH", "openmpi": "Open MPI", "impi": "Intel(R) MPI"}[mpi.name]
    assert status == 0 and len(lines) == 2 and all(f": {known}" in line for line in lines), lines


def test_no_mpi() -> None:
    mpi = LIBRARIES[0]
    env = mpi.environment(A2A_HOSTS="a,b") | {"A2A_MPI_LIBRARY": "/nowhere/libmpi.so"}
    command = mpi.command(2, "-c", "import a2a; a2a.init()")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "UnsupportedError: cannot find MPI; looked for" in done.stderr
    assert "/nowhere/libmpi.so" in done.stderr


def test_communicators_of_some_ranks(mpi: Mpi) -> None:
    needs("mpi4py")
    status, lines = run(mpi, "a,a,b,b", "groups", **mpi.for_mpi4py())
    assert (status, lines) == (0, [f"rank {rank} is fine" for rank in range(4)])


def test_messages_of_any_length(mpi: Mpi) -> None:
    assert run(mpi, "a,b,c", "long_messages") == (0, [f"rank {rank} is fine" for rank in range(3)])


def test_a_rank_that_comes_late(mpi: Mpi) -> None:
    needs("mpi4py")
    status, lines = run(mpi, "a,a,b", "comes_late", **mpi.for_mpi4py())
    assert (status, lines[4:]) == (0, [f"rank {rank} is fine" for rank in range(3)])
    for line in lines[:2]:
        assert re.match(r"gave up after 0\.[567] TimeoutError: rank [01] of 3 timed out in MPI_Comm_idup", line), line
    for line in lines[2:4]:
        assert float(line.removeprefix("interrupted after ")) < 0.2


@EITHER_ABI
def test_handles_that_are_no_use(mpi: Mpi) -> None:
    needs("mpi4py")
    status, lines = run(mpi, "a,b", "bad_handles", **mpi.for_mpi4py())
    assert status == 0, lines
    said = {line.partition(" ")[0]: line.partition(" ")[2] for line in lines}
    for name in ("inter", "comm"):
        assert said[name].startswith("InvalidArgumentError: ") and "an intercommunicator" in said[name], lines
    for name in ("null", "nonsense"):
        assert said[name].startswith("InvalidArgumentError: ") and "is not that of a communicator" in said[name], lines
    assert lines[-2:] == ["rank 0 is fine", "rank 1 is fine"]


def test_finalised_by_the_program(mpi: Mpi) -> None:
    needs("mpi4py")
    status, lines = run(mpi, "a,a,b", "finalised", **mpi.for_mpi4py())
    assert (status, lines[6:]) == (0, [f"rank {rank} is fine" for rank in range(3)])
    for line in lines[:3]:
        assert line.startswith("init UnsupportedError: MPI (") and "was finalised in this process already" in line, line
    for line in lines[3:6]:
        assert re.match(r"operation AbortedError: alltoallv #2: .* was finalised while the communicator", line), line


def test_a_rank_that_finalises_while_others_wait(mpi: Mpi) -> None:
    needs("mpi4py")
    status, lines = run(mpi, "a,a,b", "finalised_early", **mpi.for_mpi4py())
    assert (status, len(lines)) == (0, 2)
    for line in lines:
        assert re.match(r"[01] [01]\.\d PeerLostError: alltoallv #2: .*has left this communicator", line), line


@EITHER_ABI
def test_a_fortran_handle(mpi: Mpi) -> None:
    status, lines = run(mpi, "a,b,b", "fortran_handle")
    if mpi.name == "impi":  # 2021.18.1 cannot make a communicator of it in the standard's ABI
        assert (status, len(lines)) == (0, 3)
        assert all("MPI_Comm_fromint does not know the Fortran handle" in line for line in lines), lines
        return
    assert (status, lines) == (0, [f"rank {rank} is fine" for rank in range(3)])


def test_what_is_no_handle() -> None:
    for bootstrap in (True, 1 << 40):
        with pytest.raises(a2a.InvalidArgumentError):
            a2a.init(bootstrap=bootstrap)
