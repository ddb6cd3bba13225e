"""``all_to_all``: one exchange along axes of the core, as a primitive of JAX, so that it has derivatives.

It is linear; its transpose, which cotangents take, is the same exchange with the axes swapped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

import a2a
from a2a import frameworks
from a2a.adapting import collective, takes

__all__ = ["all_to_all"]

_own: a2a.Communicator | None = None
_ALIGNMENT = 64  # alignment of memory that JAX uses as an array without a copy


def all_to_all(
    x: Any,
    axis_name: a2a.Communicator | None,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    tiled: bool = False,
) -> Any:
    """jax.lax.all_to_all over the ranks of a communicator, ``axis_name``; None: all ranks of the launcher, as
    ``a2a.init()`` finds them.

    ``x`` is an array of this process on the host, or a pytree of arrays, which are exchanged one after another. Slice p
    of it along ``split_axis`` goes to rank p. With ``tiled`` that axis is divided equally, and the received slices are
    concatenated along ``concat_axis``. Without ``tiled`` it has one entry for each rank and is removed, and the
    received slices are stacked along a new axis ``concat_axis``. ``axis_index_groups`` are lists of ranks, of equal
    length and each rank in one: ranks exchange within their list, in its order. All ranks make the call, with the same
    lists, which they compare.

    Returns new arrays. Derivatives of any mode and order go through it, and jax.vmap. It runs when it is called, so
    not within jax.jit.
    Raises a2a.InvalidArgumentError, a ValueError, on the rank whose arguments are wrong, before anything moves; its
    peers get a2a.MismatchError."""
    return _leaves(_communicator(axis_name), x, split_axis, concat_axis, axis_index_groups, tiled)


def _communicator(axis_name: Any) -> a2a.Communicator:
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


@collective
def _leaves(comm: a2a.Communicator, x: Any, *how: Any) -> Any:
    leaves, tree = jax.tree.flatten(x)
    takes(len(leaves))
    return jax.tree.unflatten(tree, [_leaf(comm, leaf, *how) for leaf in leaves])


@collective
def _leaf(comm: a2a.Communicator, leaf: Any, split_axis: Any, concat_axis: Any, groups: Any, tiled: bool) -> Any:
    x = jnp.asarray(leaf)
    listed = _listed(comm, groups)
    members = next(group for group in listed if comm.rank in group)
    split = _axis("split_axis", split_axis, x)
    concat = _axis("concat_axis", concat_axis, x)
    entries = x.shape[split]
    if tiled and entries % len(members) != 0:
        raise a2a.InvalidArgumentError(
            f"x {x.shape} has {entries} entries along split_axis {split}, which {len(members)} ranks cannot share "
            "equally"
        )
    if not tiled and entries != len(members):
        raise a2a.InvalidArgumentError(
            f"x {x.shape} has {entries} entries along split_axis {split}, but there are {len(members)} ranks; pass "
            "tiled=True to divide the axis"
        )
    if groups is not None:
        _compare(comm, listed)
    return _exchange.bind(x, comm=comm, split=split, concat=concat, members=members, tiled=tiled)


def _axis(name: str, axis: Any, x: Any) -> int:
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise a2a.InvalidArgumentError(f"{name} is {axis!r}; pass the number of an axis")
    number: int = axis.__index__()
    if not -x.ndim <= number < x.ndim:
        raise a2a.InvalidArgumentError(f"{name} is {number}, but x {x.shape} has {x.ndim} axes")
    result: int = number % x.ndim
    return result


def _listed(comm: a2a.Communicator, groups: Any) -> list[tuple[int, ...]]:
    """Return the lists of ranks that exchange with each other."""
    if groups is None:
        return [tuple(range(comm.size))]
    listed = [tuple(int(rank) for rank in group) for group in groups]
    if sorted(rank for group in listed for rank in group) != list(range(comm.size)) or len(set(map(len, listed))) != 1:
        raise a2a.InvalidArgumentError(
            f"axis_index_groups is {listed}; pass lists of one length in which each of {comm.size} ranks stands once"
        )
    return listed


def _compare(comm: a2a.Communicator, listed: list[tuple[int, ...]]) -> None:
    """Collective. The order of a list decides which slice goes where, and no count shows it."""
    own = repr(sorted(listed)).encode()
    for rank, told in enumerate(comm.allgather_bytes(own)):
        if told != own:
            raise a2a.MismatchError(
                f"axis_index_groups: rank {comm.rank} has {own.decode()}, rank {rank} has {told.decode()}"
            )


# ---- the primitive ---------------------------------------------------------------------------------------------------


def _shape(shape: tuple[int, ...], split: int, concat: int, ranks: int, tiled: bool) -> tuple[int, ...]:
    """Return the shape of the result."""
    result = list(shape)
    if tiled:
        result[split] //= ranks
        result[concat] *= ranks
    else:
        del result[split]
        result.insert(concat, ranks)
    return tuple(result)


@collective
def _run(comm: a2a.Communicator, x: Any, split: int, concat: int, members: tuple[int, ...], tiled: bool) -> Any:
    """Exchange without copies of the arrays: an axis that only one side has is one of length 1 on the other."""
    if not isinstance(x, jax.Array):  # JAX hands an array of NumPy on as one of a kind of its own
        x = jnp.asarray(np.asarray(x))
    platforms = {device.platform for device in x.devices()}
    if platforms != {"cpu"} or len(x.devices()) != 1:
        raise a2a.InvalidArgumentError(
            f"x is on {sorted(map(str, x.devices()))}; pass an array that is on one device, the host: "
            "jax.device_put(x, jax.devices('cpu')[0])"
        )
    given = np.asarray(x)
    made = _room(_shape(x.shape, split, concat, len(members), tiled), x.dtype)
    send, recv = given, made
    if not tiled and split < concat:
        concat += 1
        send, recv = np.expand_dims(send, concat), np.expand_dims(recv, split)
    elif not tiled and split > concat:
        split += 1
        send, recv = np.expand_dims(send, concat), np.expand_dims(recv, split)
    to, to_displs = _parts(comm.size, members, send.shape[split] // len(members))
    from_, from_displs = _parts(comm.size, members, recv.shape[concat] // len(members))
    comm.alltoallv(send, to, recv, from_, to_displs, from_displs, split_axis=split, concat_axis=concat)
    framework: Any = frameworks.named("jax")
    return framework.convert(x, made)


def _parts(size: int, members: tuple[int, ...], entries: int) -> tuple[list[int], list[int]]:
    """Return counts and displacements by rank."""
    counts, displs = [0] * size, [0] * size
    for at, rank in enumerate(members):
        counts[rank], displs[rank] = entries, at * entries
    return counts, displs


def _room(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """Allocate aligned memory, of which JAX makes an array without a copy."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    room: npt.NDArray[Any] = memory[start : start + nbytes].view(dtype).reshape(shape)
    return room


