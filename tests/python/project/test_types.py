"""The types of a user's program: what is right passes mypy and pyright, what is wrong is refused where it stands."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import needs

RIGHT = """
import asyncio
from typing import Any

import numpy as np
import numpy.typing as npt

import a2a
import a2a_comm
from a2a import moe


async def later(comm: a2a.Communicator, x: npt.NDArray[np.float32], flag: bool) -> None:
    work = comm.alltoall(x, x.copy(), async_op=True)
    await work
    comm.allreduce(x, async_op=True).wait(timeout=1.0)
    sums = comm.global_scatter(x, [1, 1], [1, 1], async_op=True)
    assert sums.done() or sums.result is not None
    source: int = comm.recv(x)
    await comm.recv(x, source, async_op=True)
    either = comm.broadcast(x, async_op=flag)
    if either is not None:
        await either


def tensors(comm: a2a.Communicator, shared: a2a.SharedArray, anything: Any) -> None:
    for tensor in (np.zeros(4), shared, bytearray(8), memoryview(bytearray(8)), anything):
        comm.allgather(tensor, np.zeros(8))
    rows, counts = comm.exchange(np.zeros((4, 2), np.float32), np.array([2, 2]))
    total: np.float32 = rows.sum() + np.float32(counts.sum())
    out: npt.NDArray[np.float32] = comm.global_scatter(rows, [1], (1,))
    comm.plan_alltoallv(rows, [np.int64(1)], out, [1]).start(rows, out).wait()
    print(total)


async def experts(comm: a2a_comm.Communicator, x: npt.NDArray[np.float32], chosen: npt.NDArray[np.int64]) -> None:
    ep = moe.ExpertParallel(comm, 4)
    routed = ep.dispatch(x, chosen, layout="rank")
    y: npt.NDArray[np.float32] = ep.combine(x, routed, weights=None)
    coming = ep.dispatch(x, routing=routed.routing, async_op=True)
    await coming
    work = ep.combine(y, coming.result, bias=[y, y], async_op=True)
    work.wait()
    again: moe.Routed = routed.routing.dispatch(x)
    print(again.counts.sum(), a2a.quantized_all_reduce(comm, x.astype(np.int8), 0.5).sum())


def ranks(comm: a2a.Communicator, scale: float) -> float:
    asyncio.run(later(comm, np.zeros(2, np.float32), scale > 1))
    return scale


results: list[float] = a2a.spawn(ranks, 2, 0.5)
"""

# Each line is wrong by itself.
WRONG = """
import numpy as np

import a2a
from a2a import moe


