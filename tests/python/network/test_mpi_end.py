"""How a job of mpiexec ends when one of its ranks does, in whatever way: with the worst status of its ranks, soon, and
with nothing left behind."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
from mpi import INSTALLED, LEAVES_OTHERS_ALONE, Mpi, files_in_shared_memory

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.skipif(not INSTALLED, reason="no MPI is installed: pip install mpich"),
]
PROGRAM = str(Path(__file__).parents[1] / "support" / "mpi_ranks.py")
HOSTS = "a,a,b,b"


@pytest.fixture(params=INSTALLED, ids=lambda mpi: mpi.name)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    return request.param  # type: ignore[no-any-return]


def run(mpi: Mpi, tmp_path: Path, *program: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
    """The status of mpiexec, and what ranks printed."""
    command = mpi.command(HOSTS.count(",") + 1, PROGRAM, *program)
    command[1:1] = options
    mark = f"{tmp_path}/"
    env = mpi.environment(A2A_HOSTS=HOSTS, TMPDIR=mark)
    files = files_in_shared_memory()
    begin = time.monotonic()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert time.monotonic() - begin < 30
    deadline = time.monotonic() + 3
    while (left := [*(files_in_shared_memory() - files), *_processes_with(mark)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, done.stderr
    return done.returncode, done.stdout + done.stderr


def _processes_with(mark: str) -> list[str]:
    """Those with this in their environment, launchers and their helpers included."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append(f"{process.name} {(process / 'cmdline').read_text()}")
        except OSError:
            pass  # it has ended
    return found


# Where it is known: launchers kill the others when a process ends without MPI_Finalize, and tell of either.
STATUS = {("raises", "catch"): 1, ("exits", "catch"): 3, ("leaves", "catch"): 0}


@pytest.mark.parametrize(
    ("how", "who", "others"),
    [
        *[("raises", who, others) for who in ("0", "-1") for others in ("catch", "raise")],
        *[("exits", "0", "catch"), ("exits", "-1", "raise"), ("_exit", "0", "raise"), ("_exit", "-1", "catch")],
        *[("kill", "0", "catch"), ("kill", "-1", "raise"), ("term", "0", "raise"), ("term", "-1", "catch")],
        *[("leaves", "0", "catch"), ("leaves", "-1", "raise")],
    ],
)
def test_a_rank_that_ends(mpi: Mpi, tmp_path: Path, how: str, who: str, others: str) -> None:
    status, said = run(mpi, tmp_path, "ends", how, who, others)
    expected = STATUS.get((how, others))
    assert status == expected if expected is not None else status != 0, said


def test_killed_at_any_moment(mpi: Mpi, tmp_path: Path) -> None:
    for seed in (1, 2):
        status, said = run(mpi, tmp_path, "is_struck", str(seed), str(100 * seed), str(seed))
        assert status != 0 and "ready" in said and "wrong" not in said, said


def test_survivors_end_where_the_launcher_leaves_them_alone(tmp_path: Path) -> None:
    mpi = next((mpi for mpi in INSTALLED if mpi.name == "openmpi"), None)
    if mpi is None:
        pytest.skip("Open MPI's launcher has the option")
    for who in ("0", "-1"):
        _, said = run(mpi, tmp_path, "ends", "kill", who, "raise", options=LEAVES_OTHERS_ALONE)
        assert len(re.findall(r"^a2a\.PeerLostError", said, re.MULTILINE)) == 3, said
