"""The exchanges behind ``alltoall``, ``alltoall_single`` and ``all_gather``: check, one call of the core, gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import paddle
from paddle.distributed import stream as _paddle

import a2a

from . import _autograd
from ._arguments import (
    CallError,
    Refusing,
    require_apart,
    require_differentiable,
    require_same_dtype,
    require_streams,
    require_tensor,
    require_tensors,
    split_sizes,
)
from ._device import is_paddles
from ._groups import get_communicator, member
from ._task import Task

# Paddle's tensors have at most 9 dimensions. A row of these and their number fits into one message of the core.
_MAX_NDIM = 9


def alltoall_single(
    out: Any,
    given: Any,
    out_sizes: Any,
    in_sizes: Any,
    group: Any,
    sync_op: bool,
    use_calc_stream: bool,
    order: str,
) -> Task | None:
    """Rows of dim 0, by sizes or in equal parts. ``order`` is the order of arguments as the caller knows it."""
    if is_paddles(given, group):
        theirs: Task | None = _paddle.alltoall_single(out, given, out_sizes, in_sizes, group, sync_op, use_calc_stream)
        return theirs
    comm = member(group)
    if comm is None:
        return None
    with Refusing(comm):
        require_streams(sync_op, use_calc_stream)
        counts = _divided(comm, out, out_sizes, given, in_sizes, order)
    return _alltoall_tensors(comm, out, given, *counts, sync_op)


def alltoall(out: Any, given: Any, group: Any, sync_op: bool, use_calc_stream: bool) -> Task | None:
    """Two tensors, divided equally, or two lists with one tensor for each rank."""
    if is_paddles(given, group):
        theirs: Task | None = _paddle.alltoall(out, given, group, sync_op, use_calc_stream)
        return theirs
    comm = member(group)
    if comm is None:
        return None
    with Refusing(comm):
        require_streams(sync_op, use_calc_stream)
        if out is None:
            raise CallError("The output should be specified.")
        if given is None:
            raise CallError("The input should be specified.")
        if isinstance(out, paddle.Tensor) != isinstance(given, paddle.Tensor):
            raise CallError("The output and input should be both tensor or tensor list.")
        if isinstance(out, paddle.Tensor):
            counts = _divided(comm, out, None, given, None, "output, input")
        else:
            sends, recvs = _listed(comm, out, given)
    if isinstance(out, paddle.Tensor):
        return _alltoall_tensors(comm, out, given, *counts, sync_op)
    return _alltoall_lists(comm, recvs or _made_for(comm, sends), sends, sync_op, into=None if recvs else out)


def all_gather(out: Any, given: Any, group: Any, sync_op: bool, use_calc_stream: bool) -> Task:
    """Into one tensor, concatenated or stacked, or into a list with one tensor for each rank."""
    if is_paddles(given, group):
        theirs: Task = _paddle.all_gather(out, given, group, sync_op, use_calc_stream)
        return theirs
    comm = get_communicator(group)
    if comm is None:
        raise CallError(
            "The group should not be None and all ranks which invoke this operation should be the member of this group."
        )
    with Refusing(comm):
        require_streams(sync_op, use_calc_stream)
        require_tensor(given, "tensor")
        if isinstance(out, paddle.Tensor):
            _require_output(out, "out_tensor", given, "tensor", comm.size)
            gathered, finish = _autograd.plain(out), out._bump_inplace_version
        else:
            outputs = _gathered(out, given, comm.size)
            gathered = paddle.empty([comm.size, *given.shape], given.dtype)
            finish = _distribution(gathered, outputs)
    work = comm.allgather(given, gathered, async_op=not sync_op)
    if isinstance(out, list) and not out:
        out.extend(outputs)
    return Task(comm, work, finish)


# ---- tensors ---------------------------------------------------------------------------------------------------------


def _divided(
    comm: a2a.Communicator, out: Any, out_sizes: Any, given: Any, in_sizes: Any, order: str
) -> tuple[list[int], list[int]]:
    """What comes from each rank and what goes to it, in rows of dim 0 of the one and of the other tensor."""
    require_tensor(out, "out_tensor")
    require_tensor(given, "in_tensor")
    require_same_dtype(out, "out_tensor", given, "in_tensor")
    _require_no_leaf([out], "out_tensor", [given])
    require_apart([("out_tensor", out)], [("in_tensor", given)])
    to = split_sizes(in_sizes, "in_split_sizes", given, "in_tensor", comm.size, order)
    from_ = split_sizes(out_sizes, "out_split_sizes", out, "out_tensor", comm.size, order)
    sent, expected = to[comm.rank] * math.prod(given.shape[1:]), from_[comm.rank] * math.prod(out.shape[1:])
    if sent != expected:
        raise a2a.InvalidArgumentError(
            f"in_tensor of shape {list(given.shape)} has {sent} elements for this rank itself (in_split_sizes {to}), "
            f"but out_tensor of shape {list(out.shape)} expects {expected} (out_split_sizes {from_}); the order of "
            f"this call is {order}"
        )
    return from_, to


def _alltoall_tensors(
    comm: a2a.Communicator, out: Any, given: Any, from_: list[int], to: list[int], sync_op: bool
) -> Task:
    same_rows = given.shape[1:] == out.shape[1:]
    if not same_rows:  # Then both sides count in elements.
        to = [rows * math.prod(given.shape[1:]) for rows in to]
        from_ = [rows * math.prod(out.shape[1:]) for rows in from_]

    def view(tensor: Any) -> Any:
        return _autograd.plain(tensor) if same_rows else tensor.detach().reshape([-1])

    shapes = list(given.shape), list(out.shape)

    def back(gradients: Sequence[Any]) -> Sequence[Any]:
        gradient = paddle.empty(shapes[0], gradients[0].dtype)
        comm.alltoallv(view(gradients[0]), from_, view(gradient), to)
        return [gradient]

    def there(tensors: Sequence[Any]) -> Sequence[Any]:
        result = paddle.empty(shapes[1], tensors[0].dtype)
        comm.alltoallv(view(tensors[0]), to, view(result), from_)
        return [result]

    work = comm.alltoallv(view(given), to, view(out), from_, async_op=not sync_op)
    _autograd.connect([given], [out], back, there)
    return Task(comm, work)


# ---- lists -----------------------------------------------------------------------------------------------------------


def _listed(comm: a2a.Communicator, out: Any, given: Any) -> tuple[list[Any], list[Any]]:
    """The two lists, checked. The outputs may be none, which is for _made_for() to fill."""
    if isinstance(given, (list, tuple)) and not given:
        raise CallError("The input tensor_list should not be empty.")
    sends = require_tensors(given, "in_tensor_list", comm.size)
    recvs = [] if isinstance(out, list) and not out else require_tensors(out, "out_tensor_list", comm.size)
    for tensors, name in ((sends, "in_tensor_list"), (recvs, "out_tensor_list")):
        for at, tensor in enumerate(tensors):
            require_same_dtype(tensor, f"{name}[{at}]", sends[0], "in_tensor_list[0]")
    _require_no_leaf(recvs, "out_tensor_list", sends)
    require_apart(
        [(f"out_tensor_list[{at}]", tensor) for at, tensor in enumerate(recvs)],
        [(f"in_tensor_list[{at}]", tensor) for at, tensor in enumerate(sends)],
    )
    return sends, recvs


def _made_for(comm: a2a.Communicator, sends: list[Any]) -> list[Any]:
    """A tensor for what comes from each rank. Takes a round of its own, in which every rank tells every other the shape
    of what it sends."""
    given = np.zeros((comm.size, 1 + _MAX_NDIM), np.int64)
    for row, tensor in zip(given, sends, strict=True):
        row[0], row[1 : 1 + tensor.ndim] = tensor.ndim, tensor.shape
    wanted = np.empty_like(given)
    try:
        comm.alltoall(given, wanted)
    except a2a.MismatchError as error:
        error.args = (f"{error} (out_tensor_list is empty on rank {comm.rank}; it must be so on all ranks or on none)",)
        raise
    with Refusing(comm):
        return [paddle.empty(row[1 : 1 + row[0]].tolist(), sends[0].dtype) for row in wanted]


def _alltoall_lists(
    comm: a2a.Communicator, recvs: list[Any], sends: list[Any], sync_op: bool, into: list[Any] | None
) -> Task:
    """``into`` is the caller's list when it is to get the outputs."""
    shapes = [list(tensor.shape) for tensor in sends], [list(tensor.shape) for tensor in recvs]

    def exchange(tensors: Sequence[Any], into: list[list[int]]) -> Sequence[Any]:
        found = [paddle.empty(shape, tensors[0].dtype) for shape in into]
        comm.alltoall_list(tensors, found)
        return found

    work = comm.alltoall_list(sends, [_autograd.plain(recv) for recv in recvs], async_op=not sync_op)
    _autograd.connect(sends, recvs, partial(exchange, into=shapes[0]), partial(exchange, into=shapes[1]))
    if into is not None:
        into.extend(recvs)
    return Task(comm, work)


