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

from .._calls import axes, collectives
from .._errors import SplitError
from .._operations.staging import inner
from .._process_group.collective import of_named_group
from .._process_group.communicators import by_name, communicator
from .linear import Linear

__all__ = ["all_gather", "all_to_all", "all_to_all_axis", "all_to_all_single", "global_gather", "global_scatter"]

_Shape = Sequence[int]


def _plain(tensor: Tensor) -> Tensor:
    """Return the tensor with its values in its own memory: gradients may be lazily conjugated."""
    return inner(tensor.resolve_conj().resolve_neg())


# ---- all_to_all_single -----------------------------------------------------------------------------------------------


def _single(input: Tensor, shape: _Shape, output_split_sizes: _Shape, input_split_sizes: _Shape, group: str) -> Tensor:
    output: Tensor = input.new_empty(shape)
    splits = list(output_split_sizes), list(input_split_sizes)
    collectives.all_to_all_single(output, _plain(input), *splits, by_name(group))
    return output


# The result is a new tensor of the given shape. Empty split sizes mean equal parts.
all_to_all_single: Linear = Linear(
    "all_to_all_single",
    _single,
    lambda input, shape, output_split_sizes, input_split_sizes, group: input.new_empty(shape),
    lambda shapes, _, outs, ins, group: (all_to_all_single, (shapes[0], ins, outs, group)),
    lambda _, size, shape, *others: ([*shape, size], *others),
)


# ---- all_to_all ------------------------------------------------------------------------------------------------------


def _empty(inputs: Sequence[Tensor], like: Sequence[Tensor], group: str) -> list[Tensor]:
    return [inputs[0].new_empty(one.shape) for one in like]


def _list(inputs: Sequence[Tensor], like: Sequence[Tensor], group: str) -> list[Tensor]:
    outputs = _empty(inputs, like, group)
    collectives.all_to_all(outputs, [_plain(one) for one in inputs], by_name(group))
    return outputs


def _list_back(shapes: Sequence[Any], like: Sequence[Tensor], group: str) -> Any:
    return all_to_all, ([like[0].new_empty(()).expand(shape) for shape in shapes], group)


def _list_batched(_: Tensor, size: int, like: Sequence[Tensor], group: str) -> Any:
    return [one.unsqueeze(-1).expand(*one.shape, size) for one in like], group


# The results are new tensors with the shapes of ``like``, which is not read otherwise.
all_to_all: Linear = Linear("all_to_all", _list, _empty, _list_back, _list_batched)


# ---- all_to_all_axis -------------------------------------------------------------------------------------------------


def _axis(
    input: Tensor, split_axis: int, concat_axis: int, split_sizes: _Shape, concat_sizes: _Shape, group: str
) -> Tensor:
    return axes.exchange(input, split_axis, concat_axis, split_sizes, concat_sizes, by_name(group))


def _axis_fake(
    input: Tensor, split_axis: int, concat_axis: int, split_sizes: _Shape, concat_sizes: _Shape, group: str
) -> Tensor:
    shape = axes.shape_of(input, split_axis, concat_axis, split_sizes, concat_sizes, by_name(group))
    return input.new_empty(shape)


def _axis_back(_: Any, split_axis: int, concat_axis: int, split_sizes: Any, concat_sizes: Any, group: str) -> Any:
    return all_to_all_axis, (concat_axis, split_axis, concat_sizes, split_sizes, group)


def _axis_batched(one: Tensor, _: int, split_axis: int, concat_axis: int, *others: Any) -> Any:
    return *axes.numbers_of(one.shape, split_axis, concat_axis), *others


# Empty sizes mean equal parts, in the backward pass, too.
all_to_all_axis: Linear = Linear("all_to_all_axis", _axis, _axis_fake, _axis_back, _axis_batched)


# ---- all_gather ------------------------------------------------------------------------------------------------------


