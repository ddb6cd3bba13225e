"""Environment variables: what switches, numbers and words accept, what others are told, names that nobody knows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import command, environment, free_port

import a2a
from a2a import _variables
from a2a.launch import Launch

SOURCE = Path(__file__).parents[3]
CMA = "import a2a, a2a._core as core\nwith a2a.init() as comm:\n    print(core.host_facts(comm)['cma'])\n"


def run(code: str, **changes: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", code]
    return subprocess.run(program, env=environment(**changes), capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("words", ["0 off FALSE No", "1 ON true yes"])
def test_a_switch_takes_the_usual_words(words: str) -> None:
    """Two ranks, because only peers are asked. Where the kernel forbids CMA, it is off with every word."""
    told = set()
    for word in words.split():
        program = command("run", "-n", "2", "--no-prefix", "--no-python", sys.executable, "-c", CMA)
        env = environment(A2A_SHM_CMA=f" {word} ")
        done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=60, check=True)
        told.add(tuple(done.stdout.split()))
    assert len(told) == 1, told
    assert words.startswith("1") or told == {("False", "False")}


LATE = """
import time, numpy as np, a2a
with a2a.init(timeout=20) as comm:
    comm.barrier()
    comm.timeout = 1
    if comm.rank == 0:
        work = comm.send(np.ones(1 << 20), 1, async_op=True)
        time.sleep(2)
    else:
        comm.recv(np.ones(1 << 20), 0, tag={tag})
"""


@pytest.mark.parametrize(("changes", "tag"), [({}, 1), ({"A2A_SHM_CMA": "0"}, 0)])
def test_a_deadline_tells_of_a_sender_that_does_not_wait(changes: dict[str, str], tag: int) -> None:
    program = command("run", "-n", "2", "--no-prefix", "--no-python", sys.executable, "-c", LATE.format(tag=tag))
    done = subprocess.run(program, env=environment(**changes), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and "TimeoutError: recv from rank 0" in done.stderr
    told = "while its sender waits for an operation, too, or with A2A_PROGRESS_THREAD=1" in done.stderr
    assert told == bool(changes), done.stderr


SWITCHES = ("A2A_SHM_CMA", "A2A_PROGRESS_THREAD")
NUMBERS = ("A2A_SHM_DIRECT_MIN", "A2A_SHM_CMA_MIN", "A2A_SHM_STREAM_MIN", "A2A_SHM_SEGMENT")


@pytest.mark.parametrize("name", [*SWITCHES, *NUMBERS, "A2A_CHECK"])
def test_nonsense_is_refused_and_blanks_are_nothing(name: str) -> None:
    if name in SWITCHES:
        automatic = "auto, " if name == "A2A_PROGRESS_THREAD" else ""
        wrong, allowed = ("maybe", "2", "o n"), f"none of {automatic}1, 0, on, off, true, false, yes, no"
    elif name in NUMBERS:
        wrong, allowed = ("many", "-1", "1.5", str(2**64)), "not a number of bytes from "
    else:
        wrong, allowed = ("sometimes",), "none of off, first, always"
    code = f"""
import os, a2a
for value in {wrong!r}:
    os.environ[{name!r}] = value
    try:
        a2a.init()
    except a2a.InvalidArgumentError as error:
        assert str(error).startswith(f"{name}={{value}} in the environment is {allowed}"), error
    else:
        raise AssertionError(value)
for value in ("", "  "):
    os.environ[{name!r}] = value
    a2a.init().close()
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("meet", ["", "tcp"])
def test_the_others_hear_of_one_ranks_nonsense(meet: str) -> None:
    code = """
import os, a2a
if os.environ["A2A_RANK"] == "1":
    os.environ["A2A_SHM_CMA"] = "maybe"
try:
    a2a.init(timeout=20)
except a2a.Error as error:
    print(os.environ["A2A_RANK"], type(error).__name__, error)
"""
    more = {"A2A_BOOTSTRAP": f"tcp://127.0.0.1:{free_port()}"} if meet else {}
    program = command("run", "-n", "3", "--no-prefix", "--no-python", sys.executable, "-c", code)
    env = environment(**more)
    done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=15, check=True)
    lines = sorted(done.stdout.splitlines())
    assert lines[1].startswith("1 InvalidArgumentError A2A_SHM_CMA=maybe in the environment is none of")
    assert all("rank 1" in line for line in (lines[0], lines[2])), lines


