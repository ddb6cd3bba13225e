"""The conformance kit with tensors on a GPU. It gives each rank a GPU of its own, so on one GPU it has one rank."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(150)


def test_the_kit(framework: str) -> None:
    command = [sys.executable, "-m", "a2a.cli", "conformance", "--transport", "nccl", "--frameworks", framework]
    done = subprocess.run(
        [*command, "--ranks", "1", "--sample", "300"], env=dict(os.environ), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