# ---- all_gather ------------------------------------------------------------------------------------------------------


def _gathered(out: Any, given: Any, size: int) -> list[Any]:
    """The outputs of the list form: those of the caller, or new ones for an empty list."""
    if isinstance(out, list) and not out:
        return [paddle.empty(given.shape, given.dtype) for _ in range(size)]
    outputs = require_tensors(out, "tensor_list", size)
    for at, output in enumerate(outputs):
        _require_output(output, f"tensor_list[{at}]", given, "tensor", 1)
    return outputs


def _distribution(gathered: Any, outputs: list[Any]) -> Callable[[], None]:
    """What takes the parts to their tensors, once they have come."""

    def finish() -> None:
        for at, output in enumerate(outputs):
            paddle.assign(gathered[at].reshape(output.shape), output.detach())
            output._bump_inplace_version()

    return finish


# ---- checks ----------------------------------------------------------------------------------------------------------


def _require_no_leaf(outputs: list[Any], name: str, inputs: list[Any]) -> None:
    if _autograd.wants_gradient(inputs):
        for output in outputs:
            require_differentiable(output, name)


def _require_output(out: Any, name: str, given: Any, given_name: str, times: int) -> None:
    """An output for ``times`` as many elements as the input has."""
    require_tensor(out, name)
    require_same_dtype(out, name, given, given_name)
    if math.prod(out.shape) != times * math.prod(given.shape):
        raise CallError(
            f"{name} of shape {list(out.shape)} must have {times} times the elements of {given_name} of shape "
            f"{list(given.shape)}"
        )