def fn(comm: a2a.Communicator, x: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None: ...


async def wrong(comm: a2a.Communicator, x: np.ndarray[tuple[int], np.dtype[np.float32]], flag: bool) -> None:
    ep = moe.ExpertParallel(comm, 4)
    routed = ep.dispatch(x, x)
    comm.allgather(1, x)  # wrong
    comm.allgather(x, [1.0, 2.0])  # wrong
    comm.allreduce("x")  # wrong
    comm.exchange(3.5, [1, 1])  # wrong
    comm.alltoallv(x, 2, x, [1, 1])  # wrong
    comm.alltoallv(x, ["1"], x, [1, 1])  # wrong
    comm.allreduce(x, op="median")  # wrong
    comm.alltoall(x, x).wait()  # wrong
    await comm.allgather(x, x)  # wrong
    comm.broadcast(x, async_op=flag).wait()  # wrong
    comm.alltoall(x, x, async_op=1)  # wrong
    comm.recv(x).wait()  # wrong
    comm.global_gather(x, [1], [1], async_op=True).sum()  # wrong
    await ep.combine(x, routed)  # wrong
    ep.dispatch(x, x, async_op=True).counts  # wrong
    ep.dispatch(1, x)  # wrong
    ep.dispatch(x, x, layout="ranks")  # wrong
    ep.combine(x, x)  # wrong
    a2a.spawn(fn, 2, "x")  # wrong
    a2a.spawn(fn)  # wrong
"""

RIGHT_TORCH = """
import torch

import a2a.torch as dist


async def run(x: torch.Tensor) -> None:
    dist.all_reduce(x, async_op=True).wait()
    dist.all_to_all_single(x, x, async_op=True).wait()
    dist.all_gather([x], x, None, True)
    dist.reduce_scatter_single(x, x)
"""
WRONG_TORCH = """
import torch

import a2a.torch as dist


def run(x: torch.Tensor) -> None:
    dist.all_reduce(x).wait()  # wrong
    dist.scatter(x, [x]).wait()  # wrong
    dist.broadcast(x, async_op="yes")  # wrong
"""
# Torch's own types take a minute.
CONFIGURATION = """
[tool.mypy]
strict = true
python_version = "3.10"
[[tool.mypy.overrides]]
module = ["torch.*", "paddle.*", "jax.*", "ml_dtypes.*", "cupy.*", "cloudpickle.*"]
follow_imports = "skip"
ignore_missing_imports = true

[tool.pyright]
typeCheckingMode = "strict"
pythonVersion = "3.10"
extraPaths = ["package"]
reportMissingImports = false
reportMissingModuleSource = false
reportUnknownMemberType = false
reportUnknownParameterType = false
reportUnknownArgumentType = false
reportUnknownVariableType = false
reportUnusedExpression = false
reportPrivateUsage = false
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the package as it is installed: an editable installation keeps adapters elsewhere, where mypy finds none."""
    sources = shutil.ignore_patterns("*.so", "__pycache__", "cpp", "include", "lib", "share", "pyx")
    for name in ("a2a", "a2a_comm", "a2a.atb", "a2a.torch"):
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        place = tmp_path / "package" / name.replace(".", "/")
        shutil.copytree(Path(spec.origin).parent, place, ignore=sources, dirs_exist_ok=True)
    (tmp_path / "pyproject.toml").write_text(CONFIGURATION, encoding="utf-8")
    return tmp_path


def complaints(folder: Path, checker: str, program: str) -> dict[int, str]:
    """The lines with errors, and what the first of each says."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    arguments = {"mypy": ["--cache-dir", "cache"], "pyright": ["--pythonpath", sys.executable]}[checker]
    command = [sys.executable, "-m", checker, *arguments, "program.py"]
    environment = {"MYPYPATH": "package", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    found: dict[int, str] = {}
    for line, text in re.findall(
        r"program\.py:(\d+):(?:\d+:| -)? ?error: (.*)", done.stdout.replace(" - error", ": error")
    ):
        found.setdefault(int(line), text)
    assert bool(found) == (done.returncode == 1), done.stdout + done.stderr
    return found


def require(checker: str) -> None:
    needs(checker)
    if checker == "pyright":
        done = subprocess.run([sys.executable, "-m", "pyright", "--version"], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("pyright finds no Node.js")


CHECKERS = ["mypy", "pyright"]


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize(
    "program", [pytest.param(RIGHT, id="core"), pytest.param(RIGHT_TORCH, id="torch", marks=pytest.mark.full)]
)
def test_a_right_program_passes(folder: Path, checker: str, program: str) -> None:
    require(checker)
    assert complaints(folder, checker, program) == {}


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize(
    "program", [pytest.param(WRONG, id="core"), pytest.param(WRONG_TORCH, id="torch", marks=pytest.mark.full)]
)
def test_every_wrong_line_is_refused(folder: Path, checker: str, program: str) -> None:
    require(checker)
    wrong = {at: line for at, line in enumerate(program.splitlines(), 1) if line.endswith("# wrong")}
    found = complaints(folder, checker, program)
    assert {line for at, line in wrong.items() if at not in found} == set()
    assert {at: text for at, text in found.items() if at not in wrong} == {}
