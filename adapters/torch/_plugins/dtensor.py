"""DTensor's change from one shard dimension to another, as one all-to-all; that of several axes of a mesh at once, as
one resharding; and from one mesh to another.

For tensors on the host DTensor gathers everything on every rank and cuts its part out, because torch assumes that no
host backend has an all-to-all. It changes several axes in steps, which gather what the next one cuts. It has no change
of meshes at all. Importing DTensor is slow, so this module does not
import it, but changes it when the program does. Every rank changes it, because the ranks have to agree."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from a2a import UnsupportedError
from a2a_autoload import _later

from .._calls import axes
from .._process_group.collective import of_group
from .._process_group.communicators import backend_of
from .._reshard.dtensors import moved, reshard
from .._reshard.shardings import sharding_of

__all__ = ["register"]

_API = "torch.distributed.tensor._api"
_DISPATCH = "torch.distributed.tensor._dispatch"
_REDISTRIBUTE = "torch.distributed.tensor._redistribute"
_STEPS = "redistribute_local_tensor"
_MODULE = "torch.distributed.tensor.placement_types"  # the function is looked up by its name there
_library = torch.library.Library("_dtensor", "IMPL")


def _exchange(input: Tensor, gather_dim: int, shard_dim: int, group: Any) -> Tensor:
    """torch's operator, whose own kernel calls the list form of C++, on the host."""
    at = c10d._resolve_process_group(group) if isinstance(group, str) else group
    return axes.exchange(input, shard_dim, gather_dim, [], [], at)


def _change(module: ModuleType) -> None:
    theirs: Any = module.shard_dim_alltoall

    def shard_dim_alltoall(input: Tensor, gather_dim: int, shard_dim: int, mesh: Any, mesh_dim: int) -> Any:
        group = mesh.get_group(mesh_dim) if mesh.device_type == "cpu" else None
        if group is None or backend_of(group) is None:
            return theirs(input, gather_dim, shard_dim, mesh, mesh_dim)
        return torch.ops._dtensor.shard_dim_alltoall(input, gather_dim, shard_dim, group.group_name)

    module.shard_dim_alltoall = shard_dim_alltoall  # type: ignore[attr-defined]


def _change_meshes(module: ModuleType) -> None:
    theirs: Any = module.DTensor.redistribute

    @functools.wraps(theirs)
    def redistribute(self: Any, device_mesh: Any = None, placements: Any = None, **options: Any) -> Any:
        if device_mesh is None or placements is None or device_mesh == self.device_mesh or not _served(device_mesh):
            return theirs(self, device_mesh, placements, **options)
        if options.get("backward_dtype") not in (None, self.dtype):
            raise UnsupportedError("backward_dtype between two meshes; cast the gradient with a hook")
        dtype = options.get("forward_dtype")
        return reshard(self if dtype in (None, self.dtype) else self.to(dtype), device_mesh, placements)

    module.DTensor.redistribute = redistribute


def _change_axes(module: ModuleType) -> None:
    theirs: Any = module.redistribute_local_tensor

    @functools.wraps(theirs)
    def redistribute_local_tensor(local_tensor: Any, current_spec: Any, target_spec: Any, **options: Any) -> Any:
        if not _at_once(local_tensor, current_spec, target_spec):
            return theirs(local_tensor, current_spec, target_spec, **options)
        return _reshard_axes(local_tensor, current_spec, target_spec, None)

    for name in (module.__name__, _API, _DISPATCH):  # the last two have imported it, if they are there already
        if getattr(sys.modules.get(name), _STEPS, None) is theirs:
            setattr(sys.modules[name], _STEPS, redistribute_local_tensor)


@of_group
def _reshard_axes(local: Tensor, current: Any, target: Any, group: Any) -> Tensor:
    src, dst = (
        sharding_of("mesh", one.mesh, one.placements, current.shape, group, getattr(one, "shard_order", None))
        for one in (current, target)
    )
    return moved(local.detach(), tuple(current.shape), src, dst, group)


def _at_once(local: Any, current: Any, target: Any) -> bool:
    """Whether a change within one mesh takes torch several steps, and the default group is of the ranks of the mesh.
    What torch traces stays as it is."""
    from torch.distributed._functional_collectives import _are_we_tracing

    mesh = current.mesh
    if mesh.ndim < 2 or mesh != target.mesh or type(local) not in (Tensor, torch.nn.Parameter) or not _served(mesh):
        return False
    kinds = {type(one) for one in (*current.placements, *target.placements)}
    if not {kind.__name__ for kind in kinds} <= {"Shard", "Replicate"} or _are_we_tracing():
        return False
    pairs = list(zip(current.placements, target.placements, strict=True))
    changed = {getattr(one, "dim", None) for pair in pairs if pair[0] != pair[1] for one in pair} - {None}
    kept = {getattr(one, "dim", None) for one, other in pairs if one == other}
    several = sum(one != other for one, other in pairs) > 1 or bool(changed & kept)
    return several and bool(mesh.size() == c10d._world.default_pg.size())


def _served(mesh: Any) -> bool:
    """Whether the default group serves a mesh, so that all ranks may change to it together."""
    default = c10d._world.default_pg
    return mesh.device_type == "cpu" and default is not None and backend_of(default) is not None


def register() -> None:
    """Change DTensor, now or when it is imported."""
    _later.change(_API, _change_meshes)
    _later.change(_REDISTRIBUTE, _change_axes)
    _library.impl("shard_dim_alltoall", _exchange, "CPU")
    _later.change(_MODULE, _change)
