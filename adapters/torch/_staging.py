"""What the core is given of a tensor: its values alone, without its gradient.

On the host tensors may have any strides. Of one on a device that is not contiguous, the core is given a copy, and what
arrives is copied to where it belongs when the operation has ended. ``plain`` tells what needs none of that, which is
nearly everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import a2a
from a2a.adapting import refuse as tell

from ._errors import ArgumentTypeError, SplitError

__all__ = [
    "copied",
    "direct",
    "flat",
    "flat_room_for",
    "inner",
    "plain",
    "require_list",
    "require_tensor",
    "room_for",
    "to_lists",
]

_Then = Callable[[], None]


def _refuse(comm: Any, error: a2a.Error) -> a2a.Error:
    """Told to the peers, unless there is no ``comm``, because they take no part."""
    return error if comm is None else tell(comm, error)


def direct(tensor: Any) -> bool:
    """Whether the core takes the strides of the tensor, or is to refuse what is no tensor or has none."""
    try:
        return tensor.is_cpu or tensor.is_contiguous() or tensor.layout is not torch.strided
    except AttributeError:
        return True


def plain(tensor: Tensor) -> bool:
    """Whether the core is given the tensor as it is, to write into it, too."""
    return direct(tensor) and not (tensor.requires_grad and tensor.layout is torch.strided)


def require_tensor(comm: Any, name: str, tensor: Any) -> None:
    """Refuses what is no tensor; the peers are told."""
    if not isinstance(tensor, Tensor):
        kind = type(tensor)
        raise _refuse(comm, ArgumentTypeError(f"{name} is {kind.__module__}.{kind.__qualname__}, not torch.Tensor"))


def require_list(comm: Any, name: str, tensors: Any, count: int) -> None:
    """Refuses what is no list of so many tensors."""
    if not isinstance(tensors, list):
        raise _refuse(comm, ArgumentTypeError(f"{name} is {type(tensors).__name__}, not a list of tensors"))
    if len(tensors) != count:
        raise _refuse(comm, SplitError(f"{name} has {len(tensors)} tensors, but the group has {count} ranks"))
    for at, tensor in enumerate(tensors):
        require_tensor(comm, f"{name}[{at}]", tensor)


def inner(tensor: Tensor) -> Tensor:
    """The values alone, to be sent."""
    if plain(tensor):
        return tensor
    tensor = tensor.detach()
    return tensor if direct(tensor) else tensor.contiguous()


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """A copy of the elements of all of them, one after another."""
    result = tensors[0].new_empty(sum(tensor.numel() for tensor in tensors))
    for tensor, part in zip(tensors, result.split([tensor.numel() for tensor in tensors]), strict=True):
        part.view(tensor.shape).copy_(tensor.detach())
    return result


def room_for(comm: Any, name: str, output: Tensor) -> tuple[Tensor, _Then | None]:
    """Where an output is to be received, and what copies it from there; None where that is its own place."""
    if plain(output):
        return output, None
    output = output.detach()
    return (output, None) if direct(output) else _apart(comm, name, output)


def flat_room_for(comm: Any, name: str, output: Tensor) -> tuple[Tensor, _Then | None]:
    """room_for() an output, in one dimension."""
    output = output.detach()
    if output.is_contiguous():
        return output.view(-1), None
    room, then = _apart(comm, name, output)
    return room.view(-1), then


def _apart(comm: Any, name: str, output: Tensor) -> tuple[Tensor, _Then]:
    if torch._debug_has_internal_overlap(output) == 1:  # the same element twice
        text = f"{name} of shape {tuple(output.shape)} has elements that share memory; pass a copy of it"
        raise _refuse(comm, a2a.InvalidArgumentError(text))
    room = torch.empty_like(output, memory_format=torch.contiguous_format)
    return room, to_lists([output], [room])


def copied(comm: Any, name: str, tensor: Tensor) -> tuple[Tensor, _Then | None]:
    """room_for() a tensor that is sent, too."""
    room, then = room_for(comm, name, tensor)
    if then is not None:
        room.copy_(tensor.detach())
    return room, then


def to_lists(outputs: Sequence[Tensor], rooms: Sequence[Tensor]) -> _Then:
    """What copies each output from its place."""

    def copy() -> None:
        for output, room in zip(outputs, rooms, strict=True):
            if output is not room:
                output.detach().copy_(room.view(output.shape))

    return copy
