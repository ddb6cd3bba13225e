"""Builds the C++ tests and runs each of them as one pytest case."""

from pathlib import Path

import cmake_tools
import pytest
from cpp_build import LONG

SOURCE = Path(__file__).parents[3]
PATTERNS = ("cpp/*_test.cc", "fakes/*_test.cc", "fuzz/*_fuzz.cc", "model/*_test.cc")
NAMES = sorted(path.stem for pattern in PATTERNS for path in (SOURCE / "tests").glob(pattern))

pytestmark = [
    pytest.mark.skipif(not (SOURCE / "CMakeLists.txt").exists(), reason="no source tree beside the tests"),
    pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}"),
    pytest.mark.timeout(900),  # the first test builds everything
]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) if name in LONG else name for name in NAMES]
)
def test_cpp(build_dir: Path, name: str) -> None:
    cmake_tools.run("ctest", "--test-dir", str(build_dir), "--output-on-failure", "--no-tests=error", "-R", f"^{name}$")
