"""Mixture-of-experts dispatch and combine with one exchange each way: a2a run -n 4 examples/moe_dispatch.py

Every rank has some tokens and some experts. Rows go to the ranks of their experts, are worked on, and come back by the
transposed plan, which needs no second negotiation.
"""

import numpy as np

import a2a

TOKENS, HIDDEN, EXPERTS_PER_RANK, TOP_K = 64, 512, 4, 2

with a2a.init() as comm:
    rng = np.random.default_rng(comm.rank)
    tokens = rng.standard_normal((TOKENS, HIDDEN), dtype=np.float32)
    experts = np.arange(EXPERTS_PER_RANK * comm.size)
    choice = np.stack([rng.choice(experts, TOP_K, replace=False) for _ in range(TOKENS)])

    # Pack the copies of the tokens by expert, and so by rank.
    order = np.argsort(choice, axis=None, kind="stable")
    token, expert = order // TOP_K, choice.reshape(-1)[order]
    counts = np.bincount(expert // EXPERTS_PER_RANK, minlength=comm.size)
    packed = tokens[token]

    # Dispatch: exchange() finds out how much arrives. The experts' ids travel like the rows.
    ids, recv_counts = comm.exchange(expert, counts)
    plan = comm.plan_alltoallv(packed, counts, np.empty((len(ids), HIDDEN), np.float32), recv_counts)
    arrived = np.empty((len(ids), HIDDEN), np.float32)
    plan.run(packed, arrived)

    worked = arrived * (ids + 1)[:, None].astype(np.float32)  # expert e multiplies by e + 1

    # Combine: the same plan backwards, then the copies of a token are added up.
    back = np.empty_like(packed)
    plan.transpose().run(worked, back)
    combined = np.zeros_like(tokens)
    np.add.at(combined, token, back)

    assert np.allclose(combined, tokens * (choice + 1).sum(axis=1, keepdims=True), rtol=1e-5)
    print(f"rank {comm.rank}: sent {counts.tolist()} rows, worked on {len(ids)}, combined {TOKENS} tokens")
