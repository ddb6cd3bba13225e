"""DTensors from one mesh and its placements to any other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from a2a import Communicator, InvalidArgumentError, MismatchError
from a2a._core import reshard_all
from a2a.adapting import everywhere, takes
from a2a.sharding import Sharding

from .._errors import ArgumentTypeError, TensorError, not_a_tensor
from .._operations.staging import require_plain_memory
from .._process_group.collective import of_group
from .._process_group.communicators import communicator
from .._untraced import as_it_is
from .shardings import everywhere_in, sharding_of

__all__ = ["moved", "reshard", "reshard_state_dict"]


@as_it_is
@of_group
def reshard(dtensor: Any, mesh: Any, placements: Sequence[Any], group: Any = None) -> Any:
    """Return a DTensor of the same values on ``mesh`` with ``placements``: each byte goes once to each rank that lacks
    it. Both meshes are of ranks of ``group``, and every rank of it makes the call; None is torch's default group. They
    may be the same, overlap, or have no rank in common. A rank outside of a mesh has an empty local tensor there.

    ``dtensor`` may be partial, and is folded in rank order; the result may not. Gradients go back the same way; then
    every rank runs the backward pass. For host memory; waits.

    Raises InvalidArgumentError for meshes and placements that do not fit the tensor or the group, and for a local
    tensor that is not this rank's part. The peers then raise MismatchError, as all do that differ."""
    require_dtensor("dtensor", dtensor)
    if not isinstance(placements, (list, tuple)):
        raise ArgumentTypeError(f"placements is {placements!r}; pass a list of placements, one for each axis of mesh")
    return _Reshard.apply(dtensor, mesh, tuple(placements), group)


@as_it_is
@of_group
def reshard_state_dict(src: dict[str, Any], dst: dict[str, Any], group: Any = None) -> None:
    """Write the values of the tensors of ``src`` into those of ``dst``, which have the same names, shapes and dtypes.
    Values are DTensors on any meshes of ``group``, or tensors, which every rank of it has. Every rank of the group
    makes the call, with DTensors of all meshes; those of a mesh that it is not in are empty there. All tensors move as
    one plan, partial ones as one more for each dtype and operation. For host memory; waits. No gradients.

    Raises InvalidArgumentError for names, shapes and dtypes that differ between ``src`` and ``dst``, and where
    reshard() does. Ranks whose names, shapes, shardings or dtypes differ raise MismatchError."""
    takes(2)  # more where tensors are partial, but after a failure none starts the next
    comm = _member(group)
    names = _names(src, dst)
    tensors, sends, recvs = [], [], []
    for name in names:
        before, after = src[name], dst[name]
        for what in ("shape", "dtype"):
            one, other = getattr(before, what), getattr(after, what)
            if one != other:
                raise InvalidArgumentError(
                    f"src[{name!r}] has the {what} {_text(one)}, but dst[{name!r}] {_text(other)}"
                )
        shardings = _sharding(f"src[{name!r}]", before, group), _sharding(f"dst[{name!r}]", after, group)
        tensors.append((tuple(before.shape), *shardings, before.dtype))
        sends.append(_part(f"src[{name!r}]", before, shardings[0], comm.rank))
        recvs.append(_part(f"dst[{name!r}]", after, shardings[1], comm.rank))
        if after.is_conj() or after.is_neg():
            raise TensorError(f"dst[{name!r}] is lazily conjugated or negated; pass its resolve_conj().resolve_neg()")
    _require_same_names(comm, names)
    reshard_all(comm, tensors, sends, _without_twins(recvs))


class _Reshard(torch.autograd.Function):  # type: ignore[misc]
    """Of DTensors, so that gradients may have placements of their own before they go back."""

    @staticmethod
    def forward(ctx: Any, x: Any, mesh: Any, placements: tuple[Any, ...], group: Any) -> Any:
        from torch.distributed.tensor import Replicate

        ctx.group = group
        ctx.src = x.device_mesh, tuple(Replicate() if one.is_partial() else one for one in x.placements)
        ctx.dst = mesh, placements
        return _moved(x, mesh, placements, group)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        mesh, placements = ctx.dst
        # Ranks outside of this mesh do not know which placements the gradient has there.
        if mesh.get_coordinate() is not None:
            grad = grad.redistribute(mesh, placements)
        else:
            grad = _on(grad.to_local(), mesh, placements, grad.shape)
        src, replicated = ctx.src
        return reshard(grad, src, replicated, ctx.group), None, None, None


