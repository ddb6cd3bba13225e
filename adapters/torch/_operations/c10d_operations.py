"""Every operation of c10d on an a2a communicator. The functions of ``a2a.torch`` and the backend "a2a" both call these.

Each returns None when done, or with ``async_op`` a Work. Roots, peers and sources are ranks of the communicator.
Tensors may have any strides; ``staging`` prepares them for the core."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from a2a import InvalidArgumentError
from a2a.adapting import Dialect, refuse, refuse_message

from .._errors import ArgumentTypeError, SplitError, TensorError
from . import sparse
from .profiler import operation
from .reduce_ops import PREMUL_SUM, fold_of, summand
from .staging import (
    copied,
    direct,
    flat,
    inner,
    plain,
    require_list,
    require_plain_memory,
    require_tensor,
    require_writable,
    room_for,
    to_lists,
)
from .work import Work

__all__ = [
    "all_gather",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_axis",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "scatter",
    "send",
]

_dialect = partial(
    Dialect,
    Tensor,
    type_error=ArgumentTypeError,
    counts_error=SplitError,
    tensor_error=TensorError,
    complex_as_real=True,
)
_SINGLE = _dialect("input", "output", "input_split_sizes", "output_split_sizes")
_LIST = _dialect("input_tensor_list", "output_tensor_list")
_GATHER = _dialect("input_tensor", "output_tensor")
_GATHER_LIST = _dialect("tensor", "tensor_list")
_ROOT_LIST = _dialect("tensor", "gather_list")
Seconds = float | None  # the deadline of one operation; None: the communicator's
_alltoall, _allgather = _SINGLE.alltoall, _GATHER.allgather  # looked up once


def _work(work: Any, outputs: list[Any], then: Any = None) -> Work | None:
    """Return the caller's Work for the core's Work."""
    if work is not None:
        return Work(work, outputs, then)
    if then is not None:
        then()
    return None


# ---- all to all ------------------------------------------------------------------------------------------------------


@operation("all_to_all_single", given=2)
def all_to_all_single(
    comm: Any, output: Any, input: Any, output_splits: Any, input_splits: Any, async_op: bool, seconds: Seconds = None
) -> Any:
    if direct(output) and direct(input):
        work = _alltoall(comm, output, input, output_splits, input_splits, async_op, seconds)
        return None if work is None else Work(work, [output])
    room, then = _output(comm, "output", output)
    work = _alltoall(comm, room, inner(input), output_splits, input_splits, async_op, seconds)
    return _work(work, [output], then)


@operation("all_to_all", given=2)
def all_to_all(comm: Any, outputs: Any, inputs: Any, async_op: bool, seconds: Seconds = None) -> Any:
    if _all_direct(outputs) and _all_direct(inputs):
        return _work(_LIST.alltoall_list(comm, outputs, inputs, async_op, seconds), outputs)
    rooms = [_output(comm, f"output_tensor_list[{at}]", output)[0] for at, output in enumerate(outputs)]
    work = _LIST.alltoall_list(comm, rooms, [inner(one) for one in inputs], async_op, seconds)
    return _work(work, outputs, to_lists(outputs, rooms))


@operation("all_to_all_axis", given=2)
def all_to_all_axis(
    comm: Any, output: Tensor, input: Tensor, split_axis: int, concat_axis: int, to: list[int], from_: list[int]
) -> None:
    """For host tensors. Requires sizes that fit them."""
    comm.alltoallv(input, to, output, from_, split_axis=split_axis, concat_axis=concat_axis)


@operation("all_gather_single", given=2)
def all_gather_single(comm: Any, output: Any, input: Any, async_op: bool, seconds: Seconds = None) -> Any:
    if direct(output) and direct(input):
        work = _allgather(comm, output, input, async_op, seconds)
        return None if work is None else Work(work, [output])
    room, then = _output(comm, "output_tensor", output)
    return _work(_allgather(comm, room, inner(input), async_op, seconds), [output], then)


@operation("all_gather", given=2)
def all_gather(comm: Any, outputs: Any, input: Any, async_op: bool, seconds: Seconds = None) -> Any:
    if _all_direct(outputs) and direct(input):
        return _work(_GATHER_LIST.allgather_list(comm, outputs, input, async_op, seconds), outputs)
    rooms = [_output(comm, f"tensor_list[{at}]", output)[0] for at, output in enumerate(outputs)]
    work = _GATHER_LIST.allgather_list(comm, rooms, inner(input), async_op, seconds)
    return _work(work, outputs, to_lists(outputs, rooms))


@operation("barrier")
def barrier(comm: Any, async_op: bool, seconds: Seconds = None) -> Any:
    return _work(_SINGLE.barrier(comm, async_op, seconds), [])


# ---- reductions ------------------------------------------------------------------------------------------------------


@operation("all_reduce", given=1)
def all_reduce(comm: Any, tensor: Any, op: Any, async_op: bool, seconds: Seconds = None) -> Any:
    require_tensor(comm, "tensor", tensor)
    fold = fold_of(comm, op)
    if tensor.is_sparse:
        return sparse.all_reduce(comm, tensor, op, async_op, seconds)
    if fold is PREMUL_SUM:
        room, then = room_for(comm, "tensor", tensor)
        work = comm.allreduce(summand(comm, tensor, op, fold), room, fold, async_op=async_op, timeout=seconds)
        return _work(work, [tensor], then)
    if plain(tensor):
        work = comm.allreduce(tensor, None, fold, async_op=async_op, timeout=seconds)
        return None if work is None else Work(work, [tensor])
    room, then = copied(comm, "tensor", tensor)
    return _work(comm.allreduce(room, None, fold, async_op=async_op, timeout=seconds), [tensor], then)


@operation("reduce", given=1)
def reduce(comm: Any, tensor: Any, root: int, op: Any, async_op: bool, seconds: Seconds = None) -> Any:
    require_tensor(comm, "tensor", tensor)
    fold = fold_of(comm, op)
    send = summand(comm, tensor, op, fold)
    recv, then = room_for(comm, "tensor", tensor) if comm.rank == root else (None, None)
    work = comm.reduce(send, recv, root, fold, async_op=async_op, timeout=seconds)
    return _work(work, [tensor], then)


@operation("reduce_scatter_single", given=2)
def reduce_scatter_single(comm: Any, output: Any, input: Any, op: Any, async_op: bool, seconds: Seconds = None) -> Any:
    require_tensor(comm, "output", output)
    require_tensor(comm, "input", input)
    fold = fold_of(comm, op)
    if fold is not PREMUL_SUM and plain(output) and plain(input):
        work = comm.reduce_scatter(input, output, fold, async_op=async_op, timeout=seconds)
        return None if work is None else Work(work, [output])
    room, then = room_for(comm, "output", output)
    work = comm.reduce_scatter(summand(comm, input, op, fold), room, fold, async_op=async_op, timeout=seconds)
    return _work(work, [output], then)


@operation("reduce_scatter", given=2)
def reduce_scatter(comm: Any, output: Any, inputs: Any, op: Any, async_op: bool, seconds: Seconds = None) -> Any:
    require_tensor(comm, "output", output)
    require_list(comm, "input_list", inputs, comm.size)
    fold = fold_of(comm, op)
    _require_one_dtype(comm, "input_list", inputs, "output", output)
    send = summand(comm, flat(comm, inputs), op, fold)
    room, then = room_for(comm, "output", output)
    counts = [one.numel() for one in inputs]
    work = comm.reduce_scatterv(send, counts, room, fold, async_op=async_op, timeout=seconds)
    return _work(work, [output], then)


# ---- with a root -----------------------------------------------------------------------------------------------------


@operation("broadcast", given=1)
def broadcast(comm: Any, tensor: Any, root: int, async_op: bool, seconds: Seconds = None) -> Any:
    require_tensor(comm, "tensor", tensor)
    if plain(tensor):
        work = comm.broadcast(tensor, root, async_op=async_op, timeout=seconds)
        return None if work is None else Work(work, [tensor])
    room, then = (inner(tensor), None) if comm.rank == root else room_for(comm, "tensor", tensor)
    return _work(comm.broadcast(room, root, async_op=async_op, timeout=seconds), [tensor], then)


@operation("gather", given=1)
def gather(comm: Any, tensor: Any, outputs: Any, root: int, async_op: bool, seconds: Seconds = None) -> Any:
    """``outputs``: None where this rank is not the root."""
    require_tensor(comm, "tensor", tensor)
    room = then = None
    if comm.rank == root:
        require_plain_memory(comm, "tensor", tensor)
        require_list(comm, "gather_list", outputs, comm.size)
        _require_alike(comm, "gather_list", outputs, "tensor", tensor)
        for at, output in enumerate(outputs):
            require_writable(comm, f"gather_list[{at}]", output)
        if tensor.is_cpu and all(one.is_cpu for one in outputs):
            rooms = [one.detach() for one in outputs]
            return _work(_ROOT_LIST.gather_list(comm, rooms, inner(tensor), root, async_op, seconds), outputs)
        room = tensor.new_empty((comm.size, *tensor.shape))
        then = to_lists(outputs, room.unbind(0))
    work = comm.gather(inner(tensor), room, root, async_op=async_op, timeout=seconds)
    return _work(work, outputs or [], then)


@operation("scatter", given=2)
def scatter(comm: Any, output: Any, inputs: Any, root: int, async_op: bool, seconds: Seconds = None) -> Any:
    """``inputs``: None where this rank is not the root."""
    require_tensor(comm, "tensor", output)
    send = None
    if comm.rank == root:
        require_list(comm, "scatter_list", inputs, comm.size)
        _require_alike(comm, "scatter_list", inputs, "tensor", output)
        send = flat(comm, inputs)
    room, then = room_for(comm, "tensor", output)
    return _work(comm.scatter(send, room, root, async_op=async_op, timeout=seconds), [output], then)


# ---- from one rank to another: no other rank takes part --------------------------------------------------------------


@operation("send", given=1, of_all=False)
def send(comm: Any, tensor: Any, peer: int, tag: int, async_op: bool) -> Any:
    try:
        require_tensor(None, "tensor", tensor)
        values = inner(tensor)
    except BaseException as error:
        raise refuse_message(comm, error, peer, tag, sends=True) from None
    return _work(comm.send(values, peer, tag, async_op=async_op), [tensor])


@operation("recv", given=1, of_all=False)
def recv(comm: Any, tensor: Any, peer: int | None, tag: int, async_op: bool) -> Any:
    """``peer``: None for any. Returns the sender's rank without ``async_op``."""
    try:
        require_tensor(None, "tensor", tensor)
        room, then = room_for(None, "tensor", tensor)
    except BaseException as error:
        raise refuse_message(comm, error, peer, tag, sends=False) from None
    work = comm.recv(room, peer, tag, async_op=async_op)
    if async_op:
        return Work(work, [tensor], then)
    if then is not None:
        then()
    return work


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _all_direct(tensors: Any) -> bool:
    return not isinstance(tensors, list) or all(map(direct, tensors))


def _output(comm: Any, name: str, output: Any) -> Any:
    """room_for() an output without a gradient of its own. The core refuses outputs that require one, and objects that
    are no tensors."""
    if direct(output) or (output.requires_grad and torch.is_grad_enabled()):
        return output, None
    return room_for(comm, name, output)


def _require_one_dtype(comm: Any, list_name: str, tensors: list[Tensor], name: str, tensor: Tensor) -> None:
    for at, one in enumerate(tensors):
        if one.dtype != tensor.dtype:
            text = f"{list_name}[{at}] is {one.dtype}, but {name} is {tensor.dtype}"
            raise refuse(comm, InvalidArgumentError(text))


def _require_alike(comm: Any, list_name: str, tensors: list[Tensor], name: str, tensor: Tensor) -> None:
    _require_one_dtype(comm, list_name, tensors, name, tensor)
    for at, one in enumerate(tensors):
        if one.numel() != tensor.numel():
            text = f"{list_name}[{at}] {tuple(one.shape)} has not as many elements as {name} {tuple(tensor.shape)}"
            raise refuse(comm, InvalidArgumentError(text))
