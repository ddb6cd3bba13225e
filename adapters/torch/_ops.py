"""The calls as custom operators, which torch.compile can trace.

Groups are passed as names, splits as numbers that may be symbolic. A differentiable operator makes its own output; its
backward pass is the operator that sends gradients the other way, and so is differentiable again. An operator whose name
ends in _ writes the output it is given and has no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from a2a.adapting import refuse

from . import _axes, _collectives
from ._errors import SplitError
from ._groups import by_name, communicator
from ._staging import inner

__all__ = ["all_gather", "all_to_all", "all_to_all_axis", "all_to_all_single", "global_gather", "global_scatter"]

_operator: Any = torch.library.custom_op


def _plain(tensor: Tensor) -> Tensor:
    """Return the tensor with its values in its own memory: gradients may be lazily conjugated."""
    return inner(tensor.resolve_conj().resolve_neg())


# ---- all_to_all_single -----------------------------------------------------------------------------------------------


def _single(
    input: Tensor, shape: Sequence[int], output_split_sizes: Sequence[int], input_split_sizes: Sequence[int], group: str
) -> Tensor:
    output: Tensor = input.new_empty(shape)
    splits = list(output_split_sizes), list(input_split_sizes)
    _collectives.all_to_all_single(output, _plain(input), *splits, by_name(group))
    return output


def _single_setup(ctx: Any, inputs: Any, output: Any) -> None:
    input, _, ctx.output_split_sizes, ctx.input_split_sizes, ctx.group = inputs
    ctx.shape = input.shape


def _single_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    back = all_to_all_single(grad, ctx.shape, ctx.input_split_sizes, ctx.output_split_sizes, ctx.group)
    return back, None, None, None, None


# The result is a new tensor of the given shape. Empty split sizes mean equal parts.
all_to_all_single = _operator("a2a::all_to_all_single", _single, mutates_args=())
all_to_all_single.register_fake(
    lambda input, shape, output_split_sizes, input_split_sizes, group: input.new_empty(shape)
)
all_to_all_single.register_autograd(_single_backward, setup_context=_single_setup)


# ---- all_to_all ------------------------------------------------------------------------------------------------------


def _empty(inputs: Sequence[Tensor], like: Sequence[Tensor], group: str) -> list[Tensor]:
    return [inputs[0].new_empty(one.shape) for one in like]


def _list(inputs: Sequence[Tensor], like: Sequence[Tensor], group: str) -> list[Tensor]:
    outputs = _empty(inputs, like, group)
    _collectives.all_to_all(outputs, [_plain(one) for one in inputs], by_name(group))
    return outputs


def _list_setup(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, _, ctx.group = inputs
    ctx.shapes = [one.shape for one in tensors]


def _list_backward(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    like = [grads[0].new_empty(()).expand(shape) for shape in ctx.shapes]
    return all_to_all(grads, like, ctx.group), [None] * len(grads), None


# The results are new tensors with the shapes of ``like``, which is not read otherwise.
all_to_all = _operator("a2a::all_to_all", _list, mutates_args=())
all_to_all.register_fake(_empty)
all_to_all.register_autograd(_list_backward, setup_context=_list_setup)


# ---- all_to_all_axis -------------------------------------------------------------------------------------------------


def _axis(
    input: Tensor,
    split_axis: int,
    concat_axis: int,
    split_sizes: Sequence[int],
    concat_sizes: Sequence[int],
    group: str,
) -> Tensor:
    return _axes.exchange(input, split_axis, concat_axis, split_sizes, concat_sizes, by_name(group))


def _axis_fake(input: Tensor, *division: Any) -> Tensor:
    split_axis, concat_axis, split_sizes, concat_sizes, group = division
    shape = _axes.shape_of(input, split_axis, concat_axis, split_sizes, concat_sizes, by_name(group))
    return input.new_empty(shape)


def _axis_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, *ctx.division, ctx.group = inputs


def _axis_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    split_axis, concat_axis, split_sizes, concat_sizes = ctx.division
    back = all_to_all_axis(grad, concat_axis, split_axis, concat_sizes, split_sizes, ctx.group)
    return back, None, None, None, None, None


# Empty sizes mean equal parts, in the backward pass, too.
all_to_all_axis = _operator("a2a::all_to_all_axis", _axis, mutates_args=())
all_to_all_axis.register_fake(_axis_fake)
all_to_all_axis.register_autograd(_axis_backward, setup_context=_axis_setup)


# ---- all_gather ------------------------------------------------------------------------------------------------------


def _gather(input: Tensor, shape: Sequence[int], ranks: int, group: str) -> Tensor:
    output: Tensor = input.new_empty(shape)
    _collectives.all_gather_single(output, _plain(input), by_name(group))
    return output


def _gather_setup(ctx: Any, inputs: Any, output: Any) -> None:
    input, _, ctx.ranks, ctx.group = inputs
    ctx.shape = input.shape


def _gather_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    # Every rank's gradient of this rank's part arrives here, and they are added in rank order.
    parts = grad.reshape(ctx.ranks, *ctx.shape)
    back = all_to_all_single(parts, parts.shape, [], [], ctx.group)
    return back.sum(0), None, None, None


# The result is a new tensor of the given shape, which has ``ranks`` times the elements.
all_gather = _operator("a2a::all_gather", _gather, mutates_args=())
all_gather.register_fake(lambda input, shape, ranks, group: input.new_empty(shape))
all_gather.register_autograd(_gather_backward, setup_context=_gather_setup)


# ---- global_scatter and global_gather --------------------------------------------------------------------------------


def _global(name: str, x: Tensor, local_count: Tensor, global_count: Tensor, rows: int, group: str) -> Tensor:
    comm = communicator(by_name(group))
    if comm is None:
        raise RuntimeError(f"{name} needs ranks of one host that are members of the group")
    counts_name, counts = ("local_count", local_count) if name == "global_scatter" else ("global_count", global_count)
    if x.shape[0] != int(counts.sum()):  # rows that are not sent would have no gradient
        text = (
            f"{counts_name} {counts.tolist()} sums to {int(counts.sum())}, but x {tuple(x.shape)} has {x.shape[0]} rows"
        )
        raise refuse(comm, SplitError(text))
    out = x.new_empty((rows, *x.shape[1:])) if rows >= 0 else None
    result: Tensor = getattr(comm, name)(_plain(x), local_count, global_count, out)
    return result


def _global_fake(x: Tensor, local_count: Tensor, global_count: Tensor, rows: int, group: str) -> Any:
    size: Any = rows
    if isinstance(rows, int) and rows < 0:
        size = torch.library.get_ctx().new_dynamic_size()
    return x.new_empty((size, *x.shape[1:]))


def _global_setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, local_count, global_count, _, ctx.group = inputs
    ctx.save_for_backward(local_count, global_count)
    ctx.rows = x.shape[0]


def _scatter(x: Tensor, local_count: Tensor, global_count: Tensor, rows: int, group: str) -> Tensor:
    return _global("global_scatter", x, local_count, global_count, rows, group)


def _scatter_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return global_gather(grad, *ctx.saved_tensors, ctx.rows, ctx.group), None, None, None, None


def _gather_back(x: Tensor, local_count: Tensor, global_count: Tensor, rows: int, group: str) -> Tensor:
    return _global("global_gather", x, local_count, global_count, rows, group)


def _gather_back_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return global_scatter(grad, *ctx.saved_tensors, ctx.rows, ctx.group), None, None, None, None


# ``rows`` is the number of received rows; -1: not known before the counts are.
global_scatter = _operator("a2a::global_scatter", _scatter, mutates_args=())
global_scatter.register_fake(_global_fake)
global_scatter.register_autograd(_scatter_backward, setup_context=_global_setup)
global_gather = _operator("a2a::global_gather", _gather_back, mutates_args=())
global_gather.register_fake(_global_fake)
global_gather.register_autograd(_gather_back_backward, setup_context=_global_setup)


# ---- into given outputs ----------------------------------------------------------------------------------------------


def _into_single(
    output: Tensor, input: Tensor, output_split_sizes: Sequence[int], input_split_sizes: Sequence[int], group: str
) -> None:
    splits = list(output_split_sizes), list(input_split_sizes)
    _collectives.all_to_all_single(output, input, *splits, by_name(group))


def _into_list(outputs: Sequence[Tensor], inputs: Sequence[Tensor], group: str) -> None:
    _collectives.all_to_all(list(outputs), list(inputs), by_name(group))


def _into_gather_list(outputs: Sequence[Tensor], input: Tensor, group: str) -> None:
    _collectives.all_gather(list(outputs), input, by_name(group))


def _into_gather(output: Tensor, input: Tensor, group: str) -> None:
    _collectives.all_gather_single(output, input, by_name(group))


_operator("a2a::all_to_all_single_", _into_single, mutates_args={"output"})
_operator("a2a::all_to_all_", _into_list, mutates_args={"outputs"})
_operator("a2a::all_gather_", _into_gather, mutates_args={"output"})
_operator("a2a::all_gather_list_", _into_gather_list, mutates_args={"outputs"})
