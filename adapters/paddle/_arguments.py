"""Checks of arguments, made before anything moves, with the error classes that Paddle's users catch."""

from __future__ import annotations

import itertools
from types import TracebackType
from typing import Any

import paddle

import a2a
from a2a import _core


class ArgumentTypeError(a2a.InvalidArgumentError, TypeError):
    """An argument is of the wrong type, where Paddle raises TypeError or ValueError."""


class CallError(a2a.InvalidArgumentError, RuntimeError):
    """A call that cannot be meant, where Paddle raises RuntimeError."""


class Refusing:
    """Around the checks that precede a call of ``comm``: whatever they raise is told to the peers, so that their call
    raises MismatchError naming this rank and the reason. The call itself tells them of its own errors."""

    def __init__(self, comm: a2a.Communicator) -> None:
        self.comm = comm

    def __enter__(self) -> None:
        if not paddle.in_dynamic_mode():
            error = CallError("a2a.paddle is only supported in dygraph mode; call paddle.disable_static()")
            raise _core.refuse(self.comm, error)

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            _core.refuse(self.comm, error)


def require_streams(sync_op: bool, use_calc_stream: bool) -> None:
    if use_calc_stream and not sync_op:
        raise CallError("use_calc_stream can only be true in sync op behavior.")


def require_tensor(tensor: Any, name: str) -> None:
    """A dense tensor that is contiguous."""
    if not isinstance(tensor, paddle.Tensor):
        kind = type(tensor)
        raise ArgumentTypeError(f"{name} must be a paddle.Tensor, but is {kind.__module__}.{kind.__name__}")
    if not tensor.is_dense():
        raise a2a.InvalidArgumentError(f"{name} is not a dense tensor; pass {name}.to_dense()")
    # Paddle does not call every empty tensor contiguous: one of shape [0, 2] that came through DLPack, for example.
    if not tensor.is_contiguous() and tensor.size > 0:
        raise a2a.InvalidArgumentError(
            f"{name} of shape {list(tensor.shape)} is not contiguous; pass {name}.contiguous(), and receive into a "
            "contiguous tensor"
        )


def require_tensors(tensors: Any, name: str, size: int) -> list[Any]:
    """One tensor for each rank."""
    try:
        found = list(tensors)
    except TypeError:
        raise ArgumentTypeError(f"{name} must be a list of tensors, but is {type(tensors).__name__}") from None
    if len(found) != size:
        raise a2a.InvalidArgumentError(f"{name} has {len(found)} tensors, but the group has {size} ranks")
    for at, tensor in enumerate(found):
        require_tensor(tensor, f"{name}[{at}]")
    return found


def require_same_dtype(out: Any, out_name: str, given: Any, given_name: str) -> None:
    if out.dtype != given.dtype:
        raise a2a.InvalidArgumentError(
            f"Input and output tensors should have the same data type: {given_name} is {dtype_name(given)}, but "
            f"{out_name} is {dtype_name(out)}"
        )


def require_apart(named: list[tuple[str, Any]], inputs: list[tuple[str, Any]]) -> None:
    """No output shares memory with another tensor of the call."""
    spans = [(*_span(tensor), name, name in dict(named)) for name, tensor in [*named, *inputs] if tensor.size > 0]
    spans.sort(key=lambda span: span[:2])
    for (_, end, first, first_out), (begin, _, second, second_out) in itertools.pairwise(spans):
        if begin < end and (first_out or second_out):
            raise a2a.InvalidArgumentError(f"{first} and {second} share memory; receive into a tensor of its own")


def _span(tensor: Any) -> tuple[int, int]:
    begin = tensor.data_ptr()
    return begin, begin + tensor.size * tensor.element_size()


def require_differentiable(out: Any, name: str) -> None:
    """A leaf that asks for a gradient of its own cannot become the result of an exchange that has one."""
    if not out.stop_gradient and out.is_leaf:
        raise a2a.InvalidArgumentError(
            f"{name} is a leaf with stop_gradient=False, and the input has a gradient, too; pass an output with "
            "stop_gradient=True"
        )


def dtype_name(tensor: Any) -> str:
    return str(tensor.dtype).rpartition(".")[2]


def split_sizes(sizes: Any, name: str, tensor: Any, tensor_name: str, size: int, order: str) -> list[int]:
    """Rows of dim 0 for each rank; equal parts for None and an empty list, as in Paddle. ``order`` is the order of the
    call's arguments, for whoever mixes it up."""
    if not tensor.shape:
        raise a2a.InvalidArgumentError(f"{tensor_name} is 0-D and has no dim[0] to split")
    rows = tensor.shape[0]
    counts = [] if sizes is None else integers(sizes, name)
    if not counts:
        if rows % size:
            raise a2a.InvalidArgumentError(
                f"dim[0] of {tensor_name} is {rows}, which {size} ranks cannot share equally; pass {name}"
            )
        return [rows // size] * size
    if len(counts) != size:
        raise a2a.InvalidArgumentError(
            f"The length of {name} must be equal to world_size: {counts} has {len(counts)} entries for {size} ranks"
        )
    if sum(counts) != rows:
        raise a2a.InvalidArgumentError(
            f"The sum of {name} must be equal to dim[0] of {tensor_name}: {counts} sums to {sum(counts)}, but the "
            f"shape is {list(tensor.shape)} (the order of this call is {order})"
        )
    return counts


def integers(items: Any, name: str) -> list[int]:
    """A list of integers that are not negative, from a sequence or a 1-D tensor of any framework."""
    found = items.tolist() if hasattr(items, "tolist") else items
    if not isinstance(found, (list, tuple)):
        raise ArgumentTypeError(f"{name} must be a list of int, but is {type(items).__name__}")
    for at, item in enumerate(found):
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise ArgumentTypeError(f"{name} must be a list of int, but {name}[{at}] is {item!r}")
        if item < 0:
            raise a2a.InvalidArgumentError(f"{name}[{at}] is {item}; a number of rows cannot be negative")
    return [int(item) for item in found]


def expert_counts(counts: Any, name: str) -> list[int]:
    """local_count or global_count: a 1-D int64 tensor, on any device, or a list."""
    if hasattr(counts, "dtype"):
        if dtype_name(counts) != "int64":
            raise a2a.InvalidArgumentError(f"Please use int64 type in {name}. It is {dtype_name(counts)}")
        if len(counts.shape) != 1:
            raise a2a.InvalidArgumentError(f"{name} must be 1-D, but its shape is {list(counts.shape)}")
    elif not isinstance(counts, (list, tuple)):
        raise ArgumentTypeError(f"{name} must be a 1-D int64 tensor, but is {type(counts).__name__}")
    return integers(counts, name)
