"""A mixture-of-experts layer in Paddle, trained on the CPU: a2a run -n 4 examples/moe_paddle.py

A gate sends every token to its best experts, on whichever ranks they are. What they make of it comes back as a weighted
sum, and the backward pass goes the same ways. Every rank also trains the dense layer, which has all experts and sees
the tokens of all ranks, and compares the two.
"""

import copy

import a2a.paddle as dist  # the only change to a program for GPUs
import paddle
from paddle import nn

FEATURES, HIDDEN, TOKENS, EXPERTS_PER_RANK, TOP_K, STEPS = 16, 32, 64, 2, 2, 20


def expert():
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, FEATURES))


class Gate(nn.Layer):
    """Weights and experts of each token."""

    def __init__(self, experts):
        super().__init__()
        self.scores = nn.Linear(FEATURES, experts)

    def forward(self, x):
        return paddle.topk(nn.functional.softmax(self.scores(x)), TOP_K)


class DenseLayer(nn.Layer):
    """All experts see all tokens; the gate's choice is a mask."""

    def __init__(self, gate, experts):
        super().__init__()
        self.gate, self.experts = gate, nn.LayerList(experts)

    def forward(self, x):
        value, choice = self.gate(x)
        weight = (nn.functional.one_hot(choice, len(self.experts)) * value.unsqueeze(-1)).sum(1)
        return sum(weight[:, e : e + 1] * expert(x) for e, expert in enumerate(self.experts))


def main():
    dist.init_parallel_env()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    paddle.seed(0)  # the same everywhere
    gate = Gate(ranks * EXPERTS_PER_RANK)
    experts = [expert() for _ in range(ranks * EXPERTS_PER_RANK)]
    mine = slice(rank * EXPERTS_PER_RANK, (rank + 1) * EXPERTS_PER_RANK)
    layer = dist.moe.MoELayer(copy.deepcopy(gate), copy.deepcopy(experts[mine]))  # this rank's experts
    dense = DenseLayer(gate, experts)
    optimizers = [paddle.optimizer.AdamW(0.01, parameters=model.parameters()) for model in (layer, dense)]

    tokens = paddle.randn([ranks, TOKENS, FEATURES])
    wanted = paddle.tanh(tokens @ paddle.randn([FEATURES, FEATURES]))
    for step in range(STEPS):
        # Each rank has its share of the loss, so that the sum of all is that of the dense layer.
        loss = nn.functional.mse_loss(layer(tokens[rank]), wanted[rank]) / ranks
        loss.backward()
        total = loss.detach().clone()
        if ranks > 1:
            for tensor in (total, *(parameter.grad for parameter in layer.gate.parameters())):
                dist.all_reduce(tensor)
        dense_loss = nn.functional.mse_loss(dense(tokens.reshape([-1, FEATURES])), wanted.reshape([-1, FEATURES]))
        dense_loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.clear_grad()
        assert abs(float(total) - float(dense_loss)) < 1e-4 * float(dense_loss)
        if step == 0:
            first = float(total)

    theirs = [*dense.gate.parameters(), *dense.experts[mine].parameters()]
    for mine_now, theirs_now in zip(layer.parameters(), theirs, strict=True):
        assert paddle.allclose(mine_now, theirs_now, rtol=1e-3, atol=1e-4)
    print(f"rank {rank}: loss {first:.4f} -> {float(total):.4f} in {STEPS} steps, as of the dense layer")


main()
