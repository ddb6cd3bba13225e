"""Exchanges along axes: the division of a tensor by sizes, and the result of every rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from a2a.adapting import Division

from .._errors import AxisError, SplitError
from .._operations import c10d_operations as ops
from .._operations.staging import flat, inner
from .._process_group.collective import of_group
from .._process_group.communicators import communicator, place_in
from . import collectives

__all__ = ["exchange", "numbers_of", "shape_of"]


@of_group
def exchange(
    input: Tensor,
    split_axis: int,
    concat_axis: int,
    split_sizes: Sequence[int],
    concat_sizes: Sequence[int],
    group: Any,
) -> Tensor:
    """Return a new tensor of all ranks' slices for this rank. Empty sizes mean equal parts, see Division.of()."""
    comm = communicator(group)
    at = _checked(input.shape, (split_axis, concat_axis), (split_sizes, concat_sizes), place_in(group))
    input = inner(input.resolve_conj().resolve_neg())
    if comm is None or not input.is_cpu:
        return _packed(input, at, group)
    output = input.new_empty(at.shape)
    ops.all_to_all_axis(comm, output, input, at.split_axis, at.concat_axis, at.to, at.from_)
    return output


def shape_of(
    input: Tensor,
    split_axis: int,
    concat_axis: int,
    split_sizes: Sequence[int],
    concat_sizes: Sequence[int],
    group: Any,
) -> list[int]:
    """Return the shape of the result of exchange()."""
    return _divide(input.shape, (split_axis, concat_axis), (split_sizes, concat_sizes), place_in(group)).shape


def _divide(
    shape: Sequence[int], axes: tuple[int, int], sizes: tuple[Sequence[int], Sequence[int]], place: tuple[int, int]
) -> Division:
    return Division.of(shape, *numbers_of(shape, *axes), *sizes, *place)


def numbers_of(shape: Sequence[int], split_axis: int, concat_axis: int) -> tuple[int, int]:
    """Return the two axes, counted from the front."""
    for name, axis in (("split_axis", split_axis), ("concat_axis", concat_axis)):
        if not -len(shape) <= axis < len(shape):
            raise AxisError(f"{name} is {axis}, but input {tuple(shape)} has {len(shape)} dimensions")
    return split_axis % len(shape), concat_axis % len(shape)


def _checked(
    shape: Sequence[int], axes: tuple[int, int], sizes: tuple[Sequence[int], Sequence[int]], place: tuple[int, int]
) -> Division:
    """_divide(), with a check of the sizes."""
    rank, ranks = place
    for name, given in zip(("split_sizes", "concat_sizes"), sizes, strict=True):
        if given and (len(given) != ranks or min(given) < 0):
            raise SplitError(f"{name} is {list(given)}; pass a size, not a negative one, for each of {ranks} ranks")
    at = _divide(shape, axes, sizes, place)
    if problem := at.misfit(shape, f"input {tuple(shape)}", rank, bool(sizes[0])):
        raise SplitError(problem)
    return at


def _packed(input: Tensor, at: Division, group: Any) -> Tensor:
    """Exchange copies in which the block for each rank is contiguous: on devices."""
    blocks = input.split(at.to, at.split_axis)
    arriving = [[*at.shape[: at.concat_axis], entries, *at.shape[at.concat_axis + 1 :]] for entries in at.from_]
    elems = [math.prod(shape) for shape in arriving]
    received = input.new_empty(sum(elems))
    send = flat(communicator(group), blocks)
    collectives.all_to_all_single(received, send, elems, [block.numel() for block in blocks], group)
    parts = [part.view(shape) for part, shape in zip(received.split(elems), arriving, strict=True)]
    return torch.cat(parts, at.concat_axis)
