"""Training that loses ranks and goes on: ``a2a run -n 4 --restarts 8 examples/elastic_training.py``.

A rank that dies is started again. It gets the state from a survivor, and all go on at the same step: the weights in the
end are those of a run that nothing disturbs."""

import os
import random

import torch

import a2a

STEPS, CHANCE = 200, 0.0 if os.environ.get("UNDISTURBED") else 0.004
comm = a2a.init(elastic=True)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
state = [*model.parameters(), step := torch.zeros(1, dtype=torch.int64)]
while step < STEPS:
    try:
        if comm.joined:  # all take the state of the lowest rank that is not new: a survivor may be a step behind
            survivor = min(set(range(comm.size)) - set(comm.joined))
            for tensor in state:
                comm.broadcast(tensor.detach(), root=survivor)
        while step < STEPS:
            if random.random() < CHANCE and int(os.environ.get("A2A_RESTART", 0)) < 2:
                os._exit(1)  # dies
            rows = torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * int(step) + comm.rank))
            loss = (model(rows) - rows.sum(1, keepdim=True)).square().mean()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            for gradient in gradients:
                comm.allreduce(gradient, op="avg")
            with torch.no_grad():
                for weight, gradient in zip(model.parameters(), gradients, strict=True):
                    weight -= 0.002 * gradient
            step += 1
    except (a2a.PeerLostError, a2a.AbortedError):
        comm = comm.recover()
print("weights " + " ".join(f"{weight:.9f}" for weight in model.weight.flatten().tolist()), flush=True)
comm.close()
