"""Launchers inside launchers, wrappers between, and children of ranks: real processes that all call init()."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import command, environment, needs

Start = Callable[[list[str]], list[str]]

SHOW = """
import os, a2a
with a2a.init(timeout=20) as comm:
    told = comm.allgather_bytes(str(os.getpid()).encode())
    assert len(set(told)) == comm.size
    os.write(1, f"rank {comm.rank} of {comm.size}\\n".encode())
"""


@pytest.fixture
def show(tmp_path: Path) -> str:
    (tmp_path / "show.py").write_text(SHOW)
    return str(tmp_path / "show.py")


def a2a_run(n: int) -> Start:
    return lambda program: command("run", "-n", str(n), "--no-prefix", "--no-python", *program)


def torchrun(n: int) -> Start:
    flags = ["--standalone", f"--nproc-per-node={n}", "--no-python"]
    return lambda program: [sys.executable, "-m", "torch.distributed.run", *flags, *program]


def mpiexec(n: int) -> Start:
    return lambda program: ["mpiexec", "-n", str(n), *program]


def shell(program: list[str]) -> list[str]:
    """A wrapper that stays between launcher and program."""
    return ["sh", "-c", '"$@"; exit $?', "sh", *program]


def ranks_of(*launchers: Start, program: list[str], **changes: str) -> list[str]:
    for start in reversed(launchers):
        program = start(program)
    done = subprocess.run(program, env=environment(**changes), capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))


def ranks(size: int, groups: int = 1) -> list[str]:
    return sorted([f"rank {rank} of {size}" for rank in range(size)] * groups)


def require(*launchers: str) -> None:
    if "torchrun" in launchers:
        needs("torch")
    if "mpiexec" in launchers and shutil.which("mpiexec") is None:
        pytest.skip("no mpiexec on PATH")


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(("outer", "inner"), [("a2a", "mpiexec"), ("mpiexec", "a2a")])
def test_the_nearest_launcher_wins(show: str, outer: str, inner: str, wrapped: bool) -> None:
    require(outer, inner)
    start = {"a2a": a2a_run, "mpiexec": mpiexec}
    between = [shell] if wrapped else []
    found = ranks_of(start[outer](2), *between, start[inner](3), *between, program=[sys.executable, show])
    assert found == ranks(3, groups=2)


@pytest.mark.full
@pytest.mark.parametrize("other", ["a2a", "mpiexec"])
@pytest.mark.parametrize("inside", [False, True])
def test_torchrun_inside_and_outside(show: str, other: str, inside: bool) -> None:
    require("torchrun", other)
    start = {"a2a": a2a_run, "mpiexec": mpiexec}[other]
    both = [start(2), shell, torchrun(2)] if inside else [torchrun(2), shell, start(2)]
    assert ranks_of(*both, program=[sys.executable, show]) == ranks(2, groups=2)


def test_a2a_run_inside_itself_and_spawn_inside(tmp_path: Path, show: str) -> None:
    assert ranks_of(a2a_run(2), a2a_run(2), program=[sys.executable, show]) == ranks(2, groups=2)
    program = tmp_path / "spawns.py"
    program.write_text(
        textwrap.dedent("""
        import os, a2a
        def fn(comm):
            with a2a.init(timeout=20) as inner:
                os.write(1, f"rank {inner.rank} of {inner.size}\\n".encode())
        if __name__ == "__main__":
            a2a.init(timeout=20).close()
            a2a.spawn(fn, 3)
        """)
    )
    assert ranks_of(a2a_run(2), program=[sys.executable, str(program)]) == ranks(3, groups=2)


PARENT = """
import os, subprocess, sys, a2a
with a2a.init(timeout=20) as comm:
    assert comm.size == 2
    for _ in range(2):
        subprocess.run([sys.executable, *sys.argv[1:]], check=True)
    if os.fork() == 0:
        with a2a.init(timeout=20) as alone:
            os.write(1, f"rank {alone.rank} of {alone.size}\\n".encode())
        os._exit(0)
    assert os.wait()[1] == 0
    with a2a.init(timeout=20) as again:  # it is still who it was
        assert (again.rank, again.size) == (comm.rank, 2)
"""


@pytest.mark.parametrize("launcher", ["a2a", "mpiexec"])
def test_a_child_of_a_rank_is_one_rank(tmp_path: Path, show: str, launcher: str) -> None:
    require(launcher)
    parent = tmp_path / "parent.py"
    parent.write_text(PARENT)
    start = {"a2a": a2a_run, "mpiexec": mpiexec}[launcher]
    found = ranks_of(start(2), shell, program=[sys.executable, str(parent), show])
    assert found == ["rank 0 of 1"] * 6


def test_a_child_of_a_nested_rank_is_one_rank(tmp_path: Path, show: str) -> None:
    parent = tmp_path / "parent.py"
    parent.write_text(PARENT)
    middle = tmp_path / "middle.py"  # a rank that starts ranks
    middle.write_text(
        "import subprocess, sys, a2a\nwith a2a.init(timeout=20) as c:\n    subprocess.run(sys.argv[1:], check=True)\n"
    )
    inner = command("run", "-n", "2", "--no-prefix", "--no-python", sys.executable, str(parent), show)
    assert ranks_of(a2a_run(2), program=[sys.executable, str(middle), *inner]) == ["rank 0 of 1"] * 12


def test_a_child_may_still_say_who_it_is(tmp_path: Path) -> None:
    child = "import os, a2a; a2a.init(int(os.environ['A2A_RANK']), 2, job='children', timeout=20).barrier()"
    parent = tmp_path / "parent.py"
    parent.write_text(
        "import subprocess, sys, a2a\nwith a2a.init(timeout=20) as c:\n"
        f"    subprocess.run([sys.executable, '-c', {child!r}], check=True)\nprint('rank', c.rank)\n"
    )
    assert ranks_of(a2a_run(2), program=[sys.executable, str(parent)]) == ["rank 0", "rank 1"]


def test_what_the_environment_says_by_hand_is_nearest(show: str) -> None:
    require("mpiexec")
    by_hand = ["sh", "-c", 'A2A_RANK=$PMI_RANK A2A_SIZE=2 A2A_JOB=hand-$0 "$@"', str(os.getpid()), sys.executable, show]
    assert ranks_of(mpiexec(2), program=by_hand) == ranks(2)
