"""``reshard``: a distributed tensor from one ProcessMesh and its placements to any other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
import paddle.distributed as _paddle
from paddle.autograd import PyLayer
from paddle.base.core import Placement

import a2a
from a2a.adapting import collective
from a2a.sharding import Partial, Replicate, Shard, Sharding

from ._device import or_paddles
from ._errors import ArgumentTypeError
from ._groups import for_members, rank_in_group

_FOLDS = {"kRedSum": "sum", "kRedMax": "max", "kRedMin": "min", "kRedProd": "prod", "kRedAvg": "avg"}


@or_paddles(_paddle)
def reshard(dist_tensor: Any, mesh: Any, placements: Sequence[Any], group: Any = None) -> Any:
    """Return a distributed tensor of the same values on ``mesh`` with ``placements``: each byte goes once to each rank
    that lacks it. Both meshes are of ranks of ``group``, and every rank of it makes the call; None is all ranks. The
    meshes may be the same, overlap, or have no rank in common. Gradients go back the same way, where every rank is in
    ``mesh``: Paddle itself has no backward pass outside of it. None on a rank that is not in the group.

    ``dist_tensor`` may be partial, and is folded in rank order; the result may not. Raises InvalidArgumentError for
    what does not fit; the peers then raise MismatchError."""
    return for_members(group, _reshard, group, dist_tensor, mesh, placements)


@collective
def _reshard(comm: a2a.Communicator, group: Any, x: Any, mesh: Any, placements: Any) -> Any:
    if not isinstance(x, paddle.Tensor) or not x.is_dist():
        raise ArgumentTypeError(f"dist_tensor is {type(x).__name__}; pass a tensor of shard_tensor() or the like")
    if not isinstance(placements, (list, tuple)):
        raise ArgumentTypeError(f"placements is {placements!r}; pass a list of placements, one for each axis of mesh")
    _sharding("mesh", mesh, placements, len(x.shape), comm, group)
    return _Reshard.apply(x, _Way(comm, group, mesh, list(placements)))


class _Way:
    """An object that hides what is no tensor from PyLayer."""

    def __init__(self, comm: a2a.Communicator, group: Any, mesh: Any, placements: list[Any]) -> None:
        self.comm, self.group, self.mesh, self.placements = comm, group, mesh, placements


class _Reshard(PyLayer):  # type: ignore[misc, unused-ignore]
    """Of distributed tensors, so that gradients may have placements of their own before they go back."""

    @staticmethod
    def forward(ctx: Any, x: Any, way: _Way) -> Any:
        home = [_paddle.Replicate() if one.is_partial() else one for one in x.placements]
        ctx.back = _Way(way.comm, way.group, x.process_mesh, home)
        return _moved(x, way)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        back = ctx.back
        return _reshard(back.comm, back.group, gradient, back.mesh, back.placements)


def _moved(x: Any, way: _Way) -> Any:
    comm, shape = way.comm, list(x.shape)
    src = _sharding("the mesh of dist_tensor", x.process_mesh, x.placements, len(shape), comm, way.group)
    dst = _sharding("mesh", way.mesh, way.placements, len(shape), comm, way.group)
    box = dst.box(comm.rank, shape)
    recv = None if box is None else paddle.empty([part.stop - part.start for part in box], x.dtype)
    send = None if src.box(comm.rank, shape) is None else x._local_value().detach()
    comm.reshard(send, recv, shape, src, dst)
    local = paddle.zeros([0], x.dtype) if recv is None else recv
    return paddle.Tensor(local, dims=shape, process_mesh=way.mesh, placements=way.placements, place=local.place)


def _sharding(
    name: str, mesh: Any, placements: Sequence[Any], dims: int, comm: a2a.Communicator, group: Any
) -> Sharding:
    if not hasattr(mesh, "process_ids"):
        raise ArgumentTypeError(f"{name} is {type(mesh).__name__}; pass a ProcessMesh")
    if len(placements) != len(mesh.shape):
        raise a2a.InvalidArgumentError(
            f"there are {len(placements)} placements for the {len(mesh.shape)} axes of {name}"
        )
    ranks = [rank_in_group(rank, f"a rank of {name}", group, comm) for rank in mesh.process_ids]
    # Of several axes that divide one dimension, Paddle says which does so first.
    order = sorted(range(len(placements)), key=lambda axis: _order(placements[axis]))
    array = np.array(ranks, np.int64).reshape(mesh.shape).transpose(order)
    return Sharding(array, [_placement(placements[axis], dims) for axis in order])


def _order(placement: Any) -> int:
    found = re.search(r"shard_order=(\d+)", repr(placement))  # of a class without a Python one
    return int(found[1]) if found else 0


def _placement(placement: Any, dims: int) -> Shard | Replicate | Partial:
    if not isinstance(placement, Placement):
        raise ArgumentTypeError(f"placements has {placement!r}; pass Shard, Replicate or Partial of paddle.distributed")
    if getattr(placement, "get_split_factor", lambda: 1)() != 1:
        raise a2a.UnsupportedError(f"placements has {placement!r}, of which a rank's part is no box")
    if placement.is_replicated():
        return Replicate()
    if isinstance(placement, _paddle.Partial):
        kind = placement.reduce_type().name
        return Partial(_FOLDS.get(kind, kind))
    if isinstance(placement, _paddle.Shard):
        return Shard(placement.get_dim())
    return Shard(next(dim for dim in range(dims) if placement.is_shard(dim)))
