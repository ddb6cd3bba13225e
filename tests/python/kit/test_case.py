"""``a2a.testing.RanksTestCase``, by unittest alone and by pytest."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import kit_programs
import pytest

pytest.importorskip("torch")
PROGRAM = Path(kit_programs.__file__).with_name("kit_unittest.py")
TEXTS = {
    "test_fails_on_one": ["rank 1 failed first:", "AssertionError: 1 == 1", "ranks 0, 2 followed:", "AbortedError"],
    "test_dies": ["rank 1 failed first:", "exited with code 4", "ranks 0, 2 followed:", "PeerLostError"],
    "test_fails_in_a_part": ["all 3 ranks failed alike:", "number=1", "AssertionError: 1 != 0"],
    "test_leaves_work": ["has not waited for allreduce #1"],
    "test_hangs": [r"did not come to an end in 1 s\n.*time.sleep\(99\)", "because of rank 1"],
    "test_runs_nowhere": ["1000000 ranks need"],
}


@pytest.mark.smoke
def test_unittest() -> None:
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, timeout=60)
    assert "Ran 11 tests" in done.stderr, done
    assert "FAILED (failures=5, errors=1, skipped=2, expected failures=1)" in done.stderr, done.stderr
    for name, patterns in TEXTS.items():
        text = re.split("={50,}", done.stderr)
        block = next(part for part in text if f": {name} " in part)
        assert re.search(".*".join(patterns), block, re.DOTALL), block
    assert "ResourceWarning" not in done.stderr


def test_pytest(tmp_path: Path) -> None:
    shutil.copy(PROGRAM, tmp_path / "test_unittest.py")
    run = kit_programs.run_pytest(tmp_path, "test_unittest.py")
    failed = {name for name, case in run.cases.items() if "failure" in case.verdicts or "error" in case.verdicts}
    assert failed == set(TEXTS), run.printed
    for name, patterns in TEXTS.items():
        assert re.search(".*".join(patterns), run.cases[name].text, re.DOTALL), run.cases[name].text
