"""An expert-parallel layer, trained for a few steps: a2a run -n 4 examples/torch_expert_parallel.py

Every rank has its own tokens and some of the experts. A router sends each token to its best two experts; rows travel to
the experts' ranks and back by a differentiable exchange, so that gradients find their way to the experts, to the tokens
and to the router. At the end each rank trains the same layer with all experts and all tokens in one process, and
compares losses and weights. It also runs under torchrun.
"""

import a2a.torch as dist
import torch
from a2a.torch import nn as dnn
from torch import Tensor, nn

TOKENS, HIDDEN, EXPERTS_PER_RANK, TOP_K, STEPS, RATE = 64, 16, 2, 2, 5, 20.0


class Layer(nn.Module):
    """Router and experts; ``held`` are the numbers of the experts that live in this process."""

    def __init__(self, experts: int, held: range) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(HIDDEN, experts, bias=False)
        everyone = [nn.Sequential(nn.Linear(HIDDEN, 32), nn.GELU(), nn.Linear(32, HIDDEN)) for _ in range(experts)]
        self.held = held
        self.experts = nn.ModuleList(everyone[held.start : held.stop])

    def forward(self, tokens: Tensor) -> Tensor:
        weights, chosen = self.router(tokens).softmax(-1).topk(TOP_K)
        # One row for each token and choice, packed by expert and so by rank.
        order = chosen.flatten().argsort(stable=True)
        rows = self.through_experts(tokens[order // TOP_K], chosen.flatten()[order])
        weighted = rows * weights.flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, order // TOP_K, weighted)

    def through_experts(self, rows: Tensor, ids: Tensor) -> Tensor:
        """What each row's expert makes of it."""
        results = torch.zeros_like(rows)
        for number, expert in zip(self.held, self.experts, strict=True):
            at = (ids == number).nonzero().flatten()
            results = results.index_add(0, at, expert(rows[at]))
        return results


class ExpertParallelLayer(Layer):
    """The same with the experts spread over all ranks."""

    def through_experts(self, rows: Tensor, ids: Tensor) -> Tensor:
        to = torch.bincount(ids // EXPERTS_PER_RANK, minlength=dist.get_world_size())
        from_ = torch.empty_like(to)
        dist.all_to_all_single(from_, to)
        splits = from_.tolist(), to.tolist()

        arrived_ids = ids.new_empty(sum(splits[0]))
        dist.all_to_all_single(arrived_ids, ids, *splits)
        arrived = dnn.all_to_all_single(rows.new_empty(len(arrived_ids), HIDDEN), rows, *splits)  # dispatch
        worked = super().through_experts(arrived, arrived_ids)
        return dnn.all_to_all_single(torch.empty_like(rows), worked, *reversed(splits))  # combine


def loss_of(layer: Layer, tokens: Tensor, targets: Tensor, everyones: int) -> Tensor:
    """This process's share of the mean over all ranks' tokens."""
    return (layer(tokens) - targets).square().sum() / everyones


def step(layer: Layer) -> None:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter -= RATE * parameter.grad
            parameter.grad = None


def main() -> None:
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("a2a")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    tokens, targets = torch.randn(2, size, TOKENS, HIDDEN)  # of all ranks, for the comparison
    everyones, experts = tokens.numel(), size * EXPERTS_PER_RANK
    spread = ExpertParallelLayer(experts, range(rank * EXPERTS_PER_RANK, (rank + 1) * EXPERTS_PER_RANK))
    dense = Layer(experts, range(experts))

    for number in range(STEPS):
        loss = loss_of(spread, tokens[rank], targets[rank], everyones)
        loss.backward()
        dist.all_reduce(spread.router.weight.grad)  # every rank has a copy of the router
        step(spread)
        loss = loss.detach()
        dist.all_reduce(loss)

        expected = loss_of(dense, tokens.flatten(0, 1), targets.flatten(0, 1), everyones)
        expected.backward()
        step(dense)
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
        if rank == 0:
            print(f"step {number}: loss {loss:.6f}, dense {expected:.6f}")

    torch.testing.assert_close(spread.router.weight, dense.router.weight, rtol=1e-10, atol=1e-12)
    for number, expert in zip(spread.held, spread.experts, strict=True):
        for ours, theirs in zip(expert.parameters(), dense.experts[number].parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    print(f"rank {rank}: experts {list(spread.held)} and the router are those of the dense layer")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
