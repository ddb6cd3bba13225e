"""Compiled programs that call torch.distributed outside of graphs get what they get uncompiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from rank_pool import Pool
from torch_worlds import calls, group

import a2a

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)

SIZE = 2


def programs(dist: Any, at: Any, rank: int) -> dict[str, Callable[[Any], Any]]:
    """Programs of one tensor of 4 elements that return one."""
    root = rank == 0

    def rooms() -> list[Any]:
        return [torch.zeros(4) for _ in range(SIZE)]

    def broadcast(x: Any) -> Any:
        dist.broadcast(x, group=at, group_src=0)
        return x + 0

    def reduce(x: Any) -> Any:
        dist.reduce(x, group=at, group_dst=0)
        return x * root

    def gather(x: Any) -> Any:
        outputs = rooms() if root else None
        dist.gather(x, outputs, group=at, group_dst=0)
        return torch.stack(outputs) if outputs else x + 0

    def scatter(x: Any) -> Any:
        output = torch.zeros(4)
        dist.scatter(output, [x, x + 10] if root else None, group=at, group_src=0)
        return output + 0

    def lists(x: Any) -> Any:
        gathered, exchanged, reduced = rooms(), rooms(), torch.zeros(4)
        dist.all_gather(gathered, x, group=at)
        dist.all_to_all(exchanged, [x, x + 10], group=at)
        dist.reduce_scatter(reduced, [x, x + 10], group=at)
        return torch.stack([*gathered, *exchanged, reduced]) + 0

    def asynchronous(x: Any) -> Any:
        gathered, exchanged = torch.zeros(4 * SIZE), torch.zeros(4)
        works = [dist.all_gather_single(gathered, x, group=at, async_op=True)]
        works.append(dist.all_to_all_single(exchanged, x + 10, group=at, async_op=True))
        works.append(dist.all_gather(outputs := rooms(), x, group=at, async_op=True))
        works.append(dist.all_reduce(summed := x.clone(), group=at, async_op=True))
        for work in works:
            work.wait()
        return torch.cat([gathered, exchanged, summed, *outputs]) + 0

    def messages(x: Any) -> Any:
        y, z = torch.zeros(4), torch.zeros(4)
        peer = 1 - rank
        ends = [
            dist.P2POp(dist.isend, x, group=at, group_peer=peer),
            dist.P2POp(dist.irecv, y, group=at, group_peer=peer),
        ]
        for work in dist.batch_isend_irecv(ends):
            work.wait()
        work = dist.isend(x + 1, group=at, group_dst=peer)
        dist.recv(z, group=at, group_src=peer)
        work.wait()
        return y + z

    def parallel(x: Any) -> Any:
        """DDP broadcasts its buckets in the second step, in the middle of compiled code."""
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1, bias=False), process_group=at)
        step = torch.compile(net, backend="eager") if type(x) is torch.Tensor else net
        for _ in range(2):
            net.zero_grad()
            step(x).backward()
        return net.module.weight.grad + 0

    of_both = {one.__name__: one for one in (broadcast, reduce, gather, scatter, lists, asynchronous, messages)}
    return of_both | ({"parallel": parallel} if dist is torch.distributed else {})


def compile_and_run(comm: a2a.Communicator, way: str) -> None:
    at = group(comm, way, SIZE)
    if comm.rank >= SIZE:
        return
    warnings.simplefilter("ignore")
    for name, program in programs(calls(way), at, comm.rank).items():
        x = torch.full((4,), comm.rank + 1.0)
        if name == "parallel":
            assert program(x).tolist() == [[1.5] * 4]
            continue
        want = program(x.clone())
        torch._dynamo.reset()
        got = torch.compile(program, backend="eager")(x.clone())
        assert torch.equal(got, want), (name, got, want)


@pytest.mark.parametrize("way", ["backend", "functions", "communicator"])
def test_compiled_programs(ranks: Pool, way: str) -> None:
    ranks.run(compile_and_run, way)
