"""a2a.torch with CUDA tensors against torch.distributed on NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_pool import Pool

pytestmark = pytest.mark.timeout(150)


@pytest.fixture(scope="module")
def pool(ranks: Pool, double: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    if double:
        pytest.skip("torch knows no doubles")
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
        pytest.skip(f"torch {torch.__version__} has no CUDA, or no NCCL")
    import torch_ranks

    store = Path(tmp_path_factory.mktemp("store")) / f"store-{ranks.n}"
    refused = ranks.run(torch_ranks.start, str(store))
    if any(refused):
        pytest.skip(f"torch's NCCL does not take {ranks.n} ranks here: {refused[0]}")
    yield ranks
    ranks.run(torch_ranks.stop)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8"])
def test_the_same_as_torch(pool: Pool, dtype: str, async_op: bool) -> None:
    import torch_ranks

    pool.run(torch_ranks.same, dtype, async_op)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_same_gradients_as_torch(pool: Pool, compiled: bool) -> None:
    import torch_ranks

    pool.run(torch_ranks.gradients, compiled)


def test_the_backend(pool: Pool) -> None:
    import torch_ranks

    pool.run(torch_ranks.backend)
