"""Ranks that an MPI's launcher starts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.append(str(TESTS / "python" / "support"))  # whose modules import each other by name

import mpi  # noqa: E402

from .harness import NotRun  # noqa: E402

RANKS = str(TESTS / "python" / "support" / "mpi_ranks.py")
files_in_shared_memory = mpi.files_in_shared_memory


@dataclass
class Launched:
    """How a job ended."""

    status: int
    said: str
    seconds: float
    hung: bool


def installed() -> Sequence[mpi.Mpi]:
    if not mpi.INSTALLED:
        raise NotRun("no mpiexec here; the extra mpi brings one")
    return mpi.INSTALLED


def launch(which: mpi.Mpi, hosts: Sequence[str], program: Sequence[str], limit: float, **variables: str) -> Launched:
    """Runs a rank for each of the hosts. Whatever is there after so many seconds hangs: it is killed."""
    env = which.environment(A2A_HOSTS=",".join(hosts), TMPDIR=os.environ.get("TMPDIR", "/tmp"), **variables)
    begin = time.monotonic()
    job = subprocess.Popen(
        which.command(len(hosts), *program),
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=TESTS.parent,
        start_new_session=True,
    )
    hung = False
    with job:
        try:
            said = job.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            hung = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGTERM)  # so that it ends its ranks, which have sessions of their own
            try:
                said = job.communicate(timeout=5)[0]
            except subprocess.TimeoutExpired:
                job.kill()
                said = job.communicate()[0]
    return Launched(job.returncode, said, time.monotonic() - begin, hung)
