"""Differentiable collectives, with the names and signatures of torch.distributed.nn.functional, and all_to_all_axis.
Other names come from there.

Gradients are sent back by the inverse exchange, to any order of derivative. All calls can be traced by torch.compile,
with ``group`` None or a process group of torch. Inputs need not be contiguous. Errors are those of ``a2a.torch``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from .._compile import custom_ops
from .._compile.linear import under_functorch
from .._errors import TensorError
from .._process_group.collective import of_group
from .._process_group.communicators import name_of
from ._checks import named_entries, require_axes, require_counts, require_exchange, require_splits

__all__ = ["all_gather_into_tensor", "all_gather_single", "all_to_all", "all_to_all_axis", "all_to_all_single",
           "global_gather", "global_scatter", "shard_dim_alltoall"]  # fmt: skip


@of_group
def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
) -> Tensor:
    """Exchange rows of dim 0 of ``input`` with all ranks, by split sizes in rows or in equal parts. Returns a new
    tensor of the shape of ``output``, through which gradients flow; ``output`` gets the same values."""
    if not is_dynamo_compiling():
        require_exchange(group, {"output": output}, {"input": input})
        require_splits({"output_split_sizes": output_split_sizes, "input_split_sizes": input_split_sizes})
    splits = _sizes(output_split_sizes), _sizes(input_split_sizes)
    return _fill(output, custom_ops.all_to_all_single(input, output.shape, *splits, name_of(group)))


@of_group
def all_to_all(
    output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: Any = None
) -> tuple[Tensor, ...]:
    """Send ``input_tensor_list[p]`` to rank p, and receive ``output_tensor_list[p]`` from it. Returns new tensors of
    the shapes of ``output_tensor_list``, through which gradients flow; ``output_tensor_list`` gets the same values."""
    if not is_dynamo_compiling():
        require_exchange(
            group,
            named_entries("output_tensor_list", output_tensor_list),
            named_entries("input_tensor_list", input_tensor_list),
        )
    like = list(output_tensor_list)
    if under_functorch():  # only their shapes are wanted
        like = [torch.empty(()).expand(one.shape) for one in like]
    results = custom_ops.all_to_all(list(input_tensor_list), like, name_of(group))
    return tuple(_fill(output, result) for output, result in zip(output_tensor_list, results, strict=True))


@of_group
def all_to_all_axis(
    input: Tensor,
    split_axis: int,
    concat_axis: int,
    group: Any = None,
    split_sizes: Sequence[int] | None = None,
    concat_sizes: Sequence[int] | None = None,
) -> Tensor:
    """The next ``split_sizes[p]`` entries of ``split_axis`` go to rank p, as a slice of ``input``; ``concat_sizes[p]``
    entries of ``concat_axis`` come from rank p. Returns the slices for this rank, concatenated along ``concat_axis`` in
    rank order.

    Without ``split_sizes`` the parts are equal. Without ``concat_sizes`` as many entries come from every rank as from
    this one itself. So sequences become heads with (x, 2, 1), and heads sequences with (x, 1, 2), of (batch, sequence,
    heads, ...). ``input`` may have any strides; it is sent without a copy.

    Axes may be negative. Raises AxisError, an IndexError, for one that ``input`` does not have, and SplitError for
    sizes that do not fit it."""
    if not is_dynamo_compiling():
        require_exchange(group, {}, {"input": input})
        require_axes({"split_axis": split_axis, "concat_axis": concat_axis})
        require_splits({"split_sizes": split_sizes, "concat_sizes": concat_sizes})
    sizes = _sizes(split_sizes), _sizes(concat_sizes)
    result: Tensor = custom_ops.all_to_all_axis(input, split_axis, concat_axis, *sizes, name_of(group))
    return result


@of_group
def shard_dim_alltoall(input: Tensor, gather_dim: int, shard_dim: int, group: Any = None) -> Tensor:
    """all_to_all_axis() with the arguments of torch's operator _dtensor::shard_dim_alltoall: from shards of
    ``gather_dim`` to shards of ``shard_dim``, of which each rank gets an equal part."""
    return all_to_all_axis(input, shard_dim, gather_dim, group)


@of_group
def all_gather_single(output_tensor: Tensor, input_tensor: Tensor, group: Any = None) -> Tensor:
    """Gather every rank's ``input_tensor`` in rank order, concatenated or stacked, as ``output_tensor`` is shaped.
    Returns a new tensor, through which gradients flow: the sum of all ranks' gradients of this rank's part, in rank
    order. ``output_tensor`` gets the same values."""
    if not is_dynamo_compiling():
        require_exchange(group, {"output_tensor": output_tensor}, {"input_tensor": input_tensor})
    ranks = output_tensor.numel() // max(input_tensor.numel(), 1)
    return _fill(output_tensor, custom_ops.all_gather(input_tensor, output_tensor.shape, ranks, name_of(group)))


all_gather_into_tensor = all_gather_single


@of_group
def global_scatter(x: Tensor, local_count: Any, global_count: Any, group: Any = None) -> Tensor:
    """Mixture-of-experts dispatch: send the rows of ``x``, packed by (rank, expert) with ``local_count`` rows each, to
    the ranks of their experts. Returns sum(global_count) rows packed by (expert, source rank); see a2a.Communicator.
    The counts are int64 tensors on the host, or lists."""
    return _global(custom_ops.global_scatter, x, local_count, global_count, group)


@of_group
def global_gather(x: Tensor, local_count: Any, global_count: Any, group: Any = None) -> Tensor:
    """The inverse of global_scatter with the same counts. Returns sum(local_count) rows."""
    return _global(custom_ops.global_gather, x, local_count, global_count, group)


def _global(operator: Any, x: Tensor, local_count: Any, global_count: Any, group: Any) -> Tensor:
    if not is_dynamo_compiling():
        require_exchange(group, {}, {"x": x})
        require_counts({"local_count": local_count, "global_count": global_count})
    result: Tensor = operator(x, _counts(local_count), _counts(global_count), -1, name_of(group))
    return result


def _counts(counts: Any) -> Tensor:
    if isinstance(counts, Tensor):
        if not under_functorch():
            return counts
        counts = counts.tolist()  # numbers, whatever has made them
    return torch.tensor(counts, dtype=torch.int64)


def _sizes(given: Any) -> list[int]:
    if given is None:
        return []
    return list(given.tolist() if hasattr(given, "tolist") else given)


def _fill(output: Tensor, result: Tensor) -> Tensor:
    try:
        with torch.no_grad():
            output.copy_(result.detach())  # without a tangent, too
    except RuntimeError as error:
        if not under_functorch():
            raise
        text = f"an output of shape {tuple(output.shape)} cannot be written under torch.func"
        raise TensorError(f"{text}; make it with new_empty() of an input ({error})") from None
    return result


def __getattr__(name: str) -> Any:
    import torch.distributed.nn.functional as theirs  # imports RPC, which few programs need

    return getattr(theirs, name)