def _moved(x: Any, mesh: Any, placements: tuple[Any, ...], group: Any) -> Any:
    src = sharding_of("dtensor's mesh", x.device_mesh, x.placements, x.shape, group, _order_of(x))
    dst = sharding_of("mesh", mesh, placements, x.shape, group)
    return _on(moved(_local("dtensor", x), tuple(x.shape), src, dst, group), mesh, placements, x.shape)


def moved(local: Tensor, shape: tuple[int, ...], src: Sharding, dst: Sharding, group: Any) -> Tensor:
    """Return this rank's part in ``dst``; where it has none, some tensor of the same dtype."""
    comm = _member(group)
    box = dst.box(comm.rank, shape)
    recv = None if box is None else local.new_empty([part.stop - part.start for part in box])
    comm.reshard(local if src.box(comm.rank, shape) is not None else None, recv, shape, src, dst)
    return local if recv is None else recv


def _order_of(x: Any) -> Any:
    return getattr(x._spec, "shard_order", None)


def _on(local: Tensor, mesh: Any, placements: Sequence[Any], shape: torch.Size) -> Any:
    """Return the DTensor of a local tensor, which counts for nothing outside of the mesh."""
    from torch.distributed.tensor import DTensor

    if not shape:  # torch takes an empty shape for none
        return DTensor.from_local(local.new_empty(()) if local.dim() else local, mesh, placements, run_check=False)
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)


def _local(name: str, x: Any) -> Tensor:
    """Return the local tensor of a DTensor, or the tensor itself, without its gradient."""
    with torch.no_grad():
        local: Tensor = x.to_local() if hasattr(x, "to_local") else x
        if hasattr(local, "wait"):  # of an operation of torch in flight
            local = local.wait()
        require_plain_memory(None, name, local)
        return local.detach().resolve_conj().resolve_neg()


def _member(group: Any) -> Communicator:
    comm = communicator(group)
    if comm is None:
        raise InvalidArgumentError("this process is no member of the group")
    return comm


def require_dtensor(name: str, given: Any) -> None:
    """Raise for anything but a DTensor."""
    from torch.distributed.tensor import DTensor

    if not isinstance(given, DTensor):
        raise ArgumentTypeError(f"{name} is {type(given).__name__}; pass a torch.distributed.tensor.DTensor")


def _names(src: Any, dst: Any) -> list[str]:
    """Return the names of the tensors, in an order that is the same on all ranks."""
    for side, given in (("src", src), ("dst", dst)):
        if not isinstance(given, dict):
            raise ArgumentTypeError(f"{side} is {type(given).__name__}; pass a dict of name to tensor")
        for name, one in given.items():
            if not isinstance(name, str):
                raise ArgumentTypeError(f"{side} has the name {name!r}; pass a str")
            if not isinstance(one, Tensor):
                raise not_a_tensor(f"{side}[{name!r}]", one)
    for side, more, less in (("dst", src, dst), ("src", dst, src)):
        if missing := sorted(set(more) - set(less)):
            raise InvalidArgumentError(f"{side} has no tensor of the name {missing[0]!r}")
    return sorted(src)


def _require_same_names(comm: Communicator, names: list[str]) -> None:
    digest = hashlib.sha256(repr(names).encode()).digest()[:8]
    mine, all_of_them = np.frombuffer(digest, np.uint64), np.empty(comm.size, np.uint64)
    comm.allgather(mine, all_of_them)
    if (others := np.flatnonzero(all_of_them != all_of_them[0])).size:
        raise everywhere(
            MismatchError(f"the state dicts of ranks 0 and {others[0]} have different names; this rank has {names}")
        )


def _sharding(name: str, tensor: Tensor, group: Any) -> Sharding:
    if not hasattr(tensor, "device_mesh"):
        return everywhere_in(group)
    return sharding_of(
        f"the mesh of {name}", tensor.device_mesh, tensor.placements, tensor.shape, group, _order_of(tensor)
    )


def _part(name: str, tensor: Tensor, sharding: Sharding, rank: int) -> Tensor | None:
    return None if sharding.box(rank, tuple(tensor.shape)) is None else _local(name, tensor)


def _without_twins(recvs: list[Tensor | None]) -> list[Tensor | None]:
    """Return the outputs, with memory of its own for each that a later name has, too, as tied weights."""
    last = {_memory(recv): at for at, recv in enumerate(recvs) if recv is not None}
    return [
        recv if recv is None or last[_memory(recv)] == at else torch.empty_like(recv) for at, recv in enumerate(recvs)
    ]


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _text(value: Any) -> str:
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value)
