"""The calls of torch.distributed that a2a runs, with the same signatures and return values.

Each takes an a2a communicator, a torch process group or None as ``group``. Torch itself serves the other cases: a
process that is not a member (it warns and returns None), and CUDA tensors in torch's process groups.

Errors are raised before anything moves. A rank whose own arguments are wrong gets a child of a2a.InvalidArgumentError
that is also the class torch raises there; its peers get a2a.MismatchError. Afterwards the group is usable.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal, overload

import torch
import torch.distributed as dist
from torch.compiler import is_dynamo_compiling

from a2a.adapting import collective

from .._errors import ArgumentTypeError
from .._operations import c10d_operations as ops
from .._operations.work import Work
from .._process_group.communicators import backend_of, communicator, is_torchs, name_of, serving
from .._process_group.monitored_barrier import over_communicator, seconds_of
from .._untraced import untraced

__all__ = [
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "monitored_barrier",
]

_torch_monitored_barrier = dist.monitored_barrier
_torch_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before 2.13


@overload
def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: Literal[False] = False,
) -> None: ...
@overload
def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    *,
    async_op: Literal[True],
) -> Work: ...
@overload
def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Work | None: ...
def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """torch.distributed.all_to_all_single: rows of dim 0 of ``input`` go to the ranks, and come from them into
    ``output``, by split sizes in rows, or in equal parts where those are None or empty. Both tensors are of one dtype
    (any of torch; a complex one may be exchanged with its real counterpart) and do not share memory; their trailing
    shapes may differ. Returns None, or with ``async_op`` a Work that holds both tensors until it is done."""
    if is_dynamo_compiling():
        splits = list(output_split_sizes or ()), list(input_split_sizes or ())
        _traced(async_op, torch.ops.a2a.all_to_all_single_, output, input, *splits, name_of(group))
        return None
    comm = serving(group, input)
    if comm is None:
        result: Work | None = dist.all_to_all_single(
            output, input, output_split_sizes, input_split_sizes, group, async_op
        )
        return result
    work: Work | None = ops.all_to_all_single(comm, output, input, output_split_sizes, input_split_sizes, async_op)
    return work


@overload
def all_to_all(
    output_tensor_list: list[Any], input_tensor_list: list[Any], group: Any = None, async_op: Literal[False] = False
) -> None: ...
@overload
def all_to_all(
    output_tensor_list: list[Any], input_tensor_list: list[Any], group: Any = None, *, async_op: Literal[True]
) -> Work: ...
@overload
def all_to_all(
    output_tensor_list: list[Any], input_tensor_list: list[Any], group: Any = None, async_op: bool = False
) -> Work | None: ...
def all_to_all(
    output_tensor_list: list[Any], input_tensor_list: list[Any], group: Any = None, async_op: bool = False
) -> Work | None:
    """torch.distributed.all_to_all: ``input_tensor_list[p]`` goes to rank p, ``output_tensor_list[p]`` comes from it.
    Shapes may differ from entry to entry. Returns None, or with ``async_op`` a Work that holds all tensors until it is
    done."""
    if is_dynamo_compiling():
        _traced(async_op, torch.ops.a2a.all_to_all_, output_tensor_list, input_tensor_list, name_of(group))
        return None
    comm = serving(group, input_tensor_list)
    if comm is None:
        result: Work | None = dist.all_to_all(output_tensor_list, input_tensor_list, group, async_op)
        return result
    work: Work | None = ops.all_to_all(comm, output_tensor_list, input_tensor_list, async_op)
    return work


@overload
def all_gather_single(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: Literal[False] = False
) -> None: ...
@overload
def all_gather_single(output_tensor: Any, input_tensor: Any, group: Any = None, *, async_op: Literal[True]) -> Work: ...
@overload
def all_gather_single(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
) -> Work | None: ...
def all_gather_single(output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False) -> Work | None:
    """torch.distributed.all_gather_single (all_gather_into_tensor before torch 2.13): ``output_tensor`` has every
    rank's ``input_tensor`` in rank order, concatenated or stacked. ``input_tensor`` may be this rank's part of it.
    Returns None, or with ``async_op`` a Work that holds both tensors until it is done."""
    if is_dynamo_compiling():
        _traced(async_op, torch.ops.a2a.all_gather_, output_tensor, input_tensor, name_of(group))
        return None
    comm = serving(group, input_tensor)
    if comm is None:
        result: Work | None = _torch_gather_single(output_tensor, input_tensor, group, async_op)
        return result
    work: Work | None = ops.all_gather_single(comm, output_tensor, input_tensor, async_op)
    return work


all_gather_into_tensor = all_gather_single


@overload
def all_gather(tensor_list: list[Any], tensor: Any, group: Any = None, async_op: Literal[False] = False) -> None: ...
@overload
def all_gather(tensor_list: list[Any], tensor: Any, group: Any = None, *, async_op: Literal[True]) -> Work: ...
@overload
def all_gather(tensor_list: list[Any], tensor: Any, group: Any = None, async_op: bool = False) -> Work | None: ...
def all_gather(tensor_list: list[Any], tensor: Any, group: Any = None, async_op: bool = False) -> Work | None:
    """torch.distributed.all_gather: ``tensor_list[p]`` becomes the ``tensor`` of rank p. Ranks may have tensors of
    different sizes. Returns None, or with ``async_op`` a Work that holds all tensors until it is done."""
    if is_dynamo_compiling():
        _traced(async_op, torch.ops.a2a.all_gather_list_, tensor_list, tensor, name_of(group))
        return None
    comm = serving(group, tensor)
    if comm is None:
        result: Work | None = dist.all_gather(tensor_list, tensor, group, async_op)
        return result
    work: Work | None = ops.all_gather(comm, tensor_list, tensor, async_op)
    return work


@overload
def barrier(
    group: Any = None, async_op: Literal[False] = False, device_ids: Any = None, timeout: timedelta | None = None
) -> None: ...
@overload
def barrier(
    group: Any = None, *, async_op: Literal[True], device_ids: Any = None, timeout: timedelta | None = None
) -> Work: ...
@overload
def barrier(
    group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: timedelta | None = None
) -> Work | None: ...
def barrier(
    group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: timedelta | None = None
) -> Work | None:
    """torch.distributed.barrier: blocks until every rank has called it. ``device_ids`` names CUDA devices and has no
    effect. Returns None, or with ``async_op`` a Work."""
    comm = communicator(group)
    if comm is None:
        options = {} if timeout is None else {"timeout": timeout}  # new in torch 2.13
        result: Work | None = dist.barrier(group, async_op, device_ids, **options)
        return result
    work: Work | None = ops.barrier(comm, async_op, _seconds(comm, timeout))
    return work


def monitored_barrier(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """torch.distributed.monitored_barrier: a barrier that names the ranks which do not come within ``timeout``, the
    first of them, or with ``wait_all_ranks`` all. The ranks of a torch process group meet in its store, those of a
    communicator in its own barrier. Raises an a2a.TimeoutError that is a RuntimeError."""
    comm = communicator(group)
    if comm is None or is_torchs(comm, group):
        at = dist.group.WORLD if group is None else group
        backend = backend_of(at) if isinstance(at, dist.ProcessGroup) else None
        if backend is not None:
            backend.monitored_barrier(timeout, wait_all_ranks)
        else:
            _torch_monitored_barrier(group, timeout, wait_all_ranks)
    else:
        seconds = _seconds(comm, timeout)
        over_communicator(comm, comm.timeout if seconds is None else seconds)


@collective
def _seconds(comm: Any, timeout: Any) -> float | None:
    try:
        return None if timeout is None else seconds_of(timeout, 0.0)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"timeout is {timeout!r}; pass a timedelta") from None


def _traced(async_op: bool, op: Any, *arguments: Any) -> None:
    """Call a custom operator (``_compile``) in place of the call, in a compiled graph: torch.compile orders them by the
    tensors that they write."""
    if async_op:
        raise NotImplementedError("async_op=True inside torch.compile: a graph holds no Work; leave it out")
    op(*arguments)


for _call in (barrier, monitored_barrier):
    untraced(_call)
