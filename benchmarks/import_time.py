"""What ``import a2a`` takes after NumPy's: ``python benchmarks/import_time.py``. Milliseconds, of new processes; the
least of several runs, because whatever disturbs one only adds to it."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

# Cumulative microseconds. Modules that others import are indented.
_LINE = re.compile(r"\| +(\d+) \| (\w+)$", re.MULTILINE)


def one_run() -> tuple[float, float]:
    """numpy, then a2a."""
    command = [sys.executable, "-X", "importtime", "-c", "import numpy, a2a"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    ms = {module: int(cumulative) / 1e3 for cumulative, module in _LINE.findall(told)}
    return ms["numpy"], ms["a2a"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    numpy, a2a = (min(times) for times in zip(*(one_run() for _ in range(options.runs)), strict=True))
    print(f"numpy {numpy:.1f} ms, then a2a {a2a:.1f} ms: the least of {options.runs} runs")


if __name__ == "__main__":
    main()
