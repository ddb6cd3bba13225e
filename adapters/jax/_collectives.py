"""The collectives of jax.lax over the ranks of a communicator. Each leaf of a pytree is an operation of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import a2a
from a2a.adapting import collective, takes

from ._arguments import axis_of, communicator, groups_of, rank_of
from ._operations import AllGather, AllToAll, Broadcast, Permute, Reduce, ReduceScatter
from ._primitive import bind
from ._programs import is_traced, wait_for_programs

__all__ = ["all_gather", "all_to_all", "broadcast", "pmax", "pmean", "pmin", "ppermute", "psum", "psum_scatter"]

Axis = a2a.Communicator | None
GroupLists = Sequence[Sequence[int]] | None


@collective
def each_leaf(comm: a2a.Communicator, x: Any, function: Callable[..., Any], groups: GroupLists, *how: Any) -> Any:
    """Apply the function to the leaves. What it raises reaches the peers, where a program is traced, too: then the
    operations of programs before it come first. The peers' program ends at its first operation."""
    wait_for_programs()
    leaves, tree = jax.tree.flatten(x)
    if not is_traced():
        takes(len(leaves) * (1 if groups is None else 2))
    listed = groups_of(comm, groups)
    return jax.tree.unflatten(tree, [function(comm, leaf, listed, *how) for leaf in leaves])


def all_to_all(
    x: Any,
    axis_name: Axis,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: GroupLists = None,
    tiled: bool = False,
) -> Any:
    """jax.lax.all_to_all over the ranks of a communicator, ``axis_name``; None: all ranks of the launcher, as
    ``a2a.init()`` finds them.

    ``x`` is an array of this process on the host, or a pytree of arrays, which are exchanged one after another. Slice p
    of it along ``split_axis`` goes to rank p. With ``tiled`` that axis is divided equally, and the received slices are
    concatenated along ``concat_axis``. Without ``tiled`` it has one entry for each rank and is removed, and the
    received slices are stacked along a new axis ``concat_axis``. ``axis_index_groups`` are lists of ranks, of equal
    length and each rank in one: ranks exchange within their list, in its order. All ranks make the call, with the same
    lists, which they compare outside of compiled programs.

    Returns new arrays. Derivatives of any mode and order go through it, and jax.vmap; it runs within jax.jit, too.
    Raises a2a.InvalidArgumentError, a ValueError, on the rank whose arguments are wrong, before anything moves; its
    peers get a2a.MismatchError."""
    comm = communicator(axis_name)
    return each_leaf(comm, x, _all_to_all, axis_index_groups, split_axis, concat_axis, tiled)


def _all_to_all(comm: a2a.Communicator, leaf: Any, groups: Any, split_axis: Any, concat_axis: Any, tiled: bool) -> Any:
    x = jnp.asarray(leaf)
    ranks = _ranks(comm, groups)
    split = axis_of("split_axis", split_axis, x)
    concat = axis_of("concat_axis", concat_axis, x)
    _require_parts(x, "split_axis", split, ranks, tiled)
    return bind(x, comm, AllToAll(split, concat, bool(tiled), groups))


def _ranks(comm: a2a.Communicator, groups: Any) -> int:
    return comm.size if groups is None else len(groups[0])


def _require_parts(x: Any, name: str, axis: int, ranks: int, tiled: bool) -> None:
    entries = x.shape[axis]
    if tiled and entries % ranks != 0:
        raise a2a.InvalidArgumentError(
            f"x {x.shape} has {entries} entries along {name} {axis}, which {ranks} ranks cannot share equally"
        )
    if not tiled and entries != ranks:
        raise a2a.InvalidArgumentError(
            f"x {x.shape} has {entries} entries along {name} {axis}, but there are {ranks} ranks; pass tiled=True to "
            "divide the axis"
        )


def psum(x: Any, axis_name: Axis = None, *, axis_index_groups: GroupLists = None) -> Any:
    """jax.lax.psum: every rank gets the sum over all ranks, or over those of its list of ``axis_index_groups``, in rank
    order, and so the same bits. A Python number is multiplied by their number without an exchange; bool becomes int32.
    Its transpose is itself, as under jax.pmap: cotangents are summed over the ranks. Otherwise as all_to_all."""
    return _reduced(x, axis_name, axis_index_groups, "sum")


def pmean(x: Any, axis_name: Axis = None, *, axis_index_groups: GroupLists = None) -> Any:
    """jax.lax.pmean: psum divided by the number of ranks."""
    comm = communicator(axis_name)
    total = psum(x, comm, axis_index_groups=axis_index_groups)
    ranks = comm.size if axis_index_groups is None else len(axis_index_groups[0])
    return jax.tree.map(lambda leaf: leaf / ranks, total)


def pmax(x: Any, axis_name: Axis = None, *, axis_index_groups: GroupLists = None) -> Any:
    """jax.lax.pmax: the maximum over the ranks; NaN where one has NaN. It has no derivative."""
    return _reduced(x, axis_name, axis_index_groups, "max")


