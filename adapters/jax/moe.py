"""Mixture-of-experts exchanges for compiled programs, whose shapes are fixed: each rank has room for ``capacity`` rows
of every other rank for each of its experts.

Experts are divided among the ranks in order. Both calls run inside jax.jit, with gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

import a2a
from a2a.adapting import collective

from ._arguments import communicator
from ._collectives import all_to_all
from ._programs import wait_for_programs

__all__ = ["Routing", "combine", "dispatch"]


class Routing(NamedTuple):
    """Where dispatch has put the rows, for combine; all arrays are [tokens, k]."""

    expert: Any  #: the number of the expert
    place: Any  #: the row among those of this rank for that expert
    kept: Any  #: whether there was room


def dispatch(
    x: Any, experts: Any, *, num_experts: int, capacity: int, axis_name: a2a.Communicator | None = None
) -> tuple[Any, Routing]:
    """Send each row of ``x`` [tokens, ...] to the experts ``experts`` [tokens, k], integers below ``num_experts``.

    Returns (rows, routing): rows is [num_experts / size, size * capacity, ...], for each expert of this rank the rows
    of every rank in rank order, zeros where a rank has sent fewer than ``capacity``. Where more than ``capacity`` rows
    of a rank want an expert, the later ones are dropped; ``routing.kept`` is False there.

    Raises InvalidArgumentError where the ranks cannot share the experts equally, or the shapes do not fit."""
    return _dispatch(communicator(axis_name), jnp.asarray(x), jnp.asarray(experts), num_experts, capacity)


@collective
def _dispatch(comm: a2a.Communicator, x: Any, experts: Any, num_experts: int, capacity: int) -> tuple[Any, Routing]:
    wait_for_programs()
    if num_experts < 1 or num_experts % comm.size != 0:
        raise a2a.InvalidArgumentError(f"num_experts is {num_experts}, which {comm.size} ranks cannot share equally")
    if capacity < 1:
        raise a2a.InvalidArgumentError(f"capacity is {capacity}; pass at least 1")
    if experts.ndim != 2 or x.ndim < 1 or len(experts) != len(x):
        raise a2a.InvalidArgumentError(f"x is {x.shape}, experts {experts.shape}; pass [tokens, ...] and [tokens, k]")
    chosen = experts.reshape(-1)
    before = (chosen[:, None] == jnp.arange(num_experts)).astype("int32").cumsum(0) - 1
    place = jnp.take_along_axis(before, chosen[:, None], 1)[:, 0]
    routing = Routing(experts, place.reshape(experts.shape), (place < capacity).reshape(experts.shape))
    rows = jnp.repeat(x, experts.shape[1], 0)
    room = jnp.zeros((num_experts, capacity, *x.shape[1:]), x.dtype)
    filled = room.at[chosen, place].set(rows, mode="drop")
    return all_to_all(filled, comm, 0, 1, tiled=True), routing


def combine(y: Any, routing: Routing, weights: Any = None, *, axis_name: a2a.Communicator | None = None) -> Any:
    """Send the experts' results ``y``, of the shape of the rows of dispatch, back to the ranks of their tokens.

    Returns [tokens, ...]: for each token the sum over its experts, times ``weights`` [tokens, k]; None: all are 1.
    Dropped rows count as zeros."""
    comm = communicator(axis_name)
    back = all_to_all(y, comm, 1, 0, tiled=True)
    found = back.at[routing.expert, routing.place].get(mode="fill", fill_value=0)
    shape = (*routing.kept.shape, *[1] * (found.ndim - 2))
    factors = routing.kept.astype(y.dtype) if weights is None else jnp.where(routing.kept, weights, 0).astype(y.dtype)
    return (found * factors.reshape(shape)).sum(1)
