"""ragged_all_to_all, the exchange whose counts are values of the program: a primitive that moves one slice from each
rank to each other. Operand and output are linear."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

import a2a
from a2a._core import CompiledCalls
from a2a.adapting import collective, takes

from ._arguments import communicator, groups_of
from ._operations import AllToAll
from ._primitive import agreement, as_jax, bind, kept_call, new_array, on_host, refuse_lowering, zero_tangent
from ._programs import call, effect, is_traced, wait_for_programs

__all__ = ["ragged_all_to_all"]


def ragged_all_to_all(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: a2a.Communicator | None = None,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
) -> Any:
    """jax.lax.ragged_all_to_all over the ranks of a communicator; None: all ranks of the launcher.

    ``send_sizes[p]`` rows of ``operand`` from row ``input_offsets[p]`` on go to rank p, into its output from row
    ``output_offsets[p]`` on. ``recv_sizes[p]`` rows come from rank p. Each of these has one entry for each rank, or the
    same number of entries for each, first those of rank 0. Returns ``output`` with the rows that came; its other rows
    stay. Both arrays have the same dtype and the same shape but for the number of rows.

    Derivatives go through operand and output; in the backward pass no row of the operand may have gone to two ranks.
    Rows that leave an array or overlap where they arrive raise InvalidArgumentError on the rank that has them, sizes
    that do not fit MismatchError."""
    indices = (input_offsets, send_sizes, output_offsets, recv_sizes)
    return _exchange(communicator(axis_name), operand, output, indices, axis_index_groups)


@collective
def _exchange(comm: a2a.Communicator, operand: Any, output: Any, indices: Sequence[Any], groups: Any) -> Any:
    wait_for_programs()
    listed = groups_of(comm, groups)
    ranks = comm.size if listed is None else len(listed[0])
    operand, output = jnp.asarray(operand), jnp.asarray(output)
    arrays = [jnp.asarray(each) for each in indices]
    _require(operand, output, arrays, ranks)
    slices = len(arrays[0]) // ranks
    if not is_traced():
        takes(slices + (1 if listed is None else 2))
    begins, sends, places, recvs = (_wide(each).reshape(ranks, slices) for each in arrays)
    told = bind(jnp.stack([places, sends], 1), comm, AllToAll(0, 0, False, listed))
    for i in range(slices):
        one = [_of_all_ranks(comm, each[:, i], listed) for each in (begins, sends, told[:, 0], recvs, told[:, 1])]
        output = _ragged.bind(operand, output, *one, comm=comm)
    return output


_NAMES = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")


def _require(operand: Any, output: Any, indices: Sequence[Any], ranks: int) -> None:
    if operand.ndim == 0 or operand.dtype != output.dtype or operand.shape[1:] != output.shape[1:]:
        raise a2a.InvalidArgumentError(
            f"operand is {operand.dtype} {operand.shape}, output {output.dtype} {output.shape}; pass arrays of one "
            "dtype that differ in the number of rows only"
        )
    for name, each in zip(_NAMES, indices, strict=True):
        if each.ndim != 1 or not jnp.issubdtype(each.dtype, jnp.integer) or len(each) != len(indices[0]):
            raise a2a.InvalidArgumentError(
                f"{name} is {each.dtype} {each.shape}; pass integers of one dimension, as many as input_offsets "
                f"{indices[0].shape}"
            )
    if len(indices[0]) == 0 or len(indices[0]) % ranks != 0:
        raise a2a.InvalidArgumentError(
            f"input_offsets has {len(indices[0])} entries, which {ranks} ranks cannot share equally"
        )


def _wide(values: Any) -> Any:
    return values.astype("int64" if jax.config.jax_enable_x64 else "int32")


def _of_all_ranks(comm: a2a.Communicator, values: Any, groups: Any) -> Any:
    """Return an index for each rank of the communicator: those of other lists exchange nothing."""
    if groups is None:
        return values
    members = next(group for group in groups if comm.rank in group)
    return jnp.zeros(comm.size, values.dtype).at[jnp.array(members)].set(values)


# ---- the primitive ---------------------------------------------------------------------------------------------------
# Its operands: operand, output, and by rank the first row to send, the rows to send, the first row of the output, the
# rows to receive, and the rows that the other rank has said it sends. So a rank that expects other rows refuses the
# exchange, and it fails on all ranks.


@collective
def _run(comm: a2a.Communicator, operand: Any, output: Any, *indices: Any) -> Any:
    wait_for_programs()
    begins, sends, places, recvs, told = (np.asarray(each).tolist() for each in indices)
    for rank, (expected, sent) in enumerate(zip(recvs, told, strict=True)):
        if expected != sent:
            raise a2a.MismatchError(f"rank {rank} sends {sent} rows to rank {comm.rank}, which expects {expected}")
    kept = on_host(output)
    made = new_array(kept.shape, kept.dtype)
    made[...] = kept
    comm.alltoallv(on_host(operand), sends, made, recvs, begins, places)
    return as_jax(operand, made)


def _abstract(operand: Any, output: Any, *_: Any, comm: a2a.Communicator) -> Any:
    return output.update(), {effect}


def _lower(ctx: Any, *operands: Any, comm: a2a.Communicator) -> Any:
    operand, output = ctx.avals_in[:2]
    number = agreement("ragged", operand.shape[1:], str(operand.dtype))
    start = partial(CompiledCalls.ragged_alltoallv, agreement=number)
    return call(ctx, kept_call(comm, start, ctx, operand, output), operands, {0: 1})


def _jvp(primals: Any, tangents: Any, *, comm: a2a.Communicator) -> Any:
    indices = primals[2:]
    result = _ragged.bind(*primals, comm=comm)
    if all(type(tangent) is ad.Zero for tangent in tangents[:2]):
        return result, zero_tangent(result)
    operand, output = (ad.instantiate_zeros(tangent) for tangent in tangents[:2])
    return result, _ragged.bind(operand, output, *indices, comm=comm)


def _transpose(cotangent: Any, operand: Any, output: Any, *indices: Any, comm: a2a.Communicator) -> list[Any]:
    """The rows go back; those of the output that were written do not depend on what was there."""
    begins, sends, places, recvs, _ = indices
    back: list[Any] = [None] * 7
    zero = type(cotangent) is ad.Zero
    if ad.is_undefined_primal(operand):
        aval = operand.aval
        back[0] = (
            ad.Zero(aval)
            if zero
            else _ragged.bind(
                cotangent, jnp.zeros(aval.shape, aval.dtype), places, recvs, begins, sends, sends, comm=comm
            )
        )
    if ad.is_undefined_primal(output):
        if zero:
            back[1] = ad.Zero(output.aval)
        else:
            rows = jnp.arange(len(cotangent))[:, None]
            written = ((rows >= places) & (rows < places + recvs)).any(1)
            back[1] = jnp.where(written.reshape(-1, *[1] * (cotangent.ndim - 1)), 0, cotangent)
    return back


def _batched(tensors: Any, dims: Any, *, comm: a2a.Communicator) -> tuple[Any, int]:
    """The rule for jax.vmap: an exchange for each entry, since each has counts of its own."""
    size = next(each.shape[dim] for each, dim in zip(tensors, dims, strict=True) if dim is not None)
    whole = [
        jnp.broadcast_to(each, (size, *each.shape)) if dim is None else jnp.moveaxis(each, dim, 0)
        for each, dim in zip(tensors, dims, strict=True)
    ]
    return jax.lax.map(lambda each: _ragged.bind(*each, comm=comm), tuple(whole)), 0


_ragged = Primitive("a2a_ragged_all_to_all")
_ragged.def_impl(lambda *operands, comm: _run(comm, *operands))
_ragged.def_effectful_abstract_eval(_abstract)
ad.primitive_jvps[_ragged] = _jvp
ad.primitive_transposes[_ragged] = _transpose
batching.primitive_batchers[_ragged] = _batched
mlir.register_lowering(_ragged, refuse_lowering)
mlir.register_lowering(_ragged, _lower, platform="cpu")