def _abstract(x: Any, *, split: int, concat: int, members: tuple[int, ...], tiled: bool, **_: Any) -> Any:
    return x.update(shape=_shape(x.shape, split, concat, len(members), tiled))


def _back(cotangent: Any, x: Any, *, split: int, concat: int, **others: Any) -> list[Any]:
    if type(cotangent) is ad.Zero:
        return [ad.Zero(x.aval)]
    return [_exchange.bind(cotangent, split=concat, concat=split, **others)]


def _batched(tensors: Any, dims: Any, *, split: int, concat: int, **others: Any) -> tuple[Any, int]:
    """The rule for jax.vmap: all entries of the batch travel together."""
    x = jnp.moveaxis(tensors[0], dims[0], 0)
    return _exchange.bind(x, split=split + 1, concat=concat + 1, **others), 0


def _lower(*_: Any, **__: Any) -> Any:
    raise a2a.UnsupportedError(
        "a2a.jax.all_to_all was called within jax.jit or another function that is compiled; an exchange between "
        "processes runs when it is called: call it between compiled functions"
    )


_exchange = Primitive("a2a_all_to_all")
_exchange.def_impl(lambda x, *, comm, **how: _run(comm, x, **how))
_exchange.def_abstract_eval(_abstract)
ad.deflinear2(_exchange, _back)
batching.primitive_batchers[_exchange] = _batched
mlir.register_lowering(_exchange, _lower)
