"""The complete tests of the guide pass."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from kit_programs import run_pytest

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "testing.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="no source tree beside the tests")


def test_every_test_of_the_guide_passes(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    for number, block in enumerate(blocks):
        wanted = re.findall(r"^import (torch|paddle)", block, re.MULTILINE)
        if all(importlib.util.find_spec(name) is not None for name in wanted):
            (tmp_path / f"test_{number}.py").write_text(block, encoding="utf-8")
    run = run_pytest(tmp_path)
    assert run.code == 0 and len(run.cases) >= 3, run.printed
    assert all(case.verdicts == [] for case in run.cases.values()), run.printed
