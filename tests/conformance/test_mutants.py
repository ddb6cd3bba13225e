"""Whether the kit would notice: one line of the copy loops, of a plan or of an adapter is broken at a time, and every
such mutant has to fail."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import a2a

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    file: str
    old: str
    new: str
    only: str = ""
    """Cases and signatures that can notice."""

    def apply(self, text: str) -> str:
        assert text.count(self.old) == 1, f"{self.file} has {text.count(self.old)} times {self.old!r}"
        return text.replace(self.old, self.new)


COPY, PLAN = "transport/shm/copy.cc", "a2a/plan.cc"
CORE = [
    Mutant(COPY, "    to += step;\n", ""),
    Mutant(COPY, "    from += step;\n", ""),
    Mutant(COPY, "(bytes - head) / 128 * 128", "(bytes - head) / 64 * 64"),
    Mutant(COPY, "    bytes -= head + blocks;\n", "    bytes -= blocks;\n"),
    Mutant(
        COPY, "std::min({from.contiguous(), to.contiguous(), limit - copied})", "std::min(limit - copied, size_t{8})"
    ),
    Mutant(PLAN, "packed = displ + count;", "packed = displ;"),
    Mutant(PLAN, "displ * elem_bytes, count * elem_bytes", "packed * elem_bytes, count * elem_bytes"),
    Mutant(PLAN, "static_cast<size_t>(peer) * bytes_per_rank", "static_cast<size_t>(size - 1 - peer) * bytes_per_rank"),
    Mutant(PLAN, "next[expert + 1] += bytes", "next[expert] += bytes"),
    Mutant(PLAN, "    next += bytes;\n", ""),
    Mutant(PLAN, "  plan.sends_.swap(plan.recvs_);\n", ""),
    Mutant(PLAN, "static_cast<int>(i), 0, bytes[i]", "0, 0, bytes[i]"),
    Mutant("transport/shm/exchange.cc", "base + shape.offset(p.in_next)", "base + shape.offset(p.in_next + 1)"),
]
ADAPTERS = {
    "torch": [
        Mutant(
            "torch/_collectives.py",
            "output, input, output_split_sizes, input_split_sizes, async_op",
            "output, input, input_split_sizes, output_split_sizes, async_op",
        ),
        Mutant(
            "torch/_collectives.py",
            "comm, output_tensor_list, input_tensor_list, async_op",
            "comm, output_tensor_list, input_tensor_list[::-1], async_op",
            "torch.all_to_all",
        ),
        Mutant(
            "torch/_collectives.py",
            "GATHER.allgather(comm, output_tensor, input_tensor,",
            "GATHER.allgather(comm, output_tensor, input_tensor.flip(0),",
            "torch.all_gather",
        ),
        Mutant(
            "torch/_collectives.py",
            "GATHER_LIST.allgather_list(comm, tensor_list,",
            "GATHER_LIST.allgather_list(comm, tensor_list[::-1],",
            "torch.all_gather",
        ),
    ],
    "paddle": [
        Mutant("paddle/_collectives.py", "    return from_, to\n", "    return to, from_\n", "paddle."),
        Mutant(
            "paddle/_collectives.py",
            "view(given), to, view(out), from_, async_op",
            "view(given), from_, view(out), to, async_op",
            "paddle.",
        ),
        Mutant("paddle/_collectives.py", "gathered[at].reshape", "gathered[0].reshape", "paddle.all_gather"),
        Mutant(
            "paddle/_collectives.py",
            "alltoall_list(sends, recvs,",
            "alltoall_list(sends[::-1], recvs,",
            "paddle.alltoall",
        ),
        Mutant("paddle/utils/moe_utils.py", " if gather else (comm", " if not gather else (comm", "paddle.utils"),
    ],
}


def kit(package: Path, framework: str, only: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "a2a.cli", "conformance", "-x", "--ranks", "2-3", "--sample", "600"]
    return subprocess.run(
        [*command, "--frameworks", framework, "--only", only],
        env={**os.environ, "PYTHONPATH": str(package)},
        cwd=package,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def assert_noticed(package: Path, mutant: Mutant, framework: str) -> None:
    done = kit(package, framework, mutant.only)
    assert done.returncode == 1, f"nobody noticed {mutant}:\n{done.stdout}{done.stderr}"
    assert "what failed" in done.stdout, done.stdout + done.stderr


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the installed package, which is imported from there."""
    folder = tmp_path_factory.mktemp("mutants")
    shutil.copytree(Path(a2a.__file__).parent, folder / "a2a", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources of the library, built. Without optimisation, which would take most of the time."""
    folder = tmp_path_factory.mktemp("build")
    for name in ("src", "cmake", "adapters"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("CMakeLists.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    options = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS=-g0"]
    subprocess.run(["cmake", "-S", folder, "-B", folder / "build", *options], check=True, capture_output=True)
    return folder


def library(build: Path) -> Path:
    done = subprocess.run(["ninja", "-C", build / "build", "a2a"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return (build / "build" / "liba2a.so").resolve()


@pytest.mark.timeout(300)
def test_mutants_of_the_core(package: Path, build: Path) -> None:
    installed = package / "a2a" / "lib" / "liba2a.so"
    original = installed.read_bytes()
    try:
        installed.write_bytes(library(build).read_bytes())
        done = kit(package, "numpy", "")
        assert done.returncode == 0, done.stdout + done.stderr
        for mutant in CORE:
            source = build / "src" / "cpp" / mutant.file
            text = source.read_text()
            source.write_text(mutant.apply(text))
            installed.write_bytes(library(build).read_bytes())
            source.write_text(text)
            assert_noticed(package, mutant, "numpy")
    finally:
        installed.write_bytes(original)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("framework", ADAPTERS)
def test_mutants_of_an_adapter(framework: str, package: Path) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    for mutant in ADAPTERS[framework]:
        file = package / "a2a" / mutant.file
        text = file.read_text()
        file.write_text(mutant.apply(text))
        try:
            assert_noticed(package, mutant, framework)
        finally:
            file.write_text(text)
