"""What the tests of tests/python have, too."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "python"))
from cpp_build import build_dir  # noqa: F401 (a fixture)

signal.signal(signal.SIGINT, signal.default_int_handler)  # as there
