"""NVIDIA's own NCCL, as far as it goes without a GPU: a2a finds it where its wheel lies, finds in it all that it calls,
reads its version, and passes on what it says. A2A_NCCL_WHEEL may name a directory with the wheel's files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cmake_tools
import numpy as np
import pytest
from commands import call
from vendor_files import directory_of, nccl_version

import a2a
from a2a._core import library_of


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The wheel's directory, which is where commands and ranks look."""
    found = directory_of("lib/libnccl.so.2", "A2A_NCCL_WHEEL", "nvidia.nccl")
    monkeypatch.setenv("PYTHONPATH", str(found.parents[1]), prepend=os.pathsep)
    monkeypatch.syspath_prepend(found.parents[1])
    return found


def version_text(wheel: Path) -> str:
    version = nccl_version(wheel / "include" / "nccl.h")
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def test_it_is_found_without_a_driver(wheel: Path) -> None:
    """What a2a calls was all there, or it would be that which is missing."""
    done = call("info", "--json", A2A_CUDA_LIBRARY="/nowhere/libcuda.so.1")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["transports"]["nccl"]
    library = wheel / "lib" / "libnccl.so.2"
    assert told == f"no: NCCL ({library}) is version {version_text(wheel)}, but cannot find the CUDA driver"


def connect(comm: a2a.Communicator) -> list[str]:
    """The version, and what NCCL says to a driver that is none."""
    told = [library_of("nccl")]
    try:
        comm.connect(f"cuda:{comm.rank}")
    except a2a.Error as error:
        told.append(f"{type(error).__name__}: {error}")
    received = np.full(comm.size, -1)
    comm.alltoall(np.arange(comm.size), received)  # the communicator goes on
    assert (received == comm.rank).all()
    return told


@pytest.mark.skipif(not (Path(__file__).parents[3] / "CMakeLists.txt").exists(), reason="no source tree")
@pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}")
@pytest.mark.timeout(900)  # the first test builds the doubles
def test_it_refuses_a_double_of_the_driver(
    wheel: Path, build_dir: Path, run_ranks: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """a2a's struct of options reaches NCCL, whose words reach the user, on all ranks."""
    monkeypatch.setenv("A2A_TEST_DOUBLES", "1")
    monkeypatch.setenv("A2A_CUDA_LIBRARY", str(build_dir / "fakes" / "libcuda.so.1"))
    for version, refusal in run_ranks(2, connect):
        assert version == f"NCCL {version_text(wheel)}"
        assert refusal.startswith("BackendError: ") and "ncclCommInitRankConfig failed: " in refusal, refusal
        assert "uda" in refusal.partition("failed: ")[2], refusal
