"""The build of the C++ tests and of the doubles, as a fixture for the tests of every folder."""

from __future__ import annotations

import faulthandler
import fcntl
import os
from pathlib import Path

import cmake_tools
import pytest
import sample

_SOURCE = Path(__file__).parents[3]
_TESTS = _SOURCE / "tests"
# test_scorecard.py takes liba2a from there, with the points at which it strikes ranks.
# Optimised a little: most of the time goes into compiling, and what is installed is optimised fully.
_OPTIONS = (
    "-G",
    "Ninja",
    "-DA2A_BUILD_TESTS=ON",
    "-DA2A_FAULTS=ON",
    "-DA2A_QUICK=ON",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
)

# C++ tests that only --full builds and runs. The sanitizers of .ci/run run each of them. They take long, because they
# try every point of failure, every bit, or many random cases, or wait for deadlines. What they test has a quicker test
# that always runs.
ONLY_FULL = {
    "core/conformance_test",
    "core/nth_failure_test",
    "hccl/hccl_fault_test",
    "hosts/hosts_transport_test",
    "nccl/nccl_fault_test",
    "nccl/nccl_test",
    "shm/bit_flip_test",
    "shm/packet_flip_test",
}
# These replay the corpora of the fuzzers.
ONLY_FULL |= {path.stem for path in _TESTS.glob("fuzz/*_fuzz.cc")}


@pytest.fixture(scope="session")
def build_dir(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The C++ tests and the doubles of vendor libraries, built once for all workers of pytest-xdist. A2A_TEST_BUILD_DIR
    keeps the build for the next run."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    build = Path(os.environ.get("A2A_TEST_BUILD_DIR") or shared / "cpp")
    build.mkdir(parents=True, exist_ok=True)
    with (build / ".lock").open("w") as lock:
        faulthandler.cancel_dump_traceback_later()  # this takes longer than a test may
        fcntl.flock(lock, fcntl.LOCK_EX)
        leave_out = "" if sample.full else ";".join(name.replace("/", ".") for name in sorted(ONLY_FULL))
        cmake_tools.run("cmake", "-S", str(_SOURCE), "-B", str(build), *_OPTIONS, f"-DA2A_LEAVE_OUT={leave_out}")
        cmake_tools.run("cmake", "--build", str(build), "--parallel", str(len(os.sched_getaffinity(0))))
    return build