def pmin(x: Any, axis_name: Axis = None, *, axis_index_groups: GroupLists = None) -> Any:
    """jax.lax.pmin: the minimum over the ranks; NaN where one has NaN. It has no derivative."""
    return _reduced(x, axis_name, axis_index_groups, "min")


def _reduced(x: Any, axis_name: Axis, groups: GroupLists, op: str) -> Any:
    return each_leaf(communicator(axis_name), x, _reduce, groups, op)


def _reduce(comm: a2a.Communicator, leaf: Any, groups: Any, op: str) -> Any:
    if op == "sum" and isinstance(leaf, (int, float, complex)):
        return leaf * _ranks(comm, groups)
    x = jnp.asarray(leaf)
    if op == "sum" and x.dtype == bool:
        x = x.astype("int32")
    if groups is None:
        return bind(x, comm, Reduce(op))
    gathered = bind(x, comm, AllGather(groups))
    fold: Any = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min}[op]
    return fold(gathered, 0).astype(x.dtype)


def all_gather(
    x: Any, axis_name: Axis = None, *, axis_index_groups: GroupLists = None, axis: int = 0, tiled: bool = False
) -> Any:
    """jax.lax.all_gather: the arrays of all ranks, of one shape, stacked along a new ``axis``, or with ``tiled``
    concatenated along an existing one. Its transpose is psum_scatter. Otherwise as all_to_all."""
    return each_leaf(communicator(axis_name), x, _all_gather, axis_index_groups, axis, tiled)


def _all_gather(comm: a2a.Communicator, leaf: Any, groups: Any, axis: Any, tiled: bool) -> Any:
    x = jnp.asarray(leaf)
    at = axis_of("axis", axis, x, None if tiled else x.ndim + 1)
    stacked = jnp.moveaxis(bind(x, comm, AllGather(groups)), 0, at)
    if not tiled:
        return stacked
    return stacked.reshape(*x.shape[:at], -1 if x.size else 0, *x.shape[at + 1 :])


def psum_scatter(
    x: Any,
    axis_name: Axis = None,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: GroupLists = None,
    tiled: bool = False,
) -> Any:
    """jax.lax.psum_scatter: slice p of the sum along ``scatter_dimension`` goes to rank p. With ``tiled`` that axis is
    divided equally; without, it has one entry for each rank and is removed. Its transpose is all_gather. Otherwise as
    all_to_all."""
    return each_leaf(communicator(axis_name), x, _psum_scatter, axis_index_groups, scatter_dimension, tiled)


def _psum_scatter(comm: a2a.Communicator, leaf: Any, groups: Any, dimension: Any, tiled: bool) -> Any:
    x = jnp.asarray(leaf)
    ranks = _ranks(comm, groups)
    axis = axis_of("scatter_dimension", dimension, x)
    _require_parts(x, "scatter_dimension", axis, ranks, tiled)
    if tiled:
        x = x.reshape(*x.shape[:axis], ranks, x.shape[axis] // ranks, *x.shape[axis + 1 :])
    parts = jnp.moveaxis(x, axis, 0)
    if groups is None:
        return bind(parts, comm, ReduceScatter())
    return bind(parts, comm, AllToAll(0, 0, False, groups)).sum(0).astype(x.dtype)


def ppermute(x: Any, axis_name: Axis, perm: Sequence[tuple[int, int]]) -> Any:
    """jax.lax.ppermute: for each (source, destination) of ``perm`` the array of that rank goes to the other. A rank to
    which none goes gets zeros. No rank stands twice on a side; all ranks pass the same pairs. Its transpose goes the
    other way. Otherwise as all_to_all."""
    return each_leaf(communicator(axis_name), x, _ppermute, None, perm)


def _ppermute(comm: a2a.Communicator, leaf: Any, _: Any, perm: Any) -> Any:
    pairs = sorted((rank_of(comm, "a source of perm", a), rank_of(comm, "a destination of perm", b)) for a, b in perm)
    for side in zip(*pairs, strict=True):
        if len(set(side)) != len(side):
            raise a2a.InvalidArgumentError(f"perm is {pairs}; a rank may be source once and destination once")
    return bind(jnp.asarray(leaf), comm, Permute(tuple(pairs)))


def broadcast(x: Any, axis_name: Axis = None, root: int = 0) -> Any:
    """Every rank gets the array of rank ``root``; ``x`` of the others gives the shape and the dtype. Cotangents are
    summed at the root. Otherwise as all_to_all."""
    return each_leaf(communicator(axis_name), x, _broadcast, None, root)


def _broadcast(comm: a2a.Communicator, leaf: Any, _: Any, root: Any) -> Any:
    return bind(jnp.asarray(leaf), comm, Broadcast(rank_of(comm, "root", root)))
