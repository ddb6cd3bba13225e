"""``alltoall``, ``alltoall_single`` and ``all_gather``: one call of the core each, with Paddle's names, and its
gradient.

Errors are raised before anything moves, as children of a2a.InvalidArgumentError that are also the class that Paddle
raises there; the peers get a2a.MismatchError.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import paddle

import a2a
from a2a.adapting import Dialect, collective

from . import _autograd
from ._errors import ArgumentTypeError, CallError
from ._task import Task

dialect = partial(
    Dialect,
    paddle.Tensor,
    type_error=ArgumentTypeError,
    counts_error=a2a.InvalidArgumentError,
    tensor_error=a2a.InvalidArgumentError,
    sequence=(list, tuple),
    differentiable=True,
)
_single = partial(dialect, "in_tensor", "out_tensor", "in_split_sizes", "out_split_sizes")
SINGLE = _single(order="out_tensor, in_tensor, in_split_sizes, out_split_sizes")
STREAM_SINGLE = _single(order="out_tensor, in_tensor, out_split_sizes, in_split_sizes")
_TENSOR = dialect("in_tensor", "out_tensor", order="output, input")
_LIST = dialect("in_tensor_list", "out_tensor_list", fills=True)
_GATHER = dialect("tensor", "out_tensor", counts_error=CallError)
_GATHER_LIST = dialect("tensor", "tensor_list", counts_error=CallError, fills=True, equal=True)


@collective
def alltoall_single(
    comm: a2a.Communicator,
    words: Dialect,
    out: Any,
    given: Any,
    out_sizes: Any,
    in_sizes: Any,
    sync_op: bool,
    use_calc_stream: bool,
) -> Task:
    """Exchange rows of dim 0, by sizes or in equal parts. ``words``: SINGLE or STREAM_SINGLE, whose orders of sizes
    differ."""
    require_call(sync_op, use_calc_stream)
    return _tensors(comm, words, out, given, out_sizes, in_sizes, sync_op)


@collective
def alltoall(comm: a2a.Communicator, out: Any, given: Any, sync_op: bool, use_calc_stream: bool) -> Task:
    """Exchange two tensors, divided equally, or two lists with one tensor for each rank."""
    require_call(sync_op, use_calc_stream)
    if out is None:
        raise CallError("The output should be specified.")
    if given is None:
        raise CallError("The input should be specified.")
    if isinstance(out, paddle.Tensor) != isinstance(given, paddle.Tensor):
        raise CallError("The output and input should be both tensor or tensor list.")
    if isinstance(out, paddle.Tensor):
        return _tensors(comm, _TENSOR, out, given, None, None, sync_op)
    if isinstance(given, (list, tuple)) and not given:
        raise CallError("The input tensor_list should not be empty.")
    return _lists(comm, out, given, sync_op)


@collective
def all_gather(comm: a2a.Communicator, out: Any, given: Any, sync_op: bool, use_calc_stream: bool) -> Task:
    """Gather into one tensor, concatenated or stacked, or into a list with one tensor for each rank."""
    require_call(sync_op, use_calc_stream)
    if isinstance(out, paddle.Tensor):
        return Task(comm, _GATHER.allgather(comm, out, given, not sync_op))
    return Task(comm, _GATHER_LIST.allgather_list(comm, out, given, not sync_op))


def require_call(sync_op: bool, use_calc_stream: bool) -> None:
    if use_calc_stream and not sync_op:
        raise CallError("use_calc_stream can only be true in sync op behavior.")
    if not paddle.in_dynamic_mode():
        raise CallError("a2a.paddle is only supported in dygraph mode; call paddle.disable_static()")


# ---- with gradients --------------------------------------------------------------------------------------------------


def _tensors(
    comm: a2a.Communicator, words: Dialect, out: Any, given: Any, out_sizes: Any, in_sizes: Any, sync_op: bool
) -> Task:
    recorded = _autograd.wants_gradient([given])
    if recorded:
        _autograd.require_no_leaf(out, "out_tensor")
        out_sizes, in_sizes = _kept(out_sizes), _kept(in_sizes)
    work = words.alltoall(comm, out, given, out_sizes, in_sizes, not sync_op)
    if recorded:

        def back(gradients: Sequence[Any]) -> Sequence[Any]:
            result = paddle.empty(shapes[0], gradients[0].dtype)
            words.alltoall(comm, result, gradients[0].detach(), in_sizes, out_sizes)
            return [result]

        def there(tensors: Sequence[Any]) -> Sequence[Any]:
            result = paddle.empty(shapes[1], tensors[0].dtype)
            words.alltoall(comm, result, tensors[0].detach(), out_sizes, in_sizes)
            return [result]

        shapes = given.shape, out.shape
        _autograd.connect(comm, [given], [out], back, there)
    return Task(comm, work)


def _lists(comm: a2a.Communicator, out: Any, given: Any, sync_op: bool) -> Task:
    recorded = isinstance(given, (list, tuple)) and _autograd.wants_gradient(given)
    if recorded and isinstance(out, (list, tuple)):
        for at, tensor in enumerate(out):
            _autograd.require_no_leaf(tensor, f"out_tensor_list[{at}]")
    work = _LIST.alltoall_list(comm, out, given, not sync_op)
    if recorded:

        def exchange(tensors: Sequence[Any], into: Sequence[Any]) -> Sequence[Any]:
            results = [paddle.empty(shape, tensors[0].dtype) for shape in into]
            _LIST.alltoall_list(comm, results, [tensor.detach() for tensor in tensors])
            return results

        shapes = [tensor.shape for tensor in given], [tensor.shape for tensor in out]
        _autograd.connect(comm, given, out, partial(exchange, into=shapes[0]), partial(exchange, into=shapes[1]))
    return Task(comm, work)


def _kept(sizes: Any) -> Any:
    """Return a copy for the backward pass, because the program may change its list before. An object that is no list is
    refused later."""
    if hasattr(sizes, "tolist"):
        return sizes.tolist()
    return list(sizes) if isinstance(sizes, (list, tuple)) else sizes
