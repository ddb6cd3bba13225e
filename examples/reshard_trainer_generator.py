"""A trainer hands its weights to a generator every 3 steps: a2a run -n 4 examples/reshard_trainer_generator.py

Ranks 0 and 1 train in Torch, each with half of the rows of each weight. Ranks 2 and 3 generate in NumPy, each with half
of the columns. The weights go straight from the ones to the others: each byte once, all of a model as one operation.
The generator goes on with the weights that it has until the next ones have come, and so does the trainer.
"""

from itertools import pairwise
from typing import Any

import numpy as np

import a2a
from a2a.sharding import Shard, Sharding

SHAPES = [(32, 48), (48, 48), (48, 16)]
STEPS, EVERY = 12, 3
TRAINER, GENERATOR = Sharding([0, 1], Shard(0)), Sharding([2, 3], Shard(1))


def train(comm: a2a.Communicator, plan: a2a.ReshardPlan) -> None:
    import torch

    torch.manual_seed(comm.rank)
    weights = [torch.randn(rows // 2, columns, requires_grad=True) for rows, columns in SHAPES]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    sent, work = [torch.empty_like(one, requires_grad=False) for one in weights], None
    for step in range(1, STEPS + 1):
        loss = torch.stack([(one**2).mean() for one in weights]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            if work is not None:
                work.wait()  # the generator has the last ones
            for copy, one in zip(sent, weights, strict=True):
                copy.copy_(one.detach())  # training goes on meanwhile
            work = plan.start(sent, [None] * len(SHAPES))
    if work is not None:
        work.wait()
    print(f"rank {comm.rank}: trained {STEPS} steps, loss {loss.item():.4f}, sent {sum(plan.bytes_to)} bytes each time")


def generate(comm: a2a.Communicator, plan: a2a.ReshardPlan) -> None:
    def parts() -> list[Any]:
        return [np.zeros((rows, columns // 2), np.float32) for rows, columns in SHAPES]

    now, coming = parts(), parts()
    norms = []
    for _ in range(STEPS // EVERY):
        work = plan.start([None] * len(SHAPES), coming)
        while not work.done():
            np.tanh(now[0])  # with the weights that there are
        now, coming = coming, now
        norms.append(float(sum((one**2).sum() for one in now)))
    assert all(later < earlier for earlier, later in pairwise(norms)), norms
    print(f"rank {comm.rank}: took {len(norms)} versions of the weights, norms {norms[0]:.1f} to {norms[-1]:.1f}")


def main() -> None:
    with a2a.init() as comm:
        if comm.size != 4:
            raise SystemExit("start 4 ranks: a2a run -n 4 examples/reshard_trainer_generator.py")
        plan = comm.plan_reshard_all([(shape, TRAINER, GENERATOR, "float32") for shape in SHAPES])
        (train if comm.rank < 2 else generate)(comm, plan)


if __name__ == "__main__":
    main()
