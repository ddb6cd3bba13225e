"""``alltoall_axis``: an exchange along axes, and its gradient, which is the inverse exchange."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import paddle

import a2a
from a2a.adapting import Division, collective

from . import _autograd
from ._arguments import plain
from ._collectives import require_call
from ._errors import ArgumentTypeError


@collective
def alltoall_axis(
    comm: a2a.Communicator, x: Any, split_axis: Any, concat_axis: Any, split_sizes: Any, concat_sizes: Any
) -> Any:
    """Return a new tensor of all ranks' slices for this rank."""
    require_call(True, False)
    values = plain(x, "in_tensor")
    if not x.place.is_cpu_place():
        raise a2a.InvalidArgumentError(f"in_tensor is on {x.place}; alltoall_axis is for tensors on the host")
    forth = _divide(comm, list(x.shape), split_axis, concat_axis, split_sizes, concat_sizes)
    home = forth.back(x.shape)

    def there(tensors: Sequence[Any]) -> Sequence[Any]:
        return [_exchange(comm, tensors[0].detach(), forth)]

    def back(gradients: Sequence[Any]) -> Sequence[Any]:
        return [_exchange(comm, gradients[0].detach(), home)]

    if not _autograd.wants_gradient([x]):
        return _exchange(comm, values, forth)
    return _autograd.results(comm, [x], there([values]), back, there)[0]


def _exchange(comm: a2a.Communicator, x: Any, at: Division) -> Any:
    result = paddle.empty(at.shape, x.dtype, device=x.place)
    comm.alltoallv(x, at.to, result, at.from_, split_axis=at.split_axis, concat_axis=at.concat_axis)
    return result


def _divide(
    comm: a2a.Communicator, shape: list[int], split_axis: Any, concat_axis: Any, split_sizes: Any, concat_sizes: Any
) -> Division:
    split, concat = _axis(split_axis, "split_axis", shape), _axis(concat_axis, "concat_axis", shape)
    given, wanted = _sizes(split_sizes, "split_sizes", comm.size), _sizes(concat_sizes, "concat_sizes", comm.size)
    at = Division.of(shape, split, concat, given, wanted, comm.rank, comm.size)
    if problem := at.misfit(shape, f"in_tensor {shape}", comm.rank, bool(given)):
        raise a2a.InvalidArgumentError(problem)
    return at


def _axis(axis: Any, name: str, shape: list[int]) -> int:
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise ArgumentTypeError(f"{name} is {axis!r}; pass the number of an axis")
    number = operator.index(axis)
    if not -len(shape) <= number < len(shape):
        raise a2a.InvalidArgumentError(f"{name} is {number}, but in_tensor {shape} has {len(shape)} axes")
    return number % len(shape)


def _sizes(given: Any, name: str, ranks: int) -> list[int]:
    """Return the sizes as a list, empty where none are given."""
    values = given.tolist() if hasattr(given, "tolist") else given
    if values is None:
        return []
    if not isinstance(values, (list, tuple)):
        raise ArgumentTypeError(f"{name} is {values!r}; pass a list of integers")
    for at, size in enumerate(values):
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise ArgumentTypeError(f"{name}[{at}] is {size!r}; pass integers")
    sizes = [operator.index(size) for size in values]
    if len(sizes) != ranks or min(sizes) < 0:
        raise a2a.InvalidArgumentError(f"{name} is {sizes}; pass a size, not a negative one, for each of {ranks} ranks")
    return sizes
