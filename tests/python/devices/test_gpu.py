"""tests/gpu and benchmarks/gpu.py where there is no GPU: they are skipped, and they run on the doubles, so that they
still can on the day that there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cmake_tools
import pytest
from commands import environment

FULL = pytest.mark.full

ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.skipif(not (ROOT / "CMakeLists.txt").exists(), reason="no source tree"),
    pytest.mark.timeout(900),  # the first test builds the doubles
]
BUILD = pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}")

MOST = "2 and (driver and (uneven or waits or flight or graph or form or part or rooted) or gone or hand)"


def run(*command: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment(**variables), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def doubles(build: Path, version: str = "", gpus: int = 1) -> dict[str, str]:
    """So many GPUs, which ranks share as that version of NCCL allows where they are too few."""
    return {
        "A2A_TEST_DOUBLES": "1",
        "A2A_FAKE_DEVICES": str(gpus),
        "A2A_NCCL_LIBRARY": str(build / "fakes" / version / "libnccl.so.2"),
        "A2A_CUDA_LIBRARY": str(build / "fakes" / "libcuda.so.1"),
    }


@pytest.mark.smoke
def test_skipped_without_a_gpu() -> None:
    nowhere = {"A2A_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}
    told = run("-m", "pytest", "-p", "no:cacheprovider", "-n0", "tests/gpu", **nowhere)
    assert "passed" not in told and "failed" not in told and "no GPU that a2a can use" in told


@BUILD
@pytest.mark.parametrize(
    ("version", "gpus", "some"),
    [
        ("", 1, MOST),
        pytest.param("nccl-2.18", 1, MOST, marks=FULL),
        pytest.param("", 1, "several_hosts", marks=FULL),
        pytest.param("", 2, "2 and driver and (part or current)", marks=FULL),
    ],
)
def test_on_the_doubles(build_dir: Path, version: str, gpus: int, some: str) -> None:
    pytest_command = ["-m", "pytest", "-p", "no:cacheprovider", "-n0", "tests/gpu", "-k", some]
    told = run(*pytest_command, **doubles(build_dir, version, gpus))
    assert " passed" in told and "failed" not in told and "SKIPPED" not in told, told


@pytest.mark.full
@BUILD
def test_the_benchmark_on_the_doubles(build_dir: Path, tmp_path: Path) -> None:
    options = ["-e", "64", "--ranks", "2", "--rounds", "1", "--save", str(tmp_path)]
    told = run("benchmarks/gpu.py", *options, A2A_BENCH_CACHE=str(tmp_path / "cache"), **doubles(build_dir))
    (file,) = tmp_path.glob("gpu-*.json")
    found = json.loads(file.read_text())
    assert "NOT A GPU" in found["facts"] and "NOT A GPU" in told
    for name, one in found["own time"].items():
        check_own_time(name, one)
    (group,) = found["exchanges"]
    measured = {(point["operation"], name) for point in group["points"] for name in point["calls"]}
    equal = {(operation, name) for operation in ("alltoall", "allgather") for name in ("a2a", "a2a-group")}
    assert measured == equal | {("alltoallv", "a2a"), ("alltoallv", "a2a-plan")}
    assert not any(call["wrong"] for point in group["points"] for call in point["calls"].values())
    assert group["split"]["a2a"]["calls"]["ncclSend"][0] == 2


def check_own_time(name: str, one: dict[str, Any]) -> None:
    """Ten times what is aimed at, for machines that do something else, and the calls of an exchange of eight ranks."""
    assert 0 < one["fastest_us"] < (10 if name.startswith("plan") else 30), (name, one)
    once = ["cuStreamIsCapturing", "cuStreamGetCtx", "ncclGroupStart", "ncclGroupEnd", "cuEventRecord"]
    exact = {**dict.fromkeys(once, 1), "ncclSend": 8, "ncclRecv": 8}
    # The others cost next to nothing; a thread that watches what is in flight makes some of them meanwhile.
    cheap = {"cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuThreadExchangeStreamCaptureMode", "cuEventQuery"}
    calls = {call: count for call, count in one["calls"].items() if call not in cheap | {"ncclCommGetAsyncError"}}
    assert calls == exact and sum(one["calls"].values()) < sum(exact.values()) + 12, one


@pytest.mark.full
@BUILD
def test_own_time_needs_no_gpu(tmp_path: Path) -> None:
    nowhere = {"A2A_CUDA_LIBRARY": "/nowhere/libcuda.so.1", "A2A_BENCH_CACHE": str(tmp_path)}
    told = run("benchmarks/gpu.py", "--own-time", **nowhere)
    assert "\n alltoallv, a2a's tensors " in told and "ncclSend:8" in told and "# skipped" not in told, told


def test_the_script_is_one() -> None:
    script = ROOT / "tests" / "gpu" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
