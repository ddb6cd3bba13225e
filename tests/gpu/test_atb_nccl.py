"""ATB's AllToAllV with tensors on a GPU."""

from __future__ import annotations

import atb_nccl_ranks
import pytest
from gpu_ranks import DRIVER
from rank_pool import Pool

pytestmark = pytest.mark.timeout(150)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_all_to_all_v(ranks: Pool, framework: str, dtype: str) -> None:
    if framework == DRIVER:
        pytest.skip("the operation allocates its output, which the tests' own framework has no way to do")
    ranks.run(atb_nccl_ranks.exchange, framework, dtype)
