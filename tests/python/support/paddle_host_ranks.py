"""What a rank on one of several hosts does with Paddle: ``python paddle_host_ranks.py everything``, or ``fails``."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import a2a.paddle as dist
import paddle

import a2a
from a2a._core import host_facts

HOSTS = 2


def collectives(group: Any) -> None:
    ranks = list(range(dist.get_world_size())) if group is None else list(group.ranks)
    job, size = dist.get_rank(), len(ranks)
    own = ranks.index(job)
    comm = dist.get_communicator(group)
    assert host_facts(comm)["hosts"] == HOSTS
    everyone = [float(rank) for rank in ranks]
    out = paddle.zeros([size])
    dist.alltoall_single(out, paddle.full([size], float(job)), group=group)
    assert out.tolist() == everyone
    parts: list[Any] = []
    dist.all_gather(parts, paddle.full([2], float(job)), group=group)
    assert [part.tolist() for part in parts] == [[value] * 2 for value in everyone]
    total = paddle.full([3], float(job))
    dist.all_reduce(total, group=group)
    assert total.tolist() == [sum(everyone)] * 3
    part = paddle.zeros([1])
    dist.reduce_scatter(part, paddle.arange(size, dtype="float32"), group=group)
    assert part.tolist() == [float(own * size)]
    one = paddle.full([1], float(job))
    dist.broadcast(one, ranks[-1], group)
    assert one.item() == ranks[-1]
    objects: list[Any] = []
    dist.all_gather_object(objects, {"rank": job}, group)
    assert objects == [{"rank": rank} for rank in ranks]
    after, before = ranks[(own + 1) % size], ranks[own - 1]
    x, got = paddle.full([4], float(job)), paddle.zeros([4])
    tasks = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, after, group), dist.P2POp(dist.irecv, got, before, group)]
    )
    assert all(task.wait() for task in tasks) and got.tolist() == [float(before)] * 4
    dist.barrier(group)


def training() -> None:
    """DataParallel gives the gradient of one process that has the inputs of all."""
    rank, size = dist.get_rank(), dist.get_world_size()
    paddle.seed(5)
    x = paddle.arange(4.0 * size).reshape([size, 4]) / 10

    def gradient(rows: Any, wrap: Any = None) -> Any:
        layer = paddle.nn.Linear(4, 2, weight_attr=paddle.nn.initializer.Constant(0.5))
        model = wrap(layer) if wrap else layer  # lives until the backward pass is over
        model(rows).square().sum().backward()
        return layer.weight.grad

    dist.enable()
    expected = gradient(x) / size
    assert paddle.allclose(gradient(x[rank : rank + 1], paddle.DataParallel), expected).item()
    dist.disable()


def everything() -> str:
    dist.init_parallel_env()
    rank, size = dist.get_rank(), dist.get_world_size()
    ends = dist.new_group([0, size - 1])
    for group in (None, *([ends] if rank in (0, size - 1) else [])):
        collectives(group)
    training()
    theirs = paddle.full([1], float(rank))
    paddle.distributed.all_reduce(theirs)  # Paddle's own
    assert theirs.item() == size * (size - 1) / 2
    dist.barrier()
    return f"rank {rank} of {size} is fine"


def fails() -> str:
    begin = time.monotonic()
    try:
        dist.init_parallel_env()
    except a2a.Error as error:
        return f"{dist.get_rank()} {time.monotonic() - begin:.1f} {type(error).__name__}: {str(error)!r}"
    return "no error"


if __name__ == "__main__":
    os.write(1, f"\n{globals()[sys.argv[1]]()}\n".encode())
