"""Tensors of random strides in every operation, against the oracle: dimensions in any order, steps, and gaps at either
end. What lies between their elements stays as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rank_pool import Pool
from sample import examples
from test_torch_operations import array, check, end, values
from torch_worlds import WAYS, calls, group

import a2a
from a2a import testing

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)


class Strided:
    """Makes tensors of random strides."""

    def __init__(self, seed: int) -> None:
        self.rng, self.made = np.random.default_rng(seed), list[tuple[Any, Any, Any]]()

    def of(self, tensor: Any) -> Any:
        """A copy."""
        dims = tensor.dim()
        order = [int(at) for at in self.rng.permutation(dims)]
        steps, before, after = (self.rng.integers(least, least + 3, dims).tolist() for least in (1, 0, 0))
        ends = [before[at] + tensor.shape[at] * steps[at] for at in range(dims)]
        whole = torch.full([ends[at] + after[at] for at in order], 3).to(tensor.dtype)
        view = whole[tuple(slice(before[at], ends[at], steps[at]) for at in order)]
        view = view.permute([order.index(at) for at in range(dims)])
        view.copy_(tensor)
        self.made.append((whole, view, whole.clone()))
        return view

    def check(self) -> None:
        for whole, view, before in self.made:
            view.copy_(before.as_strided(view.shape, view.stride(), view.storage_offset()))
            check(whole, array(before), "between the elements")


def cases(comm: a2a.Communicator, dist: Any, size: int, root: int, dtype: str, shape: list[int], of: Any) -> Any:
    """By name: the call, and each tensor that it writes with what is expected in it."""
    rank, at_root = comm.rank, comm.rank == root
    inputs = [values(peer, dtype, (size * shape[0], *shape[1:])) for peer in range(size)]
    parts = [one.tensor_split(size) for one in inputs]
    arrays = [array(one) for one in inputs]
    folded = testing.fold(arrays)
    folded_part = np.split(folded, size)[rank]
    exchanged = testing.alltoall(arrays)[rank]
    input, mine = of(inputs[rank]), [of(one) for one in parts[rank]]
    summed, reduced, spread = (of(inputs[rank]) for _ in range(3))
    output, received = (of(torch.zeros_like(inputs[0])) for _ in range(2))
    stacked = of(torch.zeros_like(torch.cat(inputs)))
    scattered, of_list, of_tensor = (of(torch.zeros_like(parts[0][0])) for _ in range(3))
    outputs = [of(torch.zeros_like(parts[0][0])) for _ in range(size)]
    gathered, everyones = ([of(torch.zeros_like(inputs[0])) for _ in range(size)] for _ in range(2))

    def ring(group: Any, async_op: bool) -> Any:
        work = dist.isend(input, group_dst=(rank + 1) % size, group=group, tag=5)
        dist.recv(received, group_src=(rank - 1) % size, group=group, tag=5)
        work.wait()
        return dist.barrier(group=group, async_op=async_op)

    yield "all_reduce", lambda **o: dist.all_reduce(summed, **o), [(summed, folded)]
    yield (
        "reduce",
        lambda **o: dist.reduce(reduced, group_dst=root, **o),
        [(reduced, folded if at_root else arrays[rank])],
    )
    yield "reduce_scatter", lambda **o: dist.reduce_scatter(of_list, mine, **o), [(of_list, folded_part)]
    yield (
        "reduce_scatter_tensor",
        lambda **o: dist.reduce_scatter_tensor(of_tensor, input, **o),
        [(of_tensor, folded_part)],
    )
    yield "broadcast", lambda **o: dist.broadcast(spread, group_src=root, **o), [(spread, arrays[root])]
    yield (
        "gather",
        lambda **o: dist.gather(input, gathered if at_root else None, group_dst=root, **o),
        list(zip(gathered, arrays, strict=True)) if at_root else [],
    )
    yield (
        "scatter",
        lambda **o: dist.scatter(scattered, mine if at_root else None, group_src=root, **o),
        [(scattered, array(parts[root][rank]))],
    )
    yield (
        "all_gather",
        lambda **o: dist.all_gather(everyones, input, **o),
        list(zip(everyones, arrays, strict=True)),
    )
    yield (
        "all_gather_into_tensor",
        lambda **o: dist.all_gather_into_tensor(stacked, input, **o),
        [(stacked, np.concatenate(arrays))],
    )
    yield (
        "all_to_all",
        lambda **o: dist.all_to_all(outputs, mine, **o),
        list(zip(outputs, np.split(exchanged, size), strict=True)),
    )
    yield "all_to_all_single", lambda **o: dist.all_to_all_single(output, input, **o), [(output, exchanged)]
    if size > 1:
        yield "send and recv", ring, [(received, arrays[rank - 1])]


def every_operation(comm: a2a.Communicator, way: str, size: int, dtype: str, shape: list[int], seed: int) -> None:
    at, dist = group(comm, way, size), calls(way)
    if comm.rank >= size:
        return
    strided, async_op = Strided(8 * seed + comm.rank), bool(seed % 2)
    for name, call, written in cases(comm, dist, size, seed % size, dtype, shape, strided.of):
        end(call(group=at, async_op=async_op), async_op)
        for tensor, expected in written:
            check(tensor, expected, name, shape)
    strided.check()


@pytest.mark.parametrize("way", WAYS)
@given(
    size=st.sampled_from([1, 2, 3, 5]),
    dtype=st.sampled_from(["float32", "int8", "bfloat16", "complex128"]),
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 20),
)
@settings(
    max_examples=examples(15), deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
def test_random_strides(ranks: Pool, way: str, size: int, dtype: str, shape: list[int], seed: int) -> None:
    ranks.run(every_operation, way, size, dtype, shape, seed)