def _gather(input: Tensor, shape: _Shape, ranks: int, group: str) -> Tensor:
    output: Tensor = input.new_empty(shape)
    collectives.all_gather_single(output, _plain(input), by_name(group))
    return output


def _gather_back(parts: Tensor, shape: _Shape, ranks: int, group: str) -> Tensor:
    # Every rank's part for this rank arrives here, and they are added in rank order.
    given = _plain(parts.reshape(ranks, *shape))
    arrived = torch.empty_like(given, memory_format=torch.contiguous_format)
    collectives.all_to_all_single(arrived, given, None, None, by_name(group))
    return arrived.sum(0)


# The result is a new tensor of the given shape, which has ``ranks`` times the elements.
all_gather: Linear = Linear(
    "all_gather",
    _gather,
    lambda input, shape, ranks, group: input.new_empty(shape),
    lambda shapes, _, ranks, group: (_all_gather_back, (shapes[0], ranks, group)),
    lambda _, size, shape, *others: ([*shape, size], *others),
)
# The sum of all ranks' parts for this one, each of the given shape.
_all_gather_back: Linear = Linear(
    "all_gather_back",
    _gather_back,
    lambda parts, shape, ranks, group: parts.new_empty(shape),
    lambda shapes, _, ranks, group: (all_gather, (shapes[0], ranks, group)),
    lambda _, size, shape, *others: ([*shape, size], *others),
)


# ---- global_scatter and global_gather --------------------------------------------------------------------------------


def _global(name: str, x: Tensor, local_count: Tensor, global_count: Tensor, rows: int, group: str) -> Tensor:
    comm = communicator(by_name(group))
    if comm is None:
        raise RuntimeError(f"{name}: this process is no member of the group")
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


def _scatter(x: Tensor, local_count: Tensor, global_count: Tensor, rows: int, group: str) -> Tensor:
    return _global("global_scatter", x, local_count, global_count, rows, group)


def _scatter_back(x: Tensor, local_count: Tensor, global_count: Tensor, rows: int, group: str) -> Tensor:
    return _global("global_gather", x, local_count, global_count, rows, group)


# ``rows`` is the number of received rows; -1: not known before the counts are.
global_scatter: Linear = Linear(
    "global_scatter",
    _scatter,
    _global_fake,
    lambda shapes, local, global_, _, group: (global_gather, (local, global_, shapes[0][0], group)),
    lambda _, size, *others: others,
)
global_gather: Linear = Linear(
    "global_gather",
    _scatter_back,
    _global_fake,
    lambda shapes, local, global_, _, group: (global_scatter, (local, global_, shapes[0][0], group)),
    lambda _, size, *others: others,
)


# ---- into given outputs ----------------------------------------------------------------------------------------------


def _into_single(
    output: Tensor, input: Tensor, output_split_sizes: Sequence[int], input_split_sizes: Sequence[int], group: str
) -> None:
    splits = list(output_split_sizes), list(input_split_sizes)
    collectives.all_to_all_single(output, input, *splits, by_name(group))


def _into_list(outputs: Sequence[Tensor], inputs: Sequence[Tensor], group: str) -> None:
    collectives.all_to_all(list(outputs), list(inputs), by_name(group))


def _into_gather_list(outputs: Sequence[Tensor], input: Tensor, group: str) -> None:
    collectives.all_gather(list(outputs), input, by_name(group))


def _into_gather(output: Tensor, input: Tensor, group: str) -> None:
    collectives.all_gather_single(output, input, by_name(group))


def _operator_into(name: str, body: Any, output: str) -> None:
    schema = torch.library.infer_schema(body, mutates_args={output})
    torch.library.custom_op(f"a2a::{name}", of_named_group(body), mutates_args={output}, schema=schema)


_operator_into("all_to_all_single_", _into_single, "output")
_operator_into("all_to_all_", _into_list, "outputs")
_operator_into("all_gather_", _into_gather, "output")
_operator_into("all_gather_list_", _into_gather_list, "outputs")
