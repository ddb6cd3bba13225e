"""The kit over NCCL and HCCL: on the doubles that the C++ build makes, and what it says where there are none."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import cmake_tools
import numpy as np
import pytest
from doubles import DOUBLES, variables
from leftovers import CODES, assert_none_after
from sample import with_full

from a2a import frameworks
from a2a.conformance import signatures
from a2a.conformance.signatures import SIGNATURES

HERE = Path(__file__).parent
COMMAND = [sys.executable, "-m", "a2a.cli", "conformance"]

pytestmark = [
    pytest.mark.skipif(not (HERE.parents[1] / "CMakeLists.txt").exists(), reason="no source tree"),
    pytest.mark.skipif(bool(cmake_tools.MISSING), reason=f"not installed: {cmake_tools.MISSING}"),
    pytest.mark.timeout(900),  # the first test builds the doubles
]


def command(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.full
@pytest.mark.parametrize("transport", ["nccl", *with_full(["hccl"])])
def test_on_a_double(transport: str, build_dir: Path, tmp_path: Path) -> None:
    file, page = tmp_path / "results.json", tmp_path / "matrix.html"
    options = ["--transport", transport, "--frameworks", DOUBLES[transport], "--ranks", "1,2,5", "--sample", "500"]
    done = command(variables(build_dir), *options, "--json", str(file), "--html", str(page))
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(file.read_text())
    assert results["counts"] == {"pass": 1500} and results["transport"] == transport
    (tried,) = results["cells"].values()
    own = {one.name for one in SIGNATURES if one.library == "core" and not one.framework and one.memory is None}
    assert set(tried) >= own
    assert ("atb.AllToAllVOperation" in tried) == (transport == "hccl")
    # Nobody may take it for a run on a device.
    assert "This library is a test double" in results["test double"]
    assert "test double: This library is a test double of a2a" in done.stdout
    assert done.stdout.count("1500 pass; on a test double, which says nothing about a device") == 1
    assert "on a test double, which says nothing about a device" in page.read_text()
    assert f"{transport} (test double), 2 ranks" in done.stderr


@pytest.mark.full
def test_mixed_on_a_double(build_dir: Path, tmp_path: Path) -> None:
    second, file = tmp_path / "second.py", tmp_path / "results.json"
    second.write_text(f"import sys\nsys.path.append({str(HERE)!r})\nfrom cuda_double import FRAMEWORK\n")
    options = ["--frameworks", f"{DOUBLES['nccl']},{second}", "--ranks", "2", "--sample", "400", "--json", str(file)]
    done = command(variables(build_dir), "--transport", "nccl", "--mixed", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(json.loads(file.read_text())["cells"]) == {"cuda_double", "second", "mixed"}


@pytest.mark.parametrize("transport", DOUBLES)
def test_what_the_device_does_wrong_is_seen(transport: str, build_dir: Path) -> None:
    environment = {**variables(build_dir), "A2A_FAKE_ASYNC_ERROR": "2@1"}
    options = ["--transport", transport, "--frameworks", DOUBLES[transport], "--ranks", "2", "--sample", "3"]
    done = command(environment, *options, "--only", "core.alltoallv")
    # A call on a stream returns before; what is there then, or the next call, tells.
    told = "wrong: output: " if transport == "nccl" else "raises: BackendError: "
    assert done.returncode == 1 and told in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("transport", DOUBLES)
def test_nothing_is_left_after_an_interrupt(number: signal.Signals, transport: str, build_dir: Path) -> None:
    options = ["--transport", transport, "--frameworks", DOUBLES[transport], "--ranks", "3"]
    assert_none_after(number, [*COMMAND, *options], 4, variables(build_dir))


def test_alltoall_meets_nothing_else_there() -> None:
    """On devices it is an operation of its own, on the host it may meet alltoallv."""
    one = signatures.of("core.alltoall")
    assert one.meeting("host") == "alltoallv"
    assert (
        one.meeting("cuda") == one.meeting("npu") == signatures.of("core.alltoall async").meeting("npu") != "alltoallv"
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ranks", "9"], "there are cases for 1 to 8 ranks"),
        (["--ranks", "2,4"], "--ranks: 4 ranks need as many devices, and there are 3"),
        (["--frameworks", "numpy"], "nccl serves cuda memory, which the kit has no tensors of numpy in"),
        (["--frameworks", DOUBLES["hccl"]], "nccl serves cuda memory, but"),
    ],
)
def test_mistakes(arguments: list[str], told: str, build_dir: Path) -> None:
    environment = {**variables(build_dir), "A2A_FAKE_DEVICES": "3"}
    if "--frameworks" not in arguments:
        arguments = [*arguments, "--frameworks", DOUBLES["nccl"]]
    done = command(environment, "--transport", "nccl", *arguments)
    assert done.returncode == 2 and told in done.stderr and done.stdout == "", done


@pytest.mark.parametrize("transport", DOUBLES)
def test_a_double_is_not_taken_by_accident(transport: str, build_dir: Path) -> None:
    environment = {name: value for name, value in variables(build_dir).items() if name != "A2A_TEST_DOUBLES"}
    done = command(environment, "--transport", transport, "--frameworks", DOUBLES[transport], "--ranks", "2")
    assert done.returncode == 2 and f"--transport {transport}: " in done.stderr and "a test double" in done.stderr, done


def test_tensors_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU in place of a GPU."""
    pytest.importorskip("torch")
    module = frameworks.load("torch", "cuda")
    assert module.devices() >= 0
    monkeypatch.setattr(module, "memory", "cpu")
    for dtype, size in (("bool", 1), ("bfloat16", 2), ("complex128", 16)):
        content = np.arange(200, dtype=np.uint8) % 2
        memory = module.make(content)
        tensor = module.tensor(memory, 64 + size, dtype, (2, 3))
        assert str(tensor.dtype) == f"torch.{dtype}" and tensor.shape == (2, 3)
        assert module.read(tensor).tolist() == content[64 + size : 64 + 7 * size].tolist()
        tensor.zero_()
        assert module.read(memory)[64 + size : 64 + 7 * size].sum() == 0
        assert module.read(module.tensor(memory, 64, dtype, (0, 2))).size == 0


@pytest.mark.full
def test_what_is_missing_is_told() -> None:
    """On a machine without devices; where there are some, the kit would run."""
    torch = importlib.util.find_spec("torch") is not None
    for transport, memory, named in (
        ("nccl", "cuda", ["cupy is not installed", "torch sees no device" if torch else "torch is not installed"]),
        ("hccl", "npu", ["torch_npu" if torch else "torch is not installed"]),
    ):
        try:
            if any(frameworks.load(name, memory).devices() for name in frameworks.installed(memory)):
                continue
        except ImportError:
            pass
        done = command(dict(os.environ), "--transport", transport)
        assert done.returncode == 2 and done.stdout == "", done
        told = f"--transport {transport}: no framework here has tensors in {memory} memory: "
        assert told in done.stderr and all(part in done.stderr for part in named), done
