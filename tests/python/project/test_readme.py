"""Runs the examples of README.md as a reader would."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import cmake_tools
import pytest

import a2a

README = Path(__file__).parents[3] / "README.md"
pytestmark = pytest.mark.skipif(not README.exists(), reason="no source tree beside the tests")


def blocks(language: str) -> list[str]:
    text = README.read_text(encoding="utf-8") if README.exists() else ""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def framework(block: str) -> str:
    return next((name for name in ("torch", "paddle") if f"import {name}" in block), "numpy")


@pytest.mark.parametrize("block", blocks("python"), ids=framework)
def test_python_example_runs(block: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if importlib.util.find_spec(framework(block)) is None:
        pytest.skip(f"{framework(block)} is not installed")
    script = tmp_path / "example.py"
    script.write_text(block, encoding="utf-8")
    # The README says four. Importing Torch or Paddle is what takes the time.
    ranks = 4 if pytestconfig.getoption("--full") or framework(block) == "numpy" else 2
    command = [sys.executable, "-m", "a2a.cli", "run", "-n", str(ranks), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [rank for rank in range(ranks) if f"rank {rank} " not in done.stdout] == []


CMAKE_PROJECT = """
cmake_minimum_required(VERSION 3.20...4.4)
project(example LANGUAGES CXX)
find_package(a2a CONFIG REQUIRED)
find_package(Threads REQUIRED)
add_executable(example example.cc)
target_link_libraries(example PRIVATE a2a::a2a Threads::Threads)
"""


@pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}")
def test_cpp_example_builds_and_runs(tmp_path: Path) -> None:
    (example,) = blocks("cpp")
    (tmp_path / "example.cc").write_text(example, encoding="utf-8")
    (tmp_path / "CMakeLists.txt").write_text(CMAKE_PROJECT, encoding="utf-8")
    build = tmp_path / "build"
    root = f"-Da2a_ROOT={a2a.get_cmake_dir()}"
    cmake_tools.run("cmake", "-S", str(tmp_path), "-B", str(build), "-G", "Ninja", root)
    cmake_tools.run("cmake", "--build", str(build))
    lines = sorted(cmake_tools.run(str(build / "example")).splitlines())
    assert lines == [f"rank {rank} received 0 1 2 3" for rank in range(4)]
