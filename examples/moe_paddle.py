"""A mixture-of-experts layer in Paddle, trained on the CPU: a2a run -n 4 examples/moe_paddle.py

It follows the layer of paddle.incubate: a gate sends every token to its best experts, global_scatter takes the rows
there, global_gather brings them back, and the backward pass goes the same ways. Every rank also trains the dense layer,
which has all experts and sees the tokens of all ranks, and compares the two.
"""

import copy

import a2a.paddle as dist  # the only change to a program for GPUs
import paddle
from paddle import nn

FEATURES, HIDDEN, TOKENS, EXPERTS_PER_RANK, TOP_K, STEPS = 16, 32, 64, 2, 2, 20


def expert():
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, FEATURES))


class DenseLayer(nn.Layer):
    """All experts see all tokens; the gate's choice is a mask."""

    def __init__(self, gate, experts):
        super().__init__()
        self.gate, self.experts = gate, nn.LayerList(experts)

    def forward(self, x):
        value, choice = paddle.topk(nn.functional.softmax(self.gate(x)), TOP_K)
        weight = (nn.functional.one_hot(choice, len(self.experts)) * value.unsqueeze(-1)).sum(1)
        return sum(weight[:, e : e + 1] * expert(x) for e, expert in enumerate(self.experts))


class MoELayer(nn.Layer):
    """This rank's experts see the tokens that were routed to them from all ranks."""

    def __init__(self, gate, experts):
        super().__init__()
        self.gate, self.experts, self.ranks = gate, nn.LayerList(experts), dist.get_world_size()

    def forward(self, x):
        value, choice = paddle.topk(nn.functional.softmax(self.gate(x)), TOP_K)
        # The copies of the tokens in the order of their experts, which is also that of the ranks.
        order = paddle.argsort(choice.flatten(), stable=True)
        local_count = paddle.bincount(choice.flatten(), minlength=self.ranks * len(self.experts))
        global_count = paddle.empty_like(local_count)
        dist.alltoall_single(global_count, local_count)

        rows = paddle.index_select(x, order // TOP_K)
        rows = dist.utils.global_scatter(rows, local_count, global_count)
        per_expert = global_count.reshape([self.ranks, -1]).sum(0).tolist()
        parts = paddle.split(rows, per_expert)
        rows = paddle.concat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        rows = dist.utils.global_gather(rows, local_count, global_count)

        back = paddle.index_select(rows, paddle.argsort(order)).reshape([-1, TOP_K, FEATURES])
        return (back * value.unsqueeze(-1)).sum(1)


def main():
    dist.init_parallel_env()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    paddle.seed(0)  # the same everywhere
    gate = nn.Linear(FEATURES, ranks * EXPERTS_PER_RANK)
    experts = [expert() for _ in range(ranks * EXPERTS_PER_RANK)]
    mine = slice(rank * EXPERTS_PER_RANK, (rank + 1) * EXPERTS_PER_RANK)
    layer, dense = MoELayer(copy.deepcopy(gate), copy.deepcopy(experts[mine])), DenseLayer(gate, experts)
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
                dist.all_reduce(tensor)  # Paddle's own, passed through
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
