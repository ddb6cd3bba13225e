"""Finds out whether operations on devices can be tried here, and with which library: a vendor's, or a test double of
it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import a2a

__all__ = ["Found", "look"]

CONNECT_SECONDS = 60.0
"""How long ranks may take to meet inside the vendor's library."""
_MARK = "a2a_test_double"


@dataclass(frozen=True)
class Found:
    missing: str = ""
    """Why operations on such devices are not possible; "" when they are."""
    double: str = ""
    """The texts of the libraries that are test doubles."""


@functools.cache
def look(memory: str) -> Found:
    """Try a group of one rank, in a process of its own: a process that has used a device must not fork()."""
    command = [sys.executable, "-c", f"from {__name__} import tell; tell({memory!r})"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * CONNECT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Found(f"one rank on {memory}:0 did not connect with itself within {2 * CONNECT_SECONDS:.0f} seconds")
    if done.returncode or not done.stdout:
        return Found(f"a process that connects on {memory}:0 ends with code {done.returncode}\n{done.stderr}".rstrip())
    return Found(**json.loads(done.stdout.splitlines()[-1]))


def tell(memory: str) -> None:
    """The other side of look()."""
    print(json.dumps(_try(memory)))


def _try(memory: str) -> dict[str, str]:
    try:
        with a2a.init(0, 1, job=f"conformance-{secrets.token_hex(8)}", timeout=CONNECT_SECONDS) as comm:
            comm.connect(f"{memory}:0")
    except a2a.Error as error:
        return {"missing": str(error)}
    return {"double": _said_by_doubles()}


def _said_by_doubles() -> str:
    """Every double has this symbol, wherever it was found."""
    paths = set(re.findall(r"/.*\.so[.\d]*$", Path("/proc/self/maps").read_text(), re.MULTILINE))
    for path in sorted(paths):
        with contextlib.suppress(OSError, ValueError):
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            mark = ctypes.c_char.in_dll(library, _MARK)
            return ctypes.string_at(ctypes.addressof(mark)).decode(errors="replace")
    return ""
