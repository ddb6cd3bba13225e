"""What ranks do in test_atb_nccl.py."""

from __future__ import annotations

import atb_ranks
import gpu_ranks
import numpy as np

import a2a
from a2a import atb, testing


def exchange(comm: a2a.Communicator, name: str, dtype: str) -> None:
    """One random AllToAllV, as the tests on the host have it, against the oracle."""
    framework, n, rank = gpu_ranks.place(comm, name), comm.size, comm.rank
    recipe = atb_ranks.Recipe(7, dtype)
    case = recipe.case(n)
    parameters = atb_ranks.parameters(case, rank) | atb_ranks.group(comm, threads=False)
    operation = atb.AllToAllVOperation(atb.AllToAllVParam(**parameters | {"backend": "nccl"}), timeout=40)
    sent, wanted = recipe.array(rank, case.send_rows[rank]), atb_ranks.expected(recipe, n)[rank]
    x = framework.tensor(framework.make(sent.view(np.uint8)), 0, dtype, sent.shape)
    for _ in range(3):
        (out,) = operation.forward([x])
        assert tuple(out.shape) == (1, wanted.size)
        assert testing.first_difference(framework.read(out), wanted.tobytes()) is None
