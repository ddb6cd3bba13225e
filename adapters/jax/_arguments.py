"""Checks of arguments that several calls have."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import a2a

__all__ = ["axis_of", "communicator", "groups_of", "rank_of"]

_own: a2a.Communicator | None = None


def communicator(axis_name: Any) -> a2a.Communicator:
    """Return the communicator that stands in the place of the name of an axis; None: of all ranks of the launcher."""
    global _own
    if isinstance(axis_name, a2a.Communicator):
        given: a2a.Communicator = axis_name
        return given
    if axis_name is not None:
        raise a2a.InvalidArgumentError(f"axis_name is {axis_name!r}; pass an a2a.Communicator, or None for all ranks")
    if _own is None or _own.closed:
        _own = a2a.init()
    own: a2a.Communicator = _own
    return own


def axis_of(name: str, axis: Any, x: Any, ndim: int | None = None) -> int:
    """Return the number of an axis of ``ndim``, by default those of x."""
    ndim = jnp.ndim(x) if ndim is None else ndim
    number = _integer(name, axis, "the number of an axis")
    if not -ndim <= number < ndim:
        raise a2a.InvalidArgumentError(f"{name} is {number}, but x {jnp.shape(x)} has {jnp.ndim(x)} axes")
    return number % ndim


def rank_of(comm: a2a.Communicator, name: str, rank: Any) -> int:
    """Return the number of a rank."""
    number = _integer(name, rank, "the number of a rank")
    if not 0 <= number < comm.size:
        raise a2a.InvalidArgumentError(f"{name} is {number}, but the group has {comm.size} ranks")
    return number


def _integer(name: str, value: Any, meant: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise a2a.InvalidArgumentError(f"{name} is {value!r}; pass {meant}")
    number: int = value.__index__()
    return number


def groups_of(comm: a2a.Communicator, groups: Any) -> tuple[tuple[int, ...], ...] | None:
    """Return the lists of ranks that take part together; None: all ranks are one list."""
    if groups is None:
        return None
    listed = tuple(tuple(int(rank) for rank in group) for group in groups)
    if sorted(rank for group in listed for rank in group) != list(range(comm.size)) or len(set(map(len, listed))) != 1:
        raise a2a.InvalidArgumentError(
            f"axis_index_groups is {list(listed)}; pass lists of one length in which each of {comm.size} ranks stands "
            "once"
        )
    return listed
