"""The scorecard of faults (tests/faults) in its quick form, and its guard: what it counts as what."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import cmake_tools
import pytest
from sample import with_full

ROOT = Path(__file__).parents[3]
USUAL = ["cables", "death", "disagreement", "joining", "network", "signals"]
FAMILIES = sorted(path.stem for path in (ROOT / "tests" / "faults" / "families").glob("*.py"))

pytestmark = [
    pytest.mark.skipif(not FAMILIES, reason="no source tree beside the tests"),
    pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}"),
    pytest.mark.timeout(900),  # the first test builds the library with fault points
]


def scorecard(*arguments: str | Path, seconds: float = 80) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.faults.scorecard", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)


@pytest.mark.parametrize("family", [*USUAL, *with_full(name for name in FAMILIES if name not in USUAL)])
def test_quick(build_dir: Path, tmp_path: Path, family: str, pytestconfig: pytest.Config) -> None:
    scale = "1" if pytestconfig.getoption("--full") else "0.2"
    done = scorecard(
        "--quick", "--scale", scale, "--only", family, "--build", build_dir, "--json", tmp_path / "card.json"
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    results = json.loads((tmp_path / "card.json").read_text())["results"]
    assert results and all(result["n"] or result["not_run"] for result in results), done.stdout


def test_repeats_a_fault_by_its_seed(build_dir: Path, tmp_path: Path) -> None:
    arguments = ("--only", "dtype differs", "--seed", "77", "--build", build_dir, "-n", "25")
    cards = []
    for name in ("one", "two"):
        assert scorecard(*arguments, "--json", tmp_path / name).returncode == 0
        cards.append(json.loads((tmp_path / name).read_text())["results"][0])
        del cards[-1]["seconds"]
    assert cards[0] == cards[1] and cards[0]["n"] == 25


# Ranks that end in every way that the guard tells apart, and leave things behind.
_ENDS = """
import os, signal, time
from tests.faults.harness import Answer, Belongings, attempt, be_guard, fork, judge, run
be_guard()

def program(rank, kind):
    if kind == "hang":
        time.sleep(60)
    if kind in ("abort", "crash"):
        os.kill(os.getpid(), signal.SIGABRT if kind == "abort" else signal.SIGSEGV)
    if kind == "vanish":
        os._exit(0)
    def call():
        if kind in ("clear", "unclear"):
            raise ValueError("rank 1 did it" if kind == "clear" else "something is wrong")
    return attempt(call, right=lambda: kind != "wrong")

for kind in ("right", "wrong", "clear", "unclear", "hang", "abort", "crash", "vanish"):
    ends = run(1, program, kind, limit=0.3)
    print(kind, judge(ends, ["ValueError"], ["rank 1"], must_raise=False).outcome)
print("due", judge(run(1, program, "right"), ["ValueError"]).outcome)

before = Belongings.now()
path = "/dev/shm/a2a-test-scorecard"
open(path, "w").close()
descriptor = os.open("/dev/null", os.O_RDONLY)
def leave(rank):
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
run(1, leave, limit=0.3)
pid, reader = fork(lambda: time.sleep(60))
os.close(reader)
left = Belongings.now().left_since(before)
os.unlink(path), os.close(descriptor)
print(sorted(left.items()))
print(sorted(Belongings.now().left_since(before).items()))
"""


def test_guard() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ENDS], cwd=ROOT, capture_output=True, text=True, timeout=30, env=os.environ, check=True
    )
    assert done.stdout.splitlines() == [
        "right right",
        "wrong silent",
        "clear clear",
        "unclear unclear",
        "hang hang",
        "abort abort",
        "crash crash",
        "vanish crash",
        "due silent",
        "[('descriptors', 1), ('files', 1), ('processes', 2)]",
        "[('descriptors', 0), ('files', 0), ('processes', 0)]",
    ]


@pytest.mark.parametrize("transport", ["shm", *with_full(["tcp", "ucx", "threads", "mpi"])])
def test_chaos(transport: str) -> None:
    """A few seconds of what runs for minutes at night."""
    chaos(transport)


@pytest.mark.parametrize("transport", ["tcp", *with_full(["shm", "threads", "mixed"])])
def test_chaos_of_generations(transport: str) -> None:
    chaos(transport, "--elastic")


def chaos(transport: str, *flags: str) -> None:
    command = [sys.executable, "-m", "tests.faults.chaos", *flags, "--minutes", "0.08", "--transport", transport]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0 and transport in done.stdout, f"{done.stdout}\n{done.stderr}"


_BUILD = """
import sys
from pathlib import Path
from tests.faults import scorecard
scorecard.ROOT = Path(sys.argv[1])
print(scorecard.fault_library(Path(sys.argv[2])).stat().st_size)
"""


@pytest.mark.full
def test_an_interrupted_build_goes_on(tmp_path: Path) -> None:
    """After the configuration, and in the middle of writing the library."""
    source = tmp_path / "source"
    source.mkdir()
    lines = ["cmake_minimum_required(VERSION 3.18)", "project(small C)", 'option(A2A_FAULTS "" OFF)']
    (source / "CMakeLists.txt").write_text("\n".join([*lines, "add_library(a2a SHARED a.c)\n"]))
    (source / "a.c").write_text("int a2a = 1;\n")
    for name in ("configured", "half written"):
        build = tmp_path / name
        cmake_tools.run("cmake", "-S", str(source), "-B", str(build), "-G", "Ninja", "-DA2A_FAULTS=ON")
        if name == "half written":
            (build / "liba2a.so").write_bytes(b"\x7fELF")
        for _ in range(2):
            command = [sys.executable, "-c", _BUILD, str(source), str(build)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
            assert int(done.stdout.split()[-1]) > 1000
        assert "# building" not in done.stderr


@pytest.mark.parametrize("place", ["unix", "abab"])
def test_chaos_of_experts(place: str) -> None:
    command = [sys.executable, "-m", "tests.faults.chaos_experts", "--minutes", "0.05", "--seed", "3", "--place", place]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0 and ", 0 findings" in done.stdout, done.stdout + done.stderr
