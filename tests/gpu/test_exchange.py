"""Exchanges of tensors on GPUs: one rank, and several ranks, which share a GPU where there are too few."""

from __future__ import annotations

import gpu_ranks
import pytest
from gpu_ranks import DRIVER
from rank_pool import Pool

from a2a import frameworks

pytestmark = pytest.mark.timeout(150)


@pytest.mark.parametrize("how", ["call", "plan", "async"])
@pytest.mark.parametrize("shape", ["uneven", "nothing", "one way"])
def test_every_dtype(ranks: Pool, framework: str, shape: str, how: str) -> None:
    ranks.run(gpu_ranks.exchange, framework, shape, how)


def test_parts_of_many_bytes(ranks: Pool, framework: str) -> None:
    ranks.run(gpu_ranks.exchange, framework, "big", "call", "uint8")


def test_the_other_calls(ranks: Pool, framework: str) -> None:
    if framework == DRIVER:
        pytest.skip(
            "the tests' own framework has nobody who would read results that a2a allocates: "
            "tests/python/devices/test_nccl.py does"
        )
    ranks.run(gpu_ranks.other_calls, framework)


def test_pinned_memory(ranks: Pool, framework: str) -> None:
    if framework != "torch":
        pytest.skip("Torch pins memory")
    ranks.run(gpu_ranks.pinned)


def test_more_than_two_gibibytes(ranks: Pool, double: bool) -> None:
    if double or "torch" not in frameworks.installed() or not frameworks.load("torch", "cuda").devices():
        pytest.skip("needs a Torch that sees a GPU")
    import torch

    free = torch.cuda.mem_get_info()[0] >> 30
    if free < 8 * ranks.n:
        pytest.skip(f"needs {8 * ranks.n} GiB of the GPU's memory, and {free} are free")
    if ranks.n > 2:
        pytest.skip("two ranks show it, and sockets take long")
    print("seconds:", ranks.run(gpu_ranks.large))
