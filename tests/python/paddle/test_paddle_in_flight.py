"""Several operations of Paddle in flight on the same tensors run in the order in which they were started."""

from __future__ import annotations

from typing import Any

import pytest
from rank_pool import Pool

paddle = pytest.importorskip("paddle")
import a2a.paddle as dist
from paddle_ranks import part

import a2a

pytestmark = pytest.mark.timeout(110)


def filled(value: float) -> Any:
    return paddle.full([2, 3], value)


def lists(world: a2a.Communicator, n: int) -> None:
    comm: Any = part(world, n)
    if comm is None:
        return
    group, total = {"group": comm, "sync_op": False}, sum(range(1, n + 1))
    mine = float(comm.rank + 1)

    # What reduce_scatter() and scatter() send was summed just now.
    x, out = filled(mine), filled(0)
    tasks = [dist.all_reduce(x, **group), dist.reduce_scatter(out, [x] * n, **group)]
    y, given = filled(mine), filled(0)
    tasks += [dist.all_reduce(y, **group), dist.scatter(given, [y] * n, src=0, **group)]
    # An output of gather() is summed, and then sent, before anybody waits.
    gathered = [filled(0) for _ in range(n)]
    tasks.append(dist.gather(filled(mine), gathered if comm.rank == 0 else None, dst=0, **group))
    tasks.append(dist.all_reduce(gathered[-1], **group))
    strided = paddle.zeros([3, 2]).t()
    tasks.append(dist.gather(gathered[-1], [strided, *gathered[1:]] if comm.rank == 0 else None, dst=0, **group))
    # The root's own tensor is another one's output.
    swapped = [filled(10 * mine + at) for at in range(n)]
    tasks.append(dist.gather(swapped[0], swapped[1:] + swapped[:1] if comm.rank == 0 else None, dst=0, **group))
    for task in reversed(tasks):
        task.wait()
    assert (x == total).all() and (out == n * total).all()
    assert (y == total).all() and (given == total).all()
    assert (gathered[-1] == n).all()
    if comm.rank == 0:
        assert (strided == n).all()
        assert [float(one[0, 0]) for one in swapped[1:] + swapped[:1]] == [10.0 * (at + 1) for at in range(n)]


def test_lists() -> None:
    with Pool(3) as pool:
        for n in (2, 3):
            pool.run(lists, n)
