"""A rank that has ended without joining is named by those that wait for it, at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import command, environment, free_port

import a2a
from a2a import _spawn

# Rank {gone} ends without a word; the others tell when they heard of it.
WAITING = """
import os, sys, time
rank = int(os.environ["A2A_RANK"])
{before}
if rank == {gone}:
    {end}
import a2a
if rank == {late}:
    time.sleep(1)
try:
    a2a.init(timeout=30)
except a2a.Error as error:
    # One write: the ranks share a pipe, and print() writes word by word where nothing is buffered.
    os.write(1, f"{{rank}} {{type(error).__name__}} {{error}}\\n".encode())
"""


def waiting(tmp_path: Path, n: int = 3, late: int = -1, before: str = "", end: str = "sys.exit(0)", **env: str) -> Any:
    def run(gone: int) -> list[str]:
        script = tmp_path / "script.py"
        script.write_text(WAITING.format(gone=gone, late=late, before=before, end=end))
        started = time.monotonic()
        program = command("run", "-n", str(n), "--no-prefix", str(script))
        done = subprocess.run(program, env=environment(**env), capture_output=True, text=True, timeout=60, check=False)
        assert time.monotonic() - started < 20  # the deadline is 30
        assert done.returncode == 0, done.stderr
        return sorted(done.stdout.splitlines())

    return run


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize("meet", ["unix", "tcp"])
@pytest.mark.parametrize("late", [-1, 0, 2])
def test_a_rank_that_ends_before_init_is_named(tmp_path: Path, gone: int, meet: str, late: int) -> None:
    env = {"A2A_BOOTSTRAP": f"tcp://127.0.0.1:{free_port()}"} if meet == "tcp" else {}
    lines = waiting(tmp_path, late=late, **env)(gone)
    assert [line.split()[0] for line in lines] == [str(rank) for rank in range(3) if rank != gone]
    for line in lines:
        assert "PeerLostError job '" in line and f"rank {gone} exited with code 0 before all ranks had joined" in line


def test_a_rank_that_ends_before_a_second_meeting_is_named(tmp_path: Path) -> None:
    before = "import a2a; a2a.init(timeout=30).close()"
    lines = waiting(tmp_path, before=before)(2)
    assert len(lines) == 2
    assert all("': rank 2 exited with code 0 before all ranks had joined" in line for line in lines)


def test_a_job_that_does_not_meet_ends_well(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, time\ntime.sleep(int(os.environ['A2A_RANK']) / 5)\n")
    done = subprocess.run(command("run", "-n", "3", str(script)), env=environment(), timeout=30, check=False)
    assert done.returncode == 0


def test_what_another_launchers_file_says_is_not_believed(tmp_path: Path) -> None:
    """Of another job, another size, nonsense, none, a pipe that nobody writes."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "ended").write_text("2 other\n0 exited with code 0\n")
    (tmp_path / "size").write_text("3 mine\n0 exited with code 0\n")
    (tmp_path / "long").write_text("2 mine0\n0 exited with code 0\n")
    (tmp_path / "noise").write_bytes(os.urandom(10_000))
    (tmp_path / "empty").write_text("")
    code = "import a2a\nwith a2a.init(timeout=30) as c: c.barrier()"
    for name in ("ended", "size", "long", "noise", "empty", "nothing", "pipe"):
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", code],
                env=environment(A2A_RANK=str(rank), A2A_SIZE="2", A2A_JOB="mine", A2A_ENDED=str(tmp_path / name)),
            )
            for rank in range(2)
        ]
        assert [rank.wait(40) for rank in ranks] == [0, 0], name


def die_early(comm: a2a.Communicator) -> None:
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    a2a.init(timeout=30)


def test_ranks_of_spawn_are_told(rank_outcomes: Callable[..., list[_spawn.Outcome]]) -> None:
    started = time.monotonic()
    outcomes = rank_outcomes(3, die_early)
    assert time.monotonic() - started < 20
    for rank in (0, 2):
        assert isinstance(outcomes[rank].error, a2a.PeerLostError)
        assert "rank 1 was killed by SIGKILL before all ranks had joined" in str(outcomes[rank].error)
