"""What torch says of the parts of a tensor, in the words of a2a.sharding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch.distributed import distributed_c10d as c10d

from a2a import InvalidArgumentError, UnsupportedError
from a2a.sharding import Partial, Replicate, Shard, Sharding

from .._errors import ArgumentTypeError
from .._process_group.communicators import communicator, is_torchs

__all__ = ["chunk_boxes", "everywhere_in", "sharding_of"]

_FOLDS = {"product": "prod"}  # others have the same name in both


def sharding_of(
    name: str, mesh: Any, placements: Sequence[Any], shape: Sequence[int], group: Any, shard_order: Any = None
) -> Sharding:
    """Return the sharding among the ranks of a group of a tensor on a DeviceMesh. ``shard_order`` is that of torch's
    DTensorSpec; None: axes of the mesh divide in their order. Raises InvalidArgumentError for what does not fit, with
    ``name`` as the name of the mesh."""
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(mesh, DeviceMesh):
        raise ArgumentTypeError(f"{name} is {type(mesh).__name__}; pass a torch.distributed.device_mesh.DeviceMesh")
    axes = mesh.mesh.numpy()
    placements, order = _order_of(mesh, placements, shape, shard_order)
    if len(placements) != axes.ndim:
        raise InvalidArgumentError(f"there are {len(placements)} placements for the {axes.ndim} axes of {name}")
    ranks = _ranks_in(name, axes.ravel().tolist(), group)
    ordered = np.array(ranks, np.int64).reshape(axes.shape).transpose(order)
    return Sharding(ordered, [_placement(placements[axis]) for axis in order])


def everywhere_in(group: Any) -> Sharding:
    """Return the sharding of a tensor that every rank of the group has."""
    comm = communicator(group)
    return Sharding(range(1 if comm is None else comm.size), Replicate())


def chunk_boxes(chunks: Any) -> Any:
    """Return the chunks of a tensor as boxes by rank, which ``comm.reshard`` and its plans take as a sharding.
    ``chunks`` is a dict or a list by rank of torch.distributed.checkpoint's ChunkStorageMetadata, or of other objects
    with ``offsets`` and ``sizes``, None where a rank has no part. The result is of the same kind, of tuples of slices.
    Raises InvalidArgumentError for anything else. Not collective."""
    if isinstance(chunks, dict):
        return {rank: _box(f"chunks[{rank}]", chunk) for rank, chunk in chunks.items()}
    if isinstance(chunks, Iterable):
        return [_box(f"chunks[{rank}]", chunk) for rank, chunk in enumerate(chunks)]
    raise ArgumentTypeError(f"chunks is {type(chunks).__name__}; pass a dict or a list of chunks by rank")


def _box(name: str, chunk: Any) -> tuple[slice, ...] | None:
    if chunk is None:
        return None
    try:
        pairs = list(zip(chunk.offsets, chunk.sizes, strict=True))
    except (AttributeError, TypeError, ValueError) as error:
        raise ArgumentTypeError(f"{name} is {chunk!r}; pass a ChunkStorageMetadata or None ({error})") from None
    return tuple(slice(int(offset), int(offset) + int(size)) for offset, size in pairs)


def _ranks_in(name: str, ranks: list[int], group: Any) -> list[int]:
    """Return ranks of the world as those of the group."""
    comm = communicator(group)
    if comm is None or not is_torchs(comm, group):
        return ranks
    of_world = c10d.get_process_group_ranks(c10d._get_default_group() if group is None else group)
    places = {rank: place for place, rank in enumerate(of_world)}
    for rank in ranks:
        if rank not in places:
            raise InvalidArgumentError(f"{name} names rank {rank}, which is not in the group of ranks {of_world}")
    return [places[rank] for rank in ranks]


def _order_of(
    mesh: Any, placements: Sequence[Any], shape: Sequence[int], shard_order: Any
) -> tuple[Sequence[Any], list[int]]:
    """Return the placements without torch's _StridedShard, and the axes of the mesh in the order in which they divide
    the tensor. FSDP of a tensor-parallel model divides by the last axis first."""
    axes = list(range(len(placements)))
    strided = [one for one in placements if type(one).__name__ == "_StridedShard"]
    if not strided:
        first = [axis for entry in shard_order or () for axis in entry.mesh_dims]
        return placements, first + [axis for axis in axes if axis not in first]
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    try:
        plain, order = DTensorSpec._normalize_placements_into_shard_order(tuple(placements), mesh, True)
    except (AttributeError, TypeError, ValueError) as error:
        raise UnsupportedError(f"placements are {tuple(placements)}: a rank's part is no box ({error})") from None
    first = []
    for entry in order:
        first += entry.mesh_dims
        parts, entries = math.prod(mesh.size(axis) for axis in entry.mesh_dims), shape[entry.tensor_dim]
        if any(one.dim == entry.tensor_dim for one in strided) and entries % parts:
            raise UnsupportedError(
                f"placements are {tuple(placements)}: {parts} ranks do not divide the {entries} entries of "
                f"dimension {entry.tensor_dim} evenly"
            )
    return plain, first + [axis for axis in axes if axis not in first]


def _placement(placement: Any) -> Shard | Replicate | Partial:
    from torch.distributed import tensor

    if type(placement) is tensor.Shard:
        return Shard(placement.dim)
    if type(placement) is tensor.Replicate:
        return Replicate()
    if type(placement) is tensor.Partial:
        return Partial(_FOLDS.get(placement.reduce_op, placement.reduce_op))
    raise ArgumentTypeError(
        f"placements has {placement!r}; pass Shard, Replicate or Partial of torch.distributed.tensor"
    )
