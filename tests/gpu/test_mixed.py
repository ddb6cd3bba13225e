"""Ranks in different frameworks, each with its tensors on a GPU, and JAX, whose arrays nobody may write."""

from __future__ import annotations

import os
import subprocess
import sys

import mixed_ranks
import pytest
from rank_pool import Pool

from a2a import frameworks

pytestmark = pytest.mark.timeout(150)


def has_gpu(name: str) -> bool:
    """In a process of its own: JAX would take memory here, and keep it."""
    if name != "jax":
        return frameworks.load(name, "cuda").devices() > 0
    asks = "import jax; jax.devices('gpu')"
    return subprocess.run([sys.executable, "-c", asks], capture_output=True, check=False, timeout=100).returncode == 0


@pytest.fixture(scope="module")
def names(double: bool) -> list[str]:
    if double:
        pytest.skip("frameworks know no doubles")
    return [name for name in ("torch", "jax", "cupy") if name in frameworks.installed() and has_gpu(name)]


def test_each_rank_in_another_framework(ranks: Pool, names: list[str]) -> None:
    if not names:
        pytest.skip("no framework that sees a GPU")
    ranks.run(mixed_ranks.exchange, names)


def test_jax_alone(ranks: Pool, names: list[str]) -> None:
    if "jax" not in names:
        pytest.skip("no JAX that sees a GPU")
    ranks.run(mixed_ranks.exchange, ["jax"])


def test_the_demo_stays_in_host_memory(names: list[str]) -> None:
    """Where frameworks prefer the GPU."""
    done = subprocess.run(
        [sys.executable, "-m", "a2a.cli", "demo"], env=dict(os.environ), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
