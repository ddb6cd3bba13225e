"""What a rank on one of several hosts does with torch: ``python torch_host_ranks.py everything``, or another of the
functions below."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import a2a.torch as ours
import torch
import torch.distributed as dist
from torch import nn

import a2a
from a2a._core import host_facts

HOSTS = int(os.environ.get("HOSTS_EXPECTED", "2"))


def collectives(group: Any) -> None:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    ranks = torch.arange(float(size))
    x = torch.full((3,), rank + 1.0)
    dist.all_reduce(x, group=group)
    assert x.tolist() == [size * (size + 1) / 2] * 3
    out = torch.empty(size)
    dist.all_to_all_single(out, torch.full((size,), float(rank)), group=group)
    assert torch.equal(out, ranks)
    # Uneven parts: rank r sends r + 1 elements to each.
    parts = [torch.empty(peer + 1) for peer in range(size)]
    dist.all_to_all(parts, [torch.full((rank + 1,), float(rank))] * size, group=group)
    assert [part.tolist() for part in parts] == [[float(peer)] * (peer + 1) for peer in range(size)]
    dist.all_gather_into_tensor(out, torch.tensor([float(rank)]), group=group)
    assert torch.equal(out, ranks)
    got = torch.empty(2)
    dist.reduce_scatter_tensor(got, torch.ones(2 * size) * rank, group=group)
    assert got.tolist() == [size * (size - 1) / 2] * 2
    last = dist.get_global_rank(group or dist.group.WORLD, size - 1)
    y = torch.full((4,), float(rank))
    dist.broadcast(y, last, group=group)
    assert y.tolist() == [size - 1.0] * 4
    gathered = [torch.empty(1) for _ in range(size)] if rank == size - 1 else None
    dist.gather(torch.tensor([float(rank)]), gathered, last, group=group)
    assert gathered is None or torch.equal(torch.cat(gathered), ranks)
    one = torch.empty(1)
    dist.scatter(one, list(ranks.chunk(size)) if rank == size - 1 else None, last, group=group)
    assert one.item() == rank
    total = torch.ones(1)
    dist.reduce(total, last, group=group)
    assert rank != size - 1 or total.item() == size
    large = torch.full((1 << 18,), float(rank))  # more than goes with the facts of an operation
    work = dist.all_reduce(large, op=dist.ReduceOp.MAX, group=group, async_op=True)
    work.wait()
    assert large.min() == large.max() == size - 1
    dist.barrier(group=group)


def messages(group: Any) -> None:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    at = group or dist.group.WORLD
    after, before = (dist.get_global_rank(at, (rank + step) % size) for step in (1, -1))
    got, x = torch.empty(5), torch.full((5,), float(rank))
    if rank % 2 == 0:
        dist.send(x, after, group=group)
        dist.recv(got, before, group=group)
    else:
        dist.recv(got, before, group=group)
        dist.send(x, after, group=group)
    assert got.tolist() == [(rank - 1.0) % size] * 5
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, after, group), dist.P2POp(dist.irecv, got, before, group)]
    )
    for work in works:
        work.wait()
    assert got.tolist() == [(rank - 1.0) % size] * 5


def several_at_once(group: Any) -> None:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    tensors = [torch.full((number + 1,), float(rank)) for number in range(3)]
    with dist._coalescing_manager(group=group):
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    assert all(tensor.eq(size * (size - 1) / 2).all() for tensor in tensors)
    dist.all_reduce_coalesced(tensors, op=dist.ReduceOp.MAX, group=group)
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * 1000 * rank}, group=group)
    assert [one["rank"] for one in objects] == list(range(size))
    listed = [rank]
    dist.broadcast_object_list(listed, dist.get_global_rank(group or dist.group.WORLD, 0), group=group)
    assert listed == [0]
    ours.monitored_barrier(group, timedelta(seconds=20))


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model(x).square().sum().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def training() -> None:
    """DDP and FSDP2 give the gradient of one process that has the inputs of all."""
    from torch.distributed.fsdp import fully_shard

    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.arange(8.0 * size).reshape(size, 8) / 10
    expected = [gradient / size for gradient in gradients(model(), x)]
    parallel = nn.parallel.DistributedDataParallel(model())
    for got, wanted in zip(gradients(parallel, x[rank : rank + 1]), expected, strict=True):
        torch.testing.assert_close(got, wanted)
    sharded = model()
    fully_shard(sharded)
    sharded(x[rank : rank + 1]).square().sum().backward()
    for parameter, wanted in zip(sharded.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad.full_tensor(), wanted)  # type: ignore[union-attr]


def meshes() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replicate", "shard"))
    whole = torch.arange(64.0).reshape(8, 8)
    tensor = distribute_tensor(whole, mesh, [Replicate(), Shard(0)])
    assert torch.equal(tensor.redistribute(placements=[Shard(0), Shard(1)]).full_tensor(), whole)
    assert torch.equal((tensor @ tensor).full_tensor(), whole @ whole)


def everything() -> str:
    with (
        warnings.catch_warnings(record=True) as caught,
        mock.patch.object(dist.distributed_c10d, "ProcessGroupGloo") as gloo,
    ):
        warnings.simplefilter("always")
        ours.init_process_group("a2a", timeout=timedelta(seconds=60))
        rank, size = dist.get_rank(), dist.get_world_size()
        assert host_facts(dist.group.WORLD._get_backend(torch.device("cpu")).comm)["hosts"] == HOSTS
        ends = dist.new_group([0, size - 1])
        halves = [dist.new_group(range(parity, size, 2)) for parity in (0, 1)]  # each has ranks of both hosts
        split = dist.group.WORLD.split_group(list(range(rank % 2, size, 2)))  # torch's function is for devices alone
        x = torch.ones(3)
        split.allreduce([x]).wait()
        assert x.tolist() == [size / 2] * 3
        for group in (None, halves[rank % 2], *([ends] if rank in (0, size - 1) else [])):
            collectives(group)
            messages(group)
            several_at_once(group)
            output = torch.empty(dist.get_world_size(group))
            ours.all_gather_into_tensor(output, torch.ones(1), group=group)
        training()
        meshes()
        assert not gloo.called
    told = [str(one.message) for one in caught if "a2a" in str(one.message)]
    assert not told, told
    dist.destroy_process_group()
    return f"rank {rank} of {size} is fine"


def of_gloo() -> str:
    """The calls of a2a.torch in groups of Gloo."""
    ours.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    for group in (None, dist.new_group(range(size)), dist.new_group(range(size))):
        output = torch.empty(size)
        ours.all_to_all_single(output, torch.full((size,), float(rank)), group=group)
        assert output.tolist() == [*map(float, range(size))]
        from a2a.torch._process_group.communicators import communicator

        assert host_facts(communicator(group))["hosts"] == HOSTS
    ours.destroy_process_group()
    return f"rank {rank} of {size} is fine"


def meet() -> str:
    """How init_process_group() ends in each of the cases on standard input, one after the other, and after how many
    seconds. Each case is a list with the variables of each rank. Rank 0 calls itself localhost."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host = "127.0.0.1" if rank == 0 else os.environ["MASTER_ADDR"]
    store = dist.TCPStore(host, int(os.environ["MASTER_PORT"]), size, rank == 0)
    del os.environ["MASTER_ADDR"]
    said = []
    for number, case in enumerate(json.load(sys.stdin)):
        store.add(f"begun {number}", 1)
        while store.add(f"begun {number}", 0) < size:
            time.sleep(0.01)
        begin = time.monotonic()
        with mock.patch.dict(os.environ, case[rank]):
            try:
                at = dist.PrefixStore(str(number), store)
                limit = timedelta(seconds=float(os.environ["SECONDS"]))
                dist.init_process_group("a2a", store=at, rank=rank, world_size=size, timeout=limit)
            except a2a.Error as error:
                text = f"{type(error).__name__}: {error}"
            else:
                text = f"met on {host_facts(dist.group.WORLD._get_backend(torch.device('cpu')).comm)['hosts']} hosts"
                dist.destroy_process_group()
        said.append([time.monotonic() - begin, text])
    store.add("done", 1)
    while rank == 0 and store.add("done", 0) < size:
        time.sleep(0.01)
    return json.dumps([rank, said])


if __name__ == "__main__":
    run: Callable[[], str] = globals()[sys.argv[1]]
    os.write(1, f"{run()}\n".encode())
