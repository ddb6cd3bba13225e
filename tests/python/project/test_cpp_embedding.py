"""Builds examples/cpp_embedding against the installed package and runs it, as an embedding program's author would."""

from pathlib import Path

import cmake_tools
import pytest

import a2a

EXAMPLE = Path(__file__).parents[3] / "examples" / "cpp_embedding"

pytestmark = [
    pytest.mark.skipif(not EXAMPLE.exists(), reason="no source tree beside the tests"),
    pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}"),
    pytest.mark.timeout(300),
]


def test_example_builds_and_its_ranks_agree(tmp_path: Path) -> None:
    cmake_tools.run(
        "cmake", "-S", str(EXAMPLE), "-B", str(tmp_path), "-G", "Ninja", f"-Da2a_ROOT={a2a.get_cmake_dir()}"
    )
    cmake_tools.run("cmake", "--build", str(tmp_path))
    lines = cmake_tools.run(str(tmp_path / "embedding")).splitlines()
    assert lines == [
        "4 ranks as processes: alltoallv and planned exchange verified",
        "4 ranks as threads: alltoallv and planned exchange verified",
    ]
