"""What ranks do with distributed tensors of Paddle on meshes that are the same, overlap or are apart."""

from __future__ import annotations

import functools
import itertools
import os
from typing import Any

import a2a.paddle
import numpy as np
import paddle
import paddle.distributed as theirs
import pytest

import a2a
from a2a.sharding import Replicate, Shard, Sharding

MESHES = ([0, 1, 2, 3], [[0, 1], [2, 3]], [[0, 2], [1, 3]], [0, 1], [2, 3], [3, 1, 0], [[2]])


@functools.cache
def start(comm: a2a.Communicator) -> None:
    """Paddle asks its variables for the number of a rank."""
    os.environ |= {"PADDLE_TRAINER_ID": str(comm.rank), "PADDLE_TRAINERS_NUM": str(comm.size)}


def layouts(dims: int) -> list[tuple[Any, list[Any]]]:
    kinds = [theirs.Replicate(), *[theirs.Shard(dim) for dim in range(dims)]]
    return [(mesh, list(some)) for mesh in MESHES for some in itertools.product(kinds, repeat=np.ndim(mesh))]


def dim_of(placement: Any) -> int | None:
    return next((dim for dim in range(3) if placement.is_shard(dim)), None)


def part_of(mesh: Any, placements: list[Any], rank: int, full: Any) -> Any:
    ours = [Shard(one.get_dim()) if one.is_shard() else Replicate() for one in placements]
    box = Sharding(mesh, ours).box(rank, full.shape)
    return None if box is None else full[box]


def dist_tensor(full: Any, mesh: Any, placements: list[Any], rank: int, gradient: bool = False) -> Any:
    """As Paddle distributes it, which refuses parts that are empty."""
    x = theirs.shard_tensor(paddle.to_tensor(full), theirs.ProcessMesh(mesh), placements)
    x.stop_gradient = not gradient  # also outside of the mesh
    part = part_of(mesh, placements, rank, full)
    assert part is None or (x._local_value().numpy() == part).all()
    return x


def at_random(comm: a2a.Communicator, dtype: str) -> None:
    start(comm)
    chance = np.random.default_rng(4)
    for dims, shape in ((1, (8,)), (2, (7, 10)), (3, (4, 11, 5))):
        choices = layouts(dims)
        for _ in range(25):
            (src, before), (dst, after) = (choices[int(at)] for at in chance.integers(0, len(choices), 2))
            full = chance.integers(0, 2 if dtype == "bool" else 99, shape).astype(dtype)
            try:
                x = dist_tensor(full, src, before, comm.rank)
            except ValueError:  # Paddle has no empty parts; which ranks would have one is the same on all
                x = None
            known = comm.allgather_bytes(b"" if x is None else b"x")
            if not all(known):
                continue
            y = a2a.paddle.reshard(x, theirs.ProcessMesh(dst), after, comm)
            assert y.is_dist() and y.shape == list(shape) and y.dtype == x.dtype
            assert list(map(dim_of, y.placements)) == list(map(dim_of, after))
            assert y.process_mesh == theirs.ProcessMesh(dst)
            due = part_of(dst, after, comm.rank, full)
            if due is not None:
                np.testing.assert_array_equal(y._local_value().numpy(), due, f"{src} {before} to {dst} {after}")


def partial_and_gradients(comm: a2a.Communicator) -> None:
    start(comm)
    full = np.arange(24, dtype="float32").reshape(6, 4)
    pair, grid = theirs.ProcessMesh([0, 1]), theirs.ProcessMesh([[0, 1], [2, 3]])
    for kind, due in ((theirs.ReduceType.kRedSum, 2 * full + 1), (theirs.ReduceType.kRedMax, full + 1)):
        term = paddle.to_tensor(full + comm.rank)
        x = paddle.Tensor(term, dims=[6, 4], process_mesh=pair, placements=[theirs.Partial(kind)], place=term.place)
        y = a2a.paddle.reshard(x, grid, [theirs.Replicate(), theirs.Shard(1)], comm)
        np.testing.assert_array_equal(y._local_value().numpy(), due[:, 2 * (comm.rank % 2) :][:, :2])
    x.stop_gradient = False
    y = a2a.paddle.reshard(x, grid, [theirs.Replicate(), theirs.Shard(1)], comm)
    y.backward(dist_tensor(full, [[0, 1], [2, 3]], [theirs.Replicate(), theirs.Shard(1)], comm.rank))
    assert x.grad.placements == [theirs.Replicate()]
    assert comm.rank > 1 or (x.grad._local_value().numpy() == full).all()
    # Paddle itself has no operations on a rank outside of a mesh, so the result is on all.
    for dst, after in (([[0, 1], [2, 3]], [theirs.Replicate(), theirs.Shard(1)]), ([3, 2, 1, 0], [theirs.Shard(1)])):
        x = dist_tensor(full, [0, 1], [theirs.Shard(0)], comm.rank, True)
        y = a2a.paddle.reshard(x, theirs.ProcessMesh(dst), after, comm)
        assert not y.stop_gradient
        (y * y).backward(dist_tensor(np.full_like(full, 3), dst, after, comm.rank))
        if comm.rank < 2:
            np.testing.assert_array_equal(x.grad._local_value().numpy(), 6 * full[3 * comm.rank :][:3])


def refused(comm: a2a.Communicator) -> None:
    start(comm)
    full = np.arange(24, dtype="float32").reshape(6, 4)
    line, rows, columns = theirs.ProcessMesh([0, 1, 2]), [theirs.Shard(0)], [theirs.Shard(1)]
    x = dist_tensor(full, [0, 1, 2], rows, comm.rank)
    small = paddle.zeros([1, 4])
    odd = paddle.Tensor(small, dims=[6, 4], process_mesh=line, placements=rows, place=small.place)
    reshard = a2a.paddle.reshard

    def good() -> None:
        reshard(x, line, columns, comm)

    for bad, words in (
        (lambda: reshard(paddle.zeros([2]), line, rows, comm), "dist_tensor is Tensor"),
        (lambda: reshard(x, [0, 1], rows, comm), "mesh is list"),
        (lambda: reshard(x, line, theirs.Shard(0), comm), "pass a list of placements"),
        (lambda: reshard(x, line, rows * 2, comm), "2 placements for the 1 axes of mesh"),
        (lambda: reshard(x, line, ["rows"], comm), "placements has 'rows'"),
        (lambda: reshard(x, line, [theirs.Shard(2)], comm), "dimension 2 of a tensor of 2 dimensions"),
        (lambda: reshard(x, line, [theirs.Partial()], comm), "cannot be partial"),
        (lambda: reshard(x, theirs.ProcessMesh([0, 7]), rows, comm), "a rank of mesh is 7, but the ranks"),
        (lambda: reshard(odd, line, rows, comm), "send is of shape (1, 4)"),
    ):
        if comm.rank == 1:
            with pytest.raises(a2a.InvalidArgumentError) as caught:
                bad()
            assert words in str(caught.value), caught.value
        else:
            with pytest.raises(a2a.MismatchError, match="rank 1"):
                good()
        good()
