"""Builds the C++ tests and runs each of them as one pytest case."""

import os
import shutil
import subprocess
from pathlib import Path

import cmake_tools
import pytest
from cpp_build import ONLY_FULL
from sample import with_full

import a2a

SOURCE = Path(__file__).parents[3]
PATTERNS = ("fakes/*_test.cc", "fuzz/*_fuzz.cc", "model/*_test.cc")
NAMES = {path.stem for pattern in PATTERNS for path in (SOURCE / "tests").glob(pattern)}
NAMES |= {f"{path.parent.name}/{path.stem}" for path in (SOURCE / "tests" / "cpp").glob("*/*_test.cc")}

pytestmark = [
    pytest.mark.skipif(not (SOURCE / "CMakeLists.txt").exists(), reason="no source tree beside the tests"),
    pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}"),
    pytest.mark.timeout(900),  # the first test builds everything
]


@pytest.mark.parametrize("name", [*sorted(NAMES - ONLY_FULL), *with_full(sorted(NAMES & ONLY_FULL))])
def test_cpp(build_dir: Path, name: str) -> None:
    cmake_tools.run("ctest", "--test-dir", str(build_dir), "--output-on-failure", "--no-tests=error", "-R", f"^{name}$")


@pytest.mark.smoke
@pytest.mark.timeout(120)
def test_plans_of_the_installed_library(tmp_path: Path) -> None:
    """One C++ test, without a build of the library."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or pytest.skip("no C++ compiler")
    program, library = tmp_path / "plan_test", a2a.get_library_dir()
    folders = [f"-I{a2a.get_include()}", f"-I{SOURCE / 'tests' / 'cpp'}", f"-L{library}", f"-Wl,-rpath,{library}"]
    source = str(SOURCE / "tests" / "cpp" / "core" / "plan_test.cc")
    for command in (
        [compiler, "-std=c++20", "-O1", *folders, source, "-la2a", "-o", str(program)],
        [str(program), "allgather"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
