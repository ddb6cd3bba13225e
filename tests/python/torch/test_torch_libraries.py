"""Trainings by other libraries, with the lines of docs/frameworks/libraries.md: the same bits as on Gloo with 2 ranks,
and to rounding with 4. The extra "libraries" of pyproject.toml installs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import command, environment, needs

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.full, pytest.mark.timeout(330)]

PROGRAM = Path(__file__).parents[1] / "support" / "library_ranks.py"
LIBRARIES = ("accelerate", "transformers", "lightning", "deepspeed", "ignite", "megatron", "ray")
PACKAGES = {"megatron": "megatron.core"}  # where the name is not that of the function in PROGRAM
WAYS = {"by name": ("a2a", {}), "as Gloo": ("gloo", {"A2A_TORCH_GLOO": "1"})}


def trained(library: str, backend: str, folder: Path, size: int = 2, **changes: str) -> list[dict[str, torch.Tensor]]:
    """What each rank has trained, and the name of its process group, which is the one that moved the bytes."""
    folder.mkdir()
    start = [sys.executable] if library == "ray" else command("run", "-n", str(size))
    done = subprocess.run(
        [*start, str(PROGRAM), library, backend, str(folder)],
        env=environment(OMP_NUM_THREADS="1", **changes),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    moved_by = {(folder / f"{rank}.txt").read_text() for rank in range(size)}
    assert moved_by == {"a2a" if backend == "a2a" or "A2A_TORCH_GLOO" in changes else "gloo"}
    return [torch.load(folder / f"{rank}.pt") for rank in range(size)]


def installed(library: str) -> None:
    try:
        needs(PACKAGES.get(library, library))
    except ModuleNotFoundError:  # the parent of a package
        pytest.skip(f"{library} is not installed")


@pytest.mark.parametrize(
    "library", ["accelerate", "transformers", "lightning", "deepspeed", "ignite", "megatron", "ray"]
)
def test_two_ranks_train_the_bits_that_they_train_on_gloo(library: str, tmp_path: Path) -> None:
    installed(library)
    want = trained(library, "gloo", tmp_path / "gloo")
    for way, (backend, changes) in WAYS.items():
        got = trained(library, backend, tmp_path / way, **changes)
        for mine, theirs in zip(got, want, strict=True):
            assert mine.keys() == theirs.keys() != set()
            assert all(torch.equal(mine[name], theirs[name]) for name in theirs), way
    if library != "megatron":  # whose ranks share one model
        assert all(torch.equal(want[0][name], want[1][name]) for name in want[0])


@pytest.mark.parametrize("library", ["accelerate", "ignite"])
def test_four_ranks_train_the_same_to_rounding(library: str, tmp_path: Path) -> None:
    installed(library)
    want = trained(library, "gloo", tmp_path / "gloo", 4)
    got = trained(library, "a2a", tmp_path / "a2a", 4)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("script", ["test_script", "test_ops", "test_sync"])
def test_accelerates_own_scripts(script: str) -> None:
    """They name no backend."""
    test_utils = pytest.importorskip("accelerate.test_utils")
    program = Path(test_utils.__file__).parent / "scripts" / f"{script}.py"
    env = environment(ACCELERATE_USE_CPU="true", A2A_TORCH_GLOO="1", A2A_LOG="info", OMP_NUM_THREADS="1")
    line = command("run", "-n", "2", str(program))
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stderr.count('process group "0": a2a serves the backend') == 2, done.stderr
