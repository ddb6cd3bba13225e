"""The examples of exchanges along axes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import command, environment, needs
from sample import with_full

EXAMPLES = Path(__file__).parents[3] / "examples"
pytestmark = [
    pytest.mark.timeout(110),
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="no source tree beside the tests"),
]


@pytest.mark.full
@pytest.mark.parametrize("ranks", [4, *with_full([1])])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ulysses_attention.py", {1: "1 ranks with [7] heads", 4: "4 ranks with [2, 2, 2, 1] heads"}),
        ("fft3d.py", {1: "1 x 1 ranks: 50 steps", 4: "2 x 2 ranks: 50 steps"}),
    ],
)
def test_as_in_one_process(name: str, words: dict[int, str], ranks: int) -> None:
    if name.startswith("ulysses"):
        needs("torch")
    start = [sys.executable] if ranks == 1 else command("run", "-n", str(ranks))
    done = subprocess.run(
        [*start, str(EXAMPLES / name)], env=environment(), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert words[ranks] in done.stdout and done.stdout.count("largest difference") == 1
