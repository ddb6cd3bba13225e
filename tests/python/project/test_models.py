"""The models of tests/model that need another program: SPIN, and Relacy (Debian: spin, relacy-dev)."""

import shutil
import subprocess
from pathlib import Path

import cmake_tools
import pytest

CRASHES = Path(__file__).parents[2] / "model" / "crash.pml"

pytestmark = pytest.mark.skipif(not CRASHES.exists(), reason="no source tree beside the tests")
needs_spin = pytest.mark.skipif(
    not (shutil.which("spin") and shutil.which("gcc")), reason="not installed: spin, and gcc, which it needs"
)


def verify(folder: Path, **parameters: int) -> str:
    """What SPIN's verifier prints of crash.pml with these parameters."""
    definitions = [f"-D{name}={value}" for name, value in parameters.items()]
    subprocess.run(["spin", "-a", *definitions, str(CRASHES)], cwd=folder, check=True, capture_output=True)
    subprocess.run(["gcc", "-O1", "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"], cwd=folder, check=True)
    return subprocess.run(["./pan", "-m1000000"], cwd=folder, capture_output=True, text=True, check=True).stdout


@needs_spin
@pytest.mark.parametrize(
    "parameters",
    [
        {"N": 2, "OPS": 1, "IMPATIENT": 1},
        {"N": 2, "OPS": 3, "EAGER": 1},
        {"N": 2, "OPS": 2, "IMPATIENT": 1},
        {"N": 3, "OPS": 0, "DEATHS": 1},
    ],
    ids=str,
)
def test_crashes(tmp_path: Path, parameters: dict[str, int]) -> None:
    output = verify(tmp_path, **parameters)
    assert "errors: 0" in output and "max search depth too small" not in output, output


# Each makes one mistake; the smallest model that shows it.
MUTANTS = {
    "a line is written again too early": {"MUTANT": 1, "N": 2, "OPS": 3, "EAGER": 1},
    "no second look for the line of a rank that is gone": {"MUTANT": 2, "N": 2},
    "no look for aborts after copying": {"MUTANT": 3, "N": 2, "IMPATIENT": 1},
    "buffers are given back before the abort": {"MUTANT": 4, "N": 2, "IMPATIENT": 1},
    "no abort": {"MUTANT": 5, "N": 2, "IMPATIENT": 1},
    "the dead are waited for": {"MUTANT": 6, "N": 2},
    "a final proposal is not adopted": {"MUTANT": 7, "N": 3, "OPS": 0, "DEATHS": 1},
    "a proposal is final without being everybody's": {"MUTANT": 8, "N": 3, "OPS": 0, "DEATHS": 1},
    "a proposal is final before it is published": {"MUTANT": 9, "N": 3, "OPS": 0, "DEATHS": 1},
}


@needs_spin
@pytest.mark.parametrize("mistake", MUTANTS)
def test_mutants(tmp_path: Path, mistake: str) -> None:
    output = verify(tmp_path, **MUTANTS[mistake])
    assert "pan:1: assertion violated" in output or "pan:1: invalid end state" in output, output


@pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}")
@pytest.mark.timeout(900)  # builds all C++ tests, unless others have
def test_relacy(build_dir: Path) -> None:
    found = cmake_tools.run("ctest", "--test-dir", str(build_dir), "-N", "-R", "^relacy_check$")
    if "Total Tests: 0" in found:
        pytest.skip("relacy is not installed")
    cmake_tools.run("ctest", "--test-dir", str(build_dir), "--output-on-failure", "-R", "^relacy_check$")
