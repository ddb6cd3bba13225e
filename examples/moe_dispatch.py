"""Tokens to experts and back, one call each way: a2a run -n 4 examples/moe_dispatch.py

Every rank has some tokens and some experts. Here expert e multiplies its tokens by e + 1.
"""

import numpy as np

import a2a
from a2a import moe

TOKENS, HIDDEN, EXPERTS_PER_RANK, TOP_K = 64, 512, 4, 2

with a2a.init() as comm:
    rng = np.random.default_rng(comm.rank)
    x = rng.standard_normal((TOKENS, HIDDEN), dtype=np.float32)
    experts = EXPERTS_PER_RANK * comm.size
    choice = np.stack([rng.choice(experts, TOP_K, replace=False) for _ in range(TOKENS)])
    weights = rng.dirichlet(np.ones(TOP_K), TOKENS).astype(np.float32)

    ep = moe.ExpertParallel(comm, experts)
    routed = ep.dispatch(x, choice, weights)
    rows = np.empty_like(routed.x)
    for expert, count in enumerate(routed.counts):
        group = slice(routed.offsets[expert], routed.offsets[expert] + count)
        rows[group] = routed.x[group] * np.float32(comm.rank * EXPERTS_PER_RANK + expert + 1)
    y = ep.combine(rows, routed)

    assert np.allclose(y, x * (weights * (choice + 1)).sum(axis=1, keepdims=True), rtol=1e-5)
    print(f"rank {comm.rank}: its experts worked on {routed.counts.tolist()} rows, {TOKENS} tokens combined")
