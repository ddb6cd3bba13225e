"""Runs pytest on a file of tests in a process of its own, and returns what it says of each."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 100.0


@dataclass
class Case:
    """One test of the file."""

    verdicts: list[str] = field(default_factory=list)
    """failure, error or skipped; several if pytest has said several things of it"""
    text: str = ""
    output: str = ""
    seconds: float = 0.0


@dataclass
class Run:
    code: int
    printed: str
    cases: dict[str, Case]


def run_pytest(folder: Path, *arguments: str, typed: str = "") -> Run:
    """``folder`` has the tests, and gets the files of the run."""
    report = folder / "report.xml"
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-c", os.devnull, "--rootdir", str(folder)]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", "-ojunit_logging=all", *arguments],
        cwd=folder,
        env=env | {"TMPDIR": str(folder), "COLUMNS": "120"},
        input=typed,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    return Run(done.returncode, done.stdout + done.stderr, _cases(report) if report.is_file() else {})


def _cases(report: Path) -> dict[str, Case]:
    cases: dict[str, Case] = defaultdict(Case)
    for found in xml.parse(report).iter("testcase"):
        case = cases[found.attrib["name"]]
        case.seconds += float(found.attrib["time"])
        for part in found:
            if part.tag in ("failure", "error", "skipped"):
                case.verdicts.append(part.tag)
                case.text += f"{part.attrib.get('message', '')}\n{part.text or ''}\n"
            elif part.tag.startswith("system-"):
                case.output += part.text or ""
    return dict(cases)
