"""Builds the C++ tests and runs each of them as one pytest case."""

from pathlib import Path

import cmake_tools
import pytest
from cpp_build import ONLY_FULL
from sample import with_full

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
