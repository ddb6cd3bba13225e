"""The backend "a2a" under what programs build on torch.distributed: the answers of Gloo, up to the order in which
reductions add."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rank_pool import Pool
from torch_worlds import group, true_backends

import a2a

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)

SIZE = 4
STEPS = 5


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def train(net: Any, rank: int) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        torch.manual_seed(100 * step + rank)
        loss = net(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def distributed_data_parallel(at: Any, rank: int) -> list[float]:
    return train(torch.nn.parallel.DistributedDataParallel(model(), process_group=at), rank)


def sparse_embeddings(at: Any, rank: int) -> list[float]:
    """Their gradients are sparse, and so is the all-reduce of DDP."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.EmbeddingBag(20, 8, sparse=True), torch.nn.Linear(8, 4))
    net = torch.nn.parallel.DistributedDataParallel(net, process_group=at)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        chance = np.random.default_rng(100 * step + rank)
        loss = net(torch.from_numpy(chance.integers(0, 20, (4, 3)))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def tensor_parallel(at: Any, rank: int) -> list[Any]:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    mesh, net = DeviceMesh.from_group(at, "cpu"), model()
    net.append(torch.nn.LayerNorm(4))
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel(), "3": SequenceParallel()})
    torch.manual_seed(1)
    result = net(torch.randn(2, SIZE, 8))
    result.full_tensor().square().sum().backward()
    return [result.full_tensor().tolist(), *(one.grad.full_tensor().tolist() for one in net.parameters())]


def fully_sharded(at: Any, rank: int) -> list[float]:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh, net = DeviceMesh.from_group(at, "cpu"), model()
    for layer in net:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    return train(fully_shard(net, mesh=mesh), rank)


def sharded_tensors(at: Any, rank: int) -> list[Any]:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = DeviceMesh.from_group(at, "cpu")
    full = torch.arange(float(SIZE * SIZE * 6)).reshape(2 * SIZE, 3 * SIZE)
    rows = distribute_tensor(full, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    product = rows @ columns.t()
    uneven = distribute_tensor(torch.arange(5.0 * 7).reshape(5, 1, 7), mesh, [Shard(0)]).redistribute(mesh, [Shard(2)])
    return [columns.to_local().tolist(), columns.redistribute(mesh, [Replicate()]).to_local().tolist(),
            product.full_tensor().tolist(), uneven.to_local().tolist(),
            uneven.redistribute(mesh, [Shard(0)]).to_local().tolist()]  # fmt: skip


def functional(at: Any, rank: int) -> list[Any]:
    import torch.distributed._functional_collectives as fun

    chance = np.random.default_rng(7)
    results: list[Any] = []
    for _ in range(10):
        matrix = chance.integers(0, 5, (SIZE, SIZE))
        given = torch.arange(float(matrix[rank].sum())) + 1000 * rank
        received = fun.all_to_all_single(given, matrix[:, rank].tolist(), matrix[rank].tolist(), at)
        results.append(fun.wait_tensor(received).tolist())
    given = torch.arange(4.0 * SIZE) + rank
    results.append((fun.all_to_all_single(given, None, None, at) + 0).tolist())
    results.append((fun.all_gather_tensor(given, 0, at) + 0).tolist())
    results.append((fun.reduce_scatter_tensor(given, "sum", 0, at) + 0).tolist())
    results.append((fun.all_reduce(given, "sum", at) + 0).tolist())
    results.append((fun.broadcast(given, 0, at) + 0).tolist())
    tensors = fun.all_gather_into_tensor_coalesced([given, given[:2].clone()], at)
    results.append([(tensor + 0).tolist() for tensor in tensors])
    weights = torch.arange(2.0 * SIZE, requires_grad=True)
    (fun.all_to_all_single_autograd(weights, None, None, at) * (rank + 1)).sum().backward()
    results.append(weights.grad.tolist())
    return results


def compiled(at: Any, rank: int) -> list[Any]:
    import torch.distributed as dist

    @torch.compile(backend="aot_eager", fullgraph=True)
    def both(given: Any) -> Any:
        import torch.distributed._functional_collectives as fun

        received = fun.all_to_all_single(given, None, None, at)
        output = torch.empty_like(given)
        dist.all_to_all_single(output, received * 2, group=at)
        return output

    return [both(torch.arange(2.0 * SIZE) + 10 * rank).tolist()]


def others(at: Any, rank: int) -> list[Any]:
    import torch.distributed as dist

    x = torch.arange(2.0 * SIZE) + rank
    results: list[Any] = []

    def keep(tensor: Any, *_: Any) -> None:
        results.append(tensor.tolist())

    for operation in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG):
        keep(y := x.clone(), dist.all_reduce(y, operation, group=at))
    keep(y := x.clone(), dist.all_reduce(y, group=at, async_op=True).wait())
    with dist._coalescing_manager(group=at):
        for y in (pair := [x.clone(), x.clone() + 1]):
            dist.all_reduce(y, group=at)
    keep(pair[0])
    keep(pair[1])
    keep(y := x.clone(), dist.broadcast(y, group=at, group_src=1))
    dist.reduce(y := x.clone(), group=at, group_dst=0)
    keep(y if rank == 0 else x)  # on Gloo the others' tensors become anything
    parts = [torch.empty(2) for _ in range(SIZE)]
    dist.gather(x[:2].clone(), parts if rank == 0 else None, group=at, group_dst=0)
    results.append([part.tolist() for part in parts] if rank == 0 else None)
    keep(y := torch.empty(2), dist.scatter(y, parts if rank == 0 else None, group=at, group_src=0))
    keep(y := torch.empty(2), dist.reduce_scatter(y, list(x.clone().chunk(SIZE)), group=at))
    keep(y := torch.empty(2), dist.reduce_scatter_tensor(y, x, group=at))
    objects: list[Any] = [None] * SIZE
    dist.all_gather_object(objects, {"rank": rank}, group=at)
    results.append(objects)
    objects = [None] * SIZE
    dist.gather_object(rank, objects if rank == 0 else None, group=at, group_dst=0)
    results.append(objects)
    objects = [None]
    dist.scatter_object_list(objects, ["a", "b", "c", "d"] if rank == 0 else None, group=at, group_src=0)
    results.append(objects)
    objects = [rank]
    dist.broadcast_object_list(objects, group=at, group_src=2)
    results.append(objects)
    dist.barrier(group=at)
    dist.barrier(group=at, async_op=True).wait()
    return results


