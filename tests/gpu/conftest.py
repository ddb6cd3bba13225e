"""Which GPUs, libraries and tensors these tests have, and ranks, which share GPUs where there are too few."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / folder) for folder in ("python/support", "conformance")]

import gpu_ranks  # noqa: E402
from rank_pool import Pool  # noqa: E402

from a2a import frameworks  # noqa: E402
from a2a._core import library_of  # noqa: E402
from a2a.conformance import devices  # noqa: E402

FRAMEWORKS = ["driver", "torch", "cupy"]


def pytest_report_header() -> list[str]:
    found = devices.look("cuda")
    if found.missing:
        return [f"no GPU that a2a can use: {found.missing}"]
    double = ", a test double" if found.double else ""
    return [f"{library_of('nccl')}{double}; ranks share a GPU by {gpu_ranks.sharing()}"]


@pytest.fixture(scope="session", autouse=True)
def gpu() -> None:
    """Skips everything where there is none."""
    found = devices.look("cuda")
    if found.missing:
        pytest.skip(f"no GPU that a2a can use: {found.missing.partition(';')[0]}")


@pytest.fixture(scope="session")
def double(gpu: None) -> bool:
    """Whether this is a test double, which has no Torch."""
    return bool(devices.look("cuda").double)


@pytest.fixture(scope="session", params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest, double: bool) -> str:
    """The frameworks whose tensors lie on the GPU."""
    name = str(request.param)
    if name == "driver":
        return gpu_ranks.DRIVER
    if double:
        pytest.skip(f"{name} knows no doubles")
    if name not in frameworks.installed():
        pytest.skip(f"{name} is not installed")
    if not frameworks.load(name, "cuda").devices():
        pytest.skip(f"{name} sees no GPU")
    return name


@pytest.fixture(scope="session", params=[1, 2, 4])
def ranks(request: pytest.FixtureRequest, double: bool) -> Iterator[Pool]:
    """So many ranks that have met on the GPUs."""
    with pytest.MonkeyPatch.context() as patch, Pool(request.param) as pool:
        for name, value in gpu_ranks.sharing().items():
            patch.setenv(name, value)
        refused = pool.run(gpu_ranks.meet, gpu_ranks.DRIVER)
        if any(refused):
            pytest.skip(f"NCCL does not take {pool.n} ranks on these GPUs: {refused[0]}")
        yield pool


def pytest_configure() -> None:
    os.environ.setdefault("NCCL_DEBUG", "WARN")  # what NCCL has to say about a failure stands in the output