HUGE = str(2**64)


@pytest.mark.parametrize(
    ("rank", "size"),
    [
        ("A2A_RANK", "A2A_SIZE"),
        ("RANK", "WORLD_SIZE"),
        ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ],
)
def test_numbers_of_launchers_are_bounded(rank: str, size: str) -> None:
    step = {"SLURM_STEP_ID": "0"}
    for name in (rank, size):
        for value, reason in ((HUGE, "is not between"), ("-" + HUGE, "is not between"), ("1_0", "is not an integer")):
            env = step | {rank: "0", size: "2"} | {name: value}
            with pytest.raises(a2a.InvalidArgumentError, match=f"^{name}='?{value}'? in the environment {reason}"):
                Launch.from_environ(env)


def test_other_numbers_are_bounded(tmp_path: Path) -> None:
    table = str(Path(__file__).parents[1] / "support" / "rank_table.json")
    for env in (
        {"RANK_ID": HUGE, "RANK_TABLE_FILE": table},
        {"A2A_RANK": "0", "A2A_SIZE": "2", "A2A_LOCAL_RANK": HUGE},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "9" * 5000},
    ):
        with pytest.raises(a2a.InvalidArgumentError, match="in the environment is not between"):
            Launch.from_environ(env)
    text = Path(table).read_text()
    (tmp_path / "table.json").write_text(text.replace('"rank_id": "3"', f'"rank_id": "{HUGE}"'))
    assert HUGE in (tmp_path / "table.json").read_text()
    with pytest.raises(a2a.InvalidArgumentError, match="rank_id"):
        Launch.from_environ({"RANK_ID": "0", "RANK_TABLE_FILE": str(tmp_path / "table.json")})
    assert Launch.from_environ({"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": HUGE}).job is None
    for rank, size in ((0, 2**64), (2**64, 2**65)):
        with pytest.raises(a2a.InvalidArgumentError, match="do not satisfy"):
            a2a.init(rank, size, job="none")


def test_a_port_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    for port, offset in (("65535", "1"), (HUGE, "1"), ("80", HUGE), ("80", "-80")):
        monkeypatch.setenv("MASTER_PORT", port)
        monkeypatch.setenv("A2A_PORT_OFFSET", offset)
        with pytest.raises(a2a.InvalidArgumentError, match=r"MASTER_PORT|A2A_PORT_OFFSET"):
            a2a.init(timeout=1)


def test_unknown_names_are_told_once_with_the_nearest() -> None:
    code = "import a2a\nfor _ in range(2): a2a.init().close()"
    done = run(code, A2A_SHM_CAM="0", A2A_SECRET_FLIE="x", A2A_TEST_MPI="")
    assert done.returncode == 0
    assert done.stderr.count("RuntimeWarning") == 1
    assert "A2A_SHM_CAM (did you mean A2A_SHM_CMA?)" in done.stderr
    assert "A2A_SECRET_FLIE (did you mean A2A_SECRET_FILE?)" in done.stderr
    assert "A2A_TEST_MPI" not in done.stderr
    assert run(code, A2A_SHM_CMA="0", A2A_JOB="x").stderr == ""


def test_the_known_names_are_those_of_the_sources() -> None:
    """Every name that the sources have between quotes, and no other; each stands in the documentation, too."""
    pattern = re.compile(r"\"(A2A_[A-Z0-9_]+)\"")
    names: set[str] = set()
    for folder in ("src", "python", "adapters"):
        for path in (SOURCE / folder).rglob("*"):
            if path.suffix in (".cc", ".h", ".py", ".pyx", ".pxi", ".pxd") and path.name != "_variables.py":
                names |= set(pattern.findall(path.read_text()))
    text = (SOURCE / "docs" / "guide" / "variables.md").read_text()
    unread = {"A2A_FAULT", "A2A_VERSION"}
    assert names - unread == _variables.KNOWN - unread
    assert {name for name in _variables.KNOWN - unread if name not in text} == set()
