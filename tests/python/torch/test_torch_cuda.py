"""Who carries CUDA tensors: a2a's NCCL or Torch. On the doubles of CUDA and NCCL."""

from __future__ import annotations

import subprocess
from pathlib import Path

import cmake_tools
import pytest
from commands import command, environment

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(not (Path(__file__).parents[3] / "CMakeLists.txt").exists(), reason="no source tree"),
    pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}"),
    pytest.mark.timeout(900),  # the first test builds the doubles
]


def test_tensors_of_a_process_group_are_torchs_and_all_others_go_to_nccl_here(build_dir: Path) -> None:
    doubles = {
        "A2A_TEST_DOUBLES": "1",
        "A2A_NCCL_LIBRARY": str(build_dir / "fakes" / "libnccl.so.2"),
        "A2A_CUDA_LIBRARY": str(build_dir / "fakes" / "libcuda.so.1"),
    }
    program = str(Path(__file__).parents[1] / "support" / "torch_cuda_program.py")
    done = subprocess.run(
        command("run", "-n", "2", program), env=environment(**doubles), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done") == 2
