"""Prepares tensors for the core, which gets their values without their gradient.

On the host tensors may have any strides. For a device tensor that is not contiguous, the core gets a copy, and received
data is copied into the tensor when the operation has ended. ``plain`` says which tensors need none of that; nearly all
do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

import a2a
from a2a.adapting import refuse as tell
from a2a.adapting import wait_to_read

from .._errors import ArgumentTypeError, SplitError, TensorError, not_a_tensor

__all__ = [
    "copied",
    "direct",
    "flat",
    "inner",
    "plain",
    "read_now",
    "require_list",
    "require_plain_memory",
    "require_tensor",
    "require_writable",
    "room_for",
    "to_lists",
]

_Then = Callable[[], None]


def _refuse(comm: Any, error: a2a.Error) -> a2a.Error:
    """Tell the peers of the error, unless ``comm`` is None because they take no part."""
    return error if comm is None else tell(comm, error)


def direct(tensor: Any) -> bool:
    """Whether the core gets the tensor with its strides. It also gets objects that are no tensors or have no strides,
    and refuses them."""
    try:
        return tensor.is_cpu or tensor.is_contiguous() or tensor.layout is not torch.strided
    except AttributeError:
        return True


def plain(tensor: Tensor) -> bool:
    """Whether the core gets the tensor as it is, also to write into it."""
    return direct(tensor) and not (tensor.requires_grad and tensor.layout is torch.strided)


def require_tensor(comm: Any, name: str, tensor: Any) -> None:
    """Raise for an object that is no tensor, and tell the peers."""
    if not isinstance(tensor, Tensor):
        raise _refuse(comm, not_a_tensor(name, tensor))


def require_list(comm: Any, name: str, tensors: Any, count: int) -> None:
    """Raise for an object that is no list of ``count`` tensors, and tell the peers."""
    if not isinstance(tensors, list):
        raise _refuse(comm, ArgumentTypeError(f"{name} is {type(tensors).__name__}, not a list of tensors"))
    if len(tensors) != count:
        raise _refuse(comm, SplitError(f"{name} has {len(tensors)} tensors, but the group has {count} ranks"))
    for at, tensor in enumerate(tensors):
        require_tensor(comm, f"{name}[{at}]", tensor)
        require_plain_memory(comm, f"{name}[{at}]", tensor)


def require_plain_memory(comm: Any, name: str, tensor: Tensor) -> None:
    """Raise for a tensor that cannot be copied to others, and tell the peers."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise _refuse(comm, TensorError(f"{name} is a {kind} tensor; an exchange needs values in plain memory"))


def require_writable(comm: Any, name: str, output: Tensor) -> None:
    """Raise for a tensor that torch would not copy into when the exchange is over, and tell the peers."""
    if output.layout is torch.strided and _expanded(output):
        text = f"{name} of shape {tuple(output.shape)} has elements that share memory; pass a copy of it"
        raise _refuse(comm, a2a.InvalidArgumentError(text))
    if output.is_inference() and not torch.is_inference_mode_enabled():
        text = f"{name} was made in torch.inference_mode(), and cannot be written outside of it; pass a clone"
        raise _refuse(comm, TensorError(text))


def _expanded(tensor: Tensor) -> bool:
    """Whether elements share memory, by torch's own rule for outputs. Unlike torch's function, vmap can take it."""
    places = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.numel() > 0 and any(size > 1 and step == 0 for size, step in places)


def inner(tensor: Tensor) -> Tensor:
    """Return the values of a tensor to send."""
    if plain(tensor):
        return tensor
    tensor = tensor.detach()
    return tensor if direct(tensor) else tensor.contiguous()


def read_now(comm: Any, tensors: Iterable[Tensor]) -> None:
    """Call before a call reads tensors itself: what is in flight may still write them."""
    if comm is not None:  # torch itself orders what one of its backends does
        wait_to_read(comm, [tensor.detach() for tensor in tensors])


def flat(comm: Any, tensors: Sequence[Tensor]) -> Tensor:
    """Return a copy of the elements of all tensors, one after another."""
    read_now(comm, tensors)
    result = tensors[0].new_empty(sum(tensor.numel() for tensor in tensors))
    for tensor, part in zip(tensors, result.split([tensor.numel() for tensor in tensors]), strict=True):
        part.view(tensor.shape).copy_(tensor.detach())
    return result


def room_for(comm: Any, name: str, output: Tensor) -> tuple[Tensor, _Then | None]:
    """Return the tensor to receive an output into, and the function that copies it from there; None if it is the output
    itself."""
    if plain(output):
        return output, None
    output = output.detach()
    return (output, None) if direct(output) else _apart(comm, name, output)


def _apart(comm: Any, name: str, output: Tensor) -> tuple[Tensor, _Then]:
    require_writable(comm, name, output)
    room = torch.empty_like(output, memory_format=torch.contiguous_format)
    return room, to_lists([output], [room])


def copied(comm: Any, name: str, tensor: Tensor) -> tuple[Tensor, _Then | None]:
    """room_for() a tensor that is sent, too."""
    room, then = room_for(comm, name, tensor)
    if then is not None:
        room.copy_(tensor.detach())
    return room, then


def to_lists(outputs: Sequence[Tensor], rooms: Sequence[Tensor]) -> _Then:
    """Return the function that copies each received tensor to its output."""

    def copy() -> None:
        for output, room in zip(outputs, rooms, strict=True):
            if output is not room:
                output.detach().copy_(room.view(output.shape))

    return copy
