"""jax.lax.ragged_all_to_all on CPUs, where XLA has none: a rule that makes it of collectives that XLA has there."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import mlir

__all__ = ["install"]


def install() -> None:
    """Let jax.lax.ragged_all_to_all run in programs for the CPU, such as those of jax.shard_map over the devices of one
    process, or of several under jax.distributed: programs for TPUs run unmodified. Call it before they are compiled;
    once more has no effect.

    Every device gathers the operands of all, so it takes memory for them: it is there to test programs. XLA's own
    collectives move the data, so no thread of XLA waits for a2a. Rows that leave an array are ignored."""
    from jax._src.lax import parallel

    rule = mlir.lower_fun(_ragged, multiple_results=False)
    mlir.register_lowering(parallel.ragged_all_to_all_p, rule, platform="cpu")


def _ragged(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: Any,
    axis_index_groups: Any,
) -> Any:
    """Each row of the output looks for the slice that covers it, among those that all devices send here."""

    def everyones(x: Any) -> Any:
        return jax.lax.all_gather(x, axis_name, axis_index_groups=axis_index_groups)

    operands = everyones(operand)
    ranks, rows = operands.shape[:2]
    here = _place(axis_name, axis_index_groups)

    def sent_here(x: Any) -> Any:
        return everyones(x).reshape(ranks, ranks, -1)[:, here]

    begins, sizes, places = (sent_here(x) for x in (input_offsets, send_sizes, output_offsets))
    first = (begins + rows * jnp.arange(ranks, dtype=begins.dtype)[:, None]).reshape(-1)
    sizes, places = sizes.reshape(-1), places.reshape(-1)
    row = jnp.arange(len(output), dtype=places.dtype)[:, None]
    covers = (row >= places) & (row < places + sizes)
    which = jnp.argmax(covers, 1)
    source = first[which] + row[:, 0] - places[which]
    came = operands.reshape(ranks * rows, *operands.shape[2:])[source]
    return jnp.where(covers.any(1).reshape(-1, *[1] * (output.ndim - 1)), came, output)


def _place(axis_name: Any, groups: Any) -> Any:
    """Return the number of this device among those that exchange with it."""
    index = jax.lax.axis_index(axis_name)
    if groups is None:
        return index
    order = {device: place for group in groups for place, device in enumerate(group)}
    return jnp.array([order[device] for device in sorted(order)])[index]
