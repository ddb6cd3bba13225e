"""What ranks do in test_torch.py: a2a.torch beside torch.distributed on NCCL, with the same inputs."""

from __future__ import annotations

from typing import Any

import a2a.torch as dist_a2a
import a2a.torch.nn.functional as ours
import gpu_ranks
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as theirs

import a2a


def start(comm: a2a.Communicator, store: str) -> str:
    """Makes torch's process group of the same ranks; why NCCL refuses, if so."""
    gpu_ranks.place(comm, "torch")
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=comm.rank, world_size=comm.size)
    try:
        dist.all_reduce(torch.zeros(1, device="cuda"))
        torch.cuda.synchronize()
    except dist.DistBackendError as error:
        return str(error)
    return ""


def same(comm: a2a.Communicator, dtype: str, async_op: bool) -> None:
    n, rank = comm.size, comm.rank
    kind = getattr(torch, dtype)
    rows = [[(3 * source + target) % 4 + 1 for target in range(n)] for source in range(n)]
    give, take = rows[rank], [rows[source][rank] for source in range(n)]
    torch.manual_seed(rank)
    x = torch.randn(sum(give), 5, device="cuda").to(kind)
    outs = [torch.zeros(sum(take), 5, device="cuda").to(kind) for _ in range(2)]
    for module, out, group in ((dist, outs[0], None), (dist_a2a, outs[1], comm)):
        _finish(module.all_to_all_single(out, x, take, give, group=group, async_op=async_op))
    _assert_same(*outs)

    lists: list[list[Any]] = []
    for module, group in ((dist, None), (dist_a2a, comm)):
        lists.append([torch.zeros(count, 5, device="cuda").to(kind) for count in take])
        _finish(module.all_to_all(lists[-1], list(x.split(give)), group=group, async_op=async_op))
    for one, other in zip(*lists, strict=True):
        _assert_same(one, other)

    alls = [torch.zeros(n * 3, 5, device="cuda").to(kind) for _ in range(2)]
    part = torch.randn(3, 5, device="cuda").to(kind)
    _finish(dist.all_gather_into_tensor(alls[0], part, async_op=async_op))
    _finish(dist_a2a.all_gather_into_tensor(alls[1], part, group=comm, async_op=async_op))
    _assert_same(*alls)


def gradients(comm: a2a.Communicator, compiled: bool) -> None:
    """The same derivatives as Torch's, of an exchange whose rows have weights on both sides."""
    n, rank = comm.size, comm.rank
    rows = [[(3 * source + target) % 4 + 1 for target in range(n)] for source in range(n)]
    give, take = rows[rank], [rows[source][rank] for source in range(n)]
    torch.manual_seed(rank)
    x, weights = torch.randn(sum(give), 5, device="cuda"), torch.randn(sum(take), 5, device="cuda")
    found = []
    for module, group in ((theirs, dist.group.WORLD), (ours, dist.group.WORLD if compiled else comm)):

        def loss(given: Any, module: Any = module, group: Any = group) -> Any:
            out = torch.empty(sum(take), 5, device="cuda")
            return (module.all_to_all_single(out, given.sin(), take, give, group=group) * weights).square().sum()

        leaf = x.clone().requires_grad_()
        step = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiled and module is ours else loss
        step(leaf).backward()
        found.append(leaf.grad)
    _assert_same(*found)


def backend(comm: a2a.Communicator) -> None:
    """A process group of the backend "a2a": tensors on the host go over a2a, those on the GPU over Torch's NCCL."""
    n, rank = comm.size, comm.rank
    group = dist.new_group(backend="a2a")
    for device in ("cpu", "cuda", "cpu"):
        x = torch.arange(n * 3, device=device) + 100 * rank
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x, group=group)
        assert out.tolist() == [100 * peer + 3 * rank + i for peer in range(n) for i in range(3)]
        every = torch.empty(n * n * 3, dtype=x.dtype, device=device)
        dist.all_gather_into_tensor(every, x, group=group)
        assert every.tolist() == [100 * peer + i for peer in range(n) for i in range(3 * n)]
        dist.all_reduce(x, group=group)
        assert x.tolist() == [n * i + 50 * n * (n - 1) for i in range(3 * n)]
    dist.barrier(group=group)
    dist.destroy_process_group(group)


def _finish(work: Any) -> None:
    if work is not None:
        work.wait()


def _assert_same(one: Any, other: Any) -> None:
    assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def stop(comm: a2a.Communicator) -> None:
    comm.barrier()
    dist.destroy_process_group()
