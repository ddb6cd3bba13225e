"""Builds the C++ tests and runs each of them as one pytest case."""

import fcntl
import os
from pathlib import Path

import cmake_tools
import pytest

SOURCE = Path(__file__).parents[2]
NAMES = sorted(path.stem for folder in ("cpp", "fakes") for path in (SOURCE / "tests" / folder).glob("*_test.cc"))

pytestmark = [
    pytest.mark.skipif(not (SOURCE / "CMakeLists.txt").exists(), reason="no source tree beside the tests"),
    pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}"),
    pytest.mark.timeout(900),  # the first test builds everything
]


@pytest.fixture(scope="session")
def build_dir(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The built tests, one build for all workers of pytest-xdist. A2A_TEST_BUILD_DIR keeps it for the next run."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    build = Path(os.environ.get("A2A_TEST_BUILD_DIR") or shared / "cpp")
    build.mkdir(parents=True, exist_ok=True)
    with (build / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cmake_tools.run("cmake", "-S", str(SOURCE), "-B", str(build), "-G", "Ninja", "-DA2A_BUILD_TESTS=ON")
        cmake_tools.run("cmake", "--build", str(build), "--parallel", str(len(os.sched_getaffinity(0))))
    return build


@pytest.mark.parametrize("name", NAMES)
def test_cpp(build_dir: Path, name: str) -> None:
    cmake_tools.run("ctest", "--test-dir", str(build_dir), "--output-on-failure", "--no-tests=error", "-R", f"^{name}$")
