"""DeepSpeed-Ulysses attention on a sequence that the ranks share: a2a run -n 4 examples/ulysses_attention.py

Every rank has a part of the sequence, with all heads. For attention it needs the whole sequence, of some heads: one
exchange along axes brings that, and one takes the results back. Neither the heads nor the sequence need be divisible by
the number of ranks, and nothing is permuted or copied for an exchange. At the end each rank computes the same layer in
one process and compares results and gradients. It also runs under torchrun.
"""

import a2a.torch as dist
import torch
from a2a.torch.nn import all_to_all_axis
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

BATCH, SEQUENCE, HEADS, DIM = 2, 50, 7, 8
FEATURES = HEADS * DIM


def shares(entries: int, ranks: int) -> list[int]:
    """As equal as can be."""
    return [entries // ranks + (rank < entries % ranks) for rank in range(ranks)]


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into = torch.nn.Parameter(torch.randn(3, HEADS, FEATURES, DIM) / FEATURES**0.5)
        self.out = torch.nn.Parameter(torch.randn(HEADS, DIM, FEATURES) / FEATURES**0.5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = torch.einsum("bsf,chfd->cbhsd", x, self.into)
        return torch.einsum("bhsd,hdf->bsf", self.attend(q, k, v), self.out)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Of (batch, heads, sequence, dim)."""
        return scaled_dot_product_attention(q, k, v, is_causal=True)


class UlyssesAttention(Attention):
    """The same of this rank's part of the sequence."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ranks = dist.get_world_size()
        heads, rows = shares(HEADS, ranks), shares(SEQUENCE, ranks)
        q, k, v = (all_to_all_axis(x, 1, 2, split_sizes=heads, concat_sizes=rows) for x in (q, k, v))
        return all_to_all_axis(super().attend(q, k, v), 2, 1, split_sizes=rows, concat_sizes=heads)


def main() -> None:
    torch.set_default_dtype(torch.float64)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    whole, target = torch.randn(2, BATCH, SEQUENCE, FEATURES)  # the same on every rank, for the comparison
    rows = shares(SEQUENCE, ranks)
    mine = [one.split(rows, 1)[rank] for one in (whole, target)]

    spread, dense = UlyssesAttention(), Attention()
    result = spread(mine[0])
    (result - mine[1]).square().sum().backward()
    expected = dense(whole)
    (expected - target).square().sum().backward()

    differences = [(result - expected.split(rows, 1)[rank]).abs().max().detach()]
    for ours, theirs in zip(spread.parameters(), dense.parameters(), strict=True):
        dist.all_reduce(ours.grad)  # each rank has what its part of the sequence adds
        differences.append((ours.grad - theirs.grad).abs().max() / theirs.grad.abs().max())
    worst = torch.stack(differences).max()
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    assert worst < 1e-12, f"rank {rank}: results or gradients differ by {worst:.1e}"
    if rank == 0:
        print(
            f"{ranks} ranks with {shares(HEADS, ranks)} heads and {rows} rows: results and gradients as in one "
            f"process, largest difference {worst:.1e}"
        )


if __name__ == "__main__":
    main()
