"""Shardings of JAX as boxes by rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from a2a import InvalidArgumentError

__all__ = ["boxes"]


def boxes(
    sharding: jax.sharding.Sharding, shape: Sequence[int], rank_of: Callable[[Any], int] | None = None
) -> dict[int, tuple[slice, ...]]:
    """Return the part of an array of this shape that each rank has: boxes by rank, which ``comm.reshard`` and its plans
    take as a sharding. ``sharding`` is a NamedSharding or any other; ``rank_of(device)`` is the rank that stands for a
    device. None: its process, in a program of several processes of JAX; otherwise its ``id``, so that the devices of
    one process describe the ranks. Devices of one rank have the same part. Not collective.

    Raises InvalidArgumentError for a sharding that does not fit the shape, and for a rank with several parts."""
    if not hasattr(sharding, "devices_indices_map"):
        raise InvalidArgumentError(f"sharding is {type(sharding).__name__}; pass a sharding of JAX")
    try:
        parts = sharding.devices_indices_map(tuple(shape))
    except (TypeError, ValueError, IndexError) as error:
        raise InvalidArgumentError(f"sharding does not fit shape {shape!r}: {error}") from error
    found: dict[int, tuple[slice, ...]] = {}
    for device, part in parts.items():
        rank = _rank_of(device) if rank_of is None else rank_of(device)
        box = tuple(slice(*one.indices(entries)[:2]) for one, entries in zip(part or (), shape, strict=True))
        if found.setdefault(rank, box) != box:
            raise InvalidArgumentError(f"rank {rank} has several parts, {found[rank]} and {box}; reshard takes one")
    return found


def _rank_of(device: Any) -> int:
    return int(device.process_index if jax.process_count() > 1 else device.id)
