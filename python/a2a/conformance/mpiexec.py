"""Starts ranks by MPI's launcher."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys

__all__ = ["command", "missing"]

_SECONDS = 60
_TRY = f"""
import json, a2a
try:
    a2a.init(timeout={_SECONDS / 2}).close()
except a2a.Error as error:
    print(json.dumps(str(error)), flush=True)
    raise
"""


def command(ranks: int, *program: str) -> list[str]:
    """Return the command that starts ``ranks`` Python processes."""
    return ["mpiexec", *_options(), "-n", str(ranks), sys.executable, *program]


def missing() -> str:
    """Return why two ranks on hosts of their own cannot meet; "" when they can."""
    if not shutil.which("mpiexec"):
        return "there is no mpiexec in PATH"
    hosts = {**os.environ, "A2A_HOSTS": "a,b"}
    try:
        done = subprocess.run(
            command(2, "-c", _TRY), env=hosts, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"two ranks did not meet within {_SECONDS} seconds"
    if done.returncode == 0:
        return ""
    for line in done.stdout.splitlines():
        with contextlib.suppress(ValueError):
            return str(json.loads(line))
    return f"mpiexec ends with code {done.returncode}\n{done.stderr}".rstrip()


def _options() -> list[str]:
    said = subprocess.run(["mpiexec", "--version"], capture_output=True, text=True, check=False).stdout
    if not any(name in said for name in ("Open MPI", "OpenRTE", "PRRTE", "prterun")):
        return []
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [*as_root, "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
