"""a2a.torch.moe with CUDA tensors: the permutations are torch's, the exchange is NCCL's."""

from __future__ import annotations

import pytest
from rank_pool import Pool

pytestmark = pytest.mark.timeout(150)


@pytest.mark.parametrize(("layout", "align"), [("expert", 1), ("expert", 8), ("rank", 1)])
def test_the_same_as_on_the_host(ranks: Pool, double: bool, layout: str, align: int) -> None:
    if double:
        pytest.skip("torch knows no doubles")
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} has no CUDA")
    import gpu_moe_ranks

    ranks.run(gpu_moe_ranks.experts, layout, align)
