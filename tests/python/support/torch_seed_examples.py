"""The examples that torch's own documentation gives, as one program for any launcher with four ranks. Each rank prints
what it received, and ends by an exception if it is not what the documentation prints."""

from __future__ import annotations

import sys

import a2a.torch as dist
import torch

import a2a

if sys.argv[1:]:  # a backend: without one the ranks of the launcher are used as they are
    dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
assert size == 4 and dist.is_initialized()


def show(name: str, received: object, expected: list[str]) -> None:
    print(f"{name}: {received}")
    assert str(received) == expected[rank], f"rank {rank}: {received}, not {expected[rank]}"


# Equal parts.
inputs = list((torch.arange(4) + rank * 4).chunk(4))
outputs = list(torch.empty([4], dtype=torch.int64).chunk(4))
assert dist.all_to_all(outputs, inputs) is None
equal = [
    "[tensor([0]), tensor([4]), tensor([8]), tensor([12])]",
    "[tensor([1]), tensor([5]), tensor([9]), tensor([13])]",
    "[tensor([2]), tensor([6]), tensor([10]), tensor([14])]",
    "[tensor([3]), tensor([7]), tensor([11]), tensor([15])]",
]
show("equal parts", outputs, equal)

# Essentially, it is similar to scatters.
gathered = list(torch.empty([4], dtype=torch.int64).chunk(4))
if torch.distributed.is_initialized():
    for i in range(size):
        dist.scatter(gathered[i], inputs if i == rank else [], src=i)
    show("scatters", gathered, equal)

# Uneven parts.
given = [
    torch.tensor([0, 1, 2, 3, 4, 5]),
    torch.tensor([10, 11, 12, 13, 14, 15, 16, 17, 18]),
    torch.tensor([20, 21, 22, 23, 24]),
    torch.tensor([30, 31, 32, 33, 34, 35, 36]),
][rank]
input_splits = [[2, 2, 1, 1], [3, 2, 2, 2], [2, 1, 1, 1], [2, 2, 2, 1]][rank]
output_splits = [[2, 3, 2, 2], [2, 2, 1, 2], [1, 2, 1, 2], [1, 2, 1, 1]][rank]
inputs = list(given.split(input_splits))
outputs = [torch.empty(rows, dtype=torch.int64) for rows in output_splits]
dist.all_to_all(outputs, inputs)
show(
    "uneven parts",
    outputs,
    [
        "[tensor([0, 1]), tensor([10, 11, 12]), tensor([20, 21]), tensor([30, 31])]",
        "[tensor([2, 3]), tensor([13, 14]), tensor([22]), tensor([32, 33])]",
        "[tensor([4]), tensor([15, 16]), tensor([23]), tensor([34, 35])]",
        "[tensor([5]), tensor([17, 18]), tensor([24]), tensor([36])]",
    ],
)
output = torch.empty(sum(output_splits), dtype=torch.int64)
dist.all_to_all_single(output, given, output_splits, input_splits)
assert torch.equal(output, torch.cat(outputs))

# Complex numbers. The documentation allocates integers for them, which every rank is told.
numbers = torch.tensor([1 + 1j, 2 + 2j, 3 + 3j, 4 + 4j], dtype=torch.cfloat) + 4 * rank * (1 + 1j)
inputs = list(numbers.chunk(4))
try:
    dist.all_to_all(list(torch.empty([4], dtype=torch.int64).chunk(4)), inputs)
except a2a.InvalidArgumentError as error:
    assert isinstance(error, ValueError) and "is complex64, but output_tensor_list[0] is int64" in str(error), error
outputs = list(torch.empty([4], dtype=torch.cfloat).chunk(4))
dist.all_to_all(outputs, inputs)
show(
    "complex numbers",
    outputs,
    [str([torch.tensor([(k + 1) * (1 + 1j)]) for k in range(at, 16, 4)]) for at in range(4)],
)

# all_gather_into_tensor of another page: stacked.
local = torch.tensor([rank] * 2, dtype=torch.float32)
output = torch.empty((size, 2), dtype=torch.float32)
dist.all_gather_into_tensor(output, local)
gathered = "tensor([[0., 0.],\n        [1., 1.],\n        [2., 2.],\n        [3., 3.]])"
show("all_gather_into_tensor", output, [gathered] * 4)

# A group of some ranks; the others get None for every call.
group = dist.new_group([1, 3])
output = torch.full((2,), -1)
result = dist.all_to_all_single(output, torch.tensor([10, 11]) + rank, group=group)
assert result is None and dist.get_rank(group) == {1: 0, 3: 1}.get(rank, -1)
assert output.tolist() == {1: [11, 13], 3: [12, 14]}.get(rank, [-1, -1])

dist.barrier()
dist.destroy_process_group()
assert not dist.is_initialized()
print("done")
