"""tests/gpu and benchmarks/gpu.py where there is no GPU: they are skipped, and they run on the doubles, so that they
still can on the day that there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import cmake_tools
import pytest
from commands import environment

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(not (ROOT / "CMakeLists.txt").exists(), reason="no source tree"),
    pytest.mark.timeout(900),  # the first test builds the doubles
]
BUILD = pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}")


def run(*command: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment(**variables), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def doubles(build: Path, version: str = "") -> dict[str, str]:
    """One GPU, which ranks share as that version of NCCL allows."""
    return {
        "A2A_TEST_DOUBLES": "1",
        "A2A_FAKE_DEVICES": "1",
        "A2A_NCCL_LIBRARY": str(build / "fakes" / version / "libnccl.so.2"),
        "A2A_CUDA_LIBRARY": str(build / "fakes" / "libcuda.so.1"),
    }


def test_skipped_without_a_gpu() -> None:
    nowhere = {"A2A_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}
    told = run("-m", "pytest", "-p", "no:cacheprovider", "-n0", "tests/gpu", **nowhere)
    assert "passed" not in told and "failed" not in told and "no GPU that a2a can use" in told


@BUILD
@pytest.mark.parametrize("version", ["", "nccl-2.18"])
def test_on_the_doubles(build_dir: Path, version: str) -> None:
    some = "2 and driver and (uneven or waits or flight or graph or form or part)"
    told = run("-m", "pytest", "-p", "no:cacheprovider", "-n0", "tests/gpu", "-k", some, **doubles(build_dir, version))
    assert " passed" in told and "failed" not in told, told


@BUILD
def test_the_benchmark_on_the_doubles(build_dir: Path, tmp_path: Path) -> None:
    options = ["-e", "64", "--ranks", "2", "--rounds", "1", "--save", str(tmp_path)]
    told = run("benchmarks/gpu.py", *options, A2A_BENCH_CACHE=str(tmp_path / "cache"), **doubles(build_dir))
    (file,) = tmp_path.glob("gpu-*.json")
    found = json.loads(file.read_text())
    assert "NOT A GPU" in found["facts"] and "NOT A GPU" in told
    assert all(one["fastest_us"] > 0 and one["calls"]["ncclSend"] > 6 for one in found["own time"].values())
    (group,) = found["exchanges"]
    assert {name for point in group["points"] for name in point["calls"]} == {"a2a", "a2a-plan"}
    assert group["split"]["a2a"]["calls"]["ncclSend"][0] == 1


def test_the_script_is_one() -> None:
    script = ROOT / "tests" / "gpu" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
