"""The protocol under the death of any rank at any step, checked by SPIN; and its mutants, each of which SPIN must find.

    apt-get install spin
"""

import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[1] / "model" / "crash.pml"
# Each mistake, and the smallest model that shows it: ranks, operations.
MUTANTS = {
    1: (2, 3),  # a line is written although its reader is not done with the one before
    2: (2, 1),  # no second look for the line of a rank that is gone
    3: (2, 1),  # no look for aborts before success
    4: (2, 1),  # buffers are given back before the abort is posted
    5: (3, 1),  # the abort is not posted
    6: (2, 1),  # shrink waits for the dead
    7: (3, 1),  # a final proposal is not adopted
    8: (3, 1),  # a proposal becomes final without being everybody's
    9: (3, 1),  # a proposal becomes final before it is published
}

pytestmark = [
    pytest.mark.skipif(not MODEL.exists(), reason="no source tree beside the tests"),
    pytest.mark.skipif(not shutil.which("spin"), reason="spin is not installed"),
    pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed, which spin needs"),
]


def verify(folder: Path, ranks: int, operations: int, mutant: int) -> str:
    sizes = [f"-DN={ranks}", f"-DOPS={operations}", f"-DMUTANT={mutant}"]
    subprocess.run(["spin", "-a", *sizes, str(MODEL)], cwd=folder, check=True, capture_output=True)
    subprocess.run(["gcc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"], cwd=folder, check=True)
    done = subprocess.run(["./pan", "-m1000000"], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(("ranks", "operations"), [(2, 1), (2, 3), (3, 1)])
def test_crashes(tmp_path: Path, ranks: int, operations: int) -> None:
    output = verify(tmp_path, ranks, operations, 0)
    assert "errors: 0" in output and "max search depth too small" not in output, output


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants(tmp_path: Path, mutant: int) -> None:
    output = verify(tmp_path, *MUTANTS[mutant], mutant)
    assert "assertion violated" in output or "invalid end state" in output, output
