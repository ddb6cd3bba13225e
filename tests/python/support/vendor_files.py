"""Headers and libraries of vendors, which are nowhere in this repository: in installed packages, or in a directory that
the environment names."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


def places(variable: str, package: str) -> Iterator[Path]:
    """Directories where a vendor's files may be."""
    if given := os.environ.get(variable):
        yield Path(given)
    for folder in sys.path:  # not by importing, which would load other modules of the package, too
        yield Path(folder, *package.split("."))


def directory_of(pattern: str, variable: str, package: str) -> Path:
    """The directory below which `pattern` is found, or the test is skipped."""
    for place in places(variable, package):
        for found in sorted(place.rglob(pattern)):
            return Path(str(found).removesuffix(pattern))
    pytest.skip(f"no {pattern} in an installed {package} or in {variable}")


def nccl_version(header: Path) -> int:
    """That of nccl.h: 23203 is 2.32.3."""
    found = re.search(r"^#define NCCL_VERSION_CODE (\d+)", header.read_text(), flags=re.MULTILINE)
    assert found
    return int(found[1])