def point_to_point(at: Any, rank: int) -> list[Any]:
    import torch.distributed as dist

    x = torch.arange(2.0 * SIZE) + rank
    results: list[Any] = []

    def keep(tensor: Any, *_: Any) -> None:
        results.append(tensor.tolist())

    if rank == 0:
        dist.send(x, group=at, group_dst=1)
    elif rank == 1:
        keep(y := torch.empty_like(x), dist.recv(y, group=at, group_src=0))
    operations = [
        dist.P2POp(dist.isend, x, group=at, group_peer=(rank + 1) % SIZE),
        dist.P2POp(dist.irecv, y := torch.empty_like(x), group=at, group_peer=(rank - 1) % SIZE),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    keep(y)
    objects = [rank, "text"]
    if rank == 2:
        dist.send_object_list(objects, group=at, group_dst=3)
    elif rank == 3:
        results.append(dist.recv_object_list(objects, group=at, group_src=2))
        results.append(objects)
    return results


def differentiable(at: Any, rank: int) -> list[Any]:
    """torch.distributed.nn, whose all_to_all Gloo does with scatters."""
    import torch.distributed.nn as dnn

    x = torch.arange(2.0 * SIZE, requires_grad=True)
    y = dnn.functional.all_to_all_single(torch.empty(2 * SIZE), x * (rank + 1), group=at)
    z = torch.stack(dnn.functional.all_gather(y, group=at)).sum() + dnn.functional.all_reduce(y, group=at).sum()
    z.backward()
    return [y.tolist(), x.grad.tolist()]


PROGRAMS: dict[str, Callable[[Any, int], list[Any]]] = {
    program.__name__: program
    for program in (distributed_data_parallel, sparse_embeddings, tensor_parallel, fully_sharded, sharded_tensors,
                    functional, compiled, others, point_to_point, differentiable)
}  # fmt: skip


def alike(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(alike, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-4, abs_tol=1e-6)
    return bool(ours == theirs)


def both_ways(comm: a2a.Communicator, name: str) -> list[Any] | None:
    groups = [group(comm, way, SIZE) for way in ("backend", "gloo")]
    if comm.rank >= SIZE:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [PROGRAMS[name](at, comm.rank) for at in groups]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_as_on_gloo(ranks: Pool, name: str) -> None:
    for rank, (ours, theirs) in enumerate(ranks.run(both_ways, name)[:SIZE]):
        assert len(ours) >= 1
        assert alike(ours, theirs), f"rank {rank}: {ours} instead of {theirs}"


def describe(comm: a2a.Communicator) -> dict[str, Any] | None:
    import torch.distributed as dist

    at = group(comm, "backend", SIZE)
    if comm.rank >= SIZE:
        return None
    return {
        "backend": dist.get_backend(at), "rank": dist.get_rank(at), "size": dist.get_world_size(at), "name": at.name(),
        "ranks": dist.get_process_group_ranks(at), "found": dist.distributed_c10d._resolve_process_group(at.group_name)
        is at,
    }  # fmt: skip


def test_torch_knows_the_group(ranks: Pool) -> None:
    for rank, facts in enumerate(ranks.run(describe)[:SIZE]):
        name = "custom" if true_backends() else "a2a"
        assert facts == {
            "backend": "a2a", "rank": rank, "size": SIZE, "name": name, "ranks": list(range(SIZE)), "found": True
        }  # fmt: skip


def many_short_lived_tensors(comm: a2a.Communicator) -> int:
    """Gloo's threads let go of tensors while this thread is in the next call: neither may wait for the other."""
    import torch.distributed as dist

    at = group(comm, "backend", 2)
    if comm.rank >= 2:
        return 0
    for turn in range(500):
        tensor = torch.full((4,), float(turn))
        dist.all_reduce(tensor, group=at)
        assert tensor.tolist() == [2.0 * turn] * 4
        del tensor
        dist.broadcast(torch.ones(2), group=at, group_src=0)
        dist.all_to_all_single(torch.ones(2), torch.ones(2), group=at)
    return 500


def change_shard_dimension(comm: a2a.Communicator) -> dict[str, int] | None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    at = group(comm, "backend", SIZE)
    if comm.rank >= SIZE:
        return None
    mesh = DeviceMesh.from_group(at, "cpu")
    rows = distribute_tensor(torch.arange(float(4 * SIZE * SIZE)).reshape(2 * SIZE, 2 * SIZE), mesh, [Shard(0)])
    with CommDebugMode() as seen:
        columns = rows.redistribute(mesh, [Shard(1)])
    assert torch.equal(columns.full_tensor(), rows.full_tensor())
    return {str(operation): count for operation, count in seen.get_comm_counts().items()}


def test_a_change_of_the_shard_dimension_is_one_all_to_all(ranks: Pool) -> None:
    assert ranks.run(change_shard_dimension)[:SIZE] == [{"_dtensor.shard_dim_alltoall": 1}] * SIZE
