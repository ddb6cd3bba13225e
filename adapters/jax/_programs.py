"""What orders the operations of compiled programs, within a program and from one to the next: an ordered effect of JAX.

JAX threads a token through everything with the effect, loops and branches included, and from each program to the next
one of the same thread. So all ranks that run the same program start its operations in one order."""

from __future__ import annotations

import atexit
from typing import Any

import jax
import numpy as np
from jax._src import core, dispatch, effects
from jax.interpreters import mlir

from a2a._core import before_operations, xla_handler

__all__ = ["call", "effect", "wait_for_programs"]

_TARGET = "a2a_call"


class Collective(effects.Effect):  # type: ignore[misc]
    """The effect of all operations of a2a. There is one, because a program may use several communicators."""

    def __str__(self) -> str:
        return "a2a"


effect = Collective()
for kinds in (
    effects.lowerable_effects,
    effects.ordered_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    kinds.add_type(Collective)

jax.ffi.register_ffi_target(_TARGET, xla_handler(), platform="cpu")


def call(ctx: mlir.LoweringRuleContext, number: int, operands: Any, aliases: dict[int, int]) -> Any:
    """Lower an operation to a call of the handler: its operands and results, and after them the token. ``aliases`` has
    for each result that holds an operand the number of that operand."""
    with_token = ctx.replace(
        avals_in=[*ctx.avals_in, core.abstract_token], avals_out=[*ctx.avals_out, core.abstract_token]
    )
    lower = jax.ffi.ffi_lowering(
        _TARGET,
        has_side_effect=True,
        operand_output_aliases={operand: result for result, operand in aliases.items()},
    )
    made = lower(with_token, *operands, ctx.tokens_in.get(effect), call=np.uint64(number))
    *results, token = made
    ctx.set_tokens_out(mlir.TokenSet({effect: token}))
    return results


def wait_for_programs() -> None:
    """Wait until the programs that this thread has dispatched have ended, so that an operation outside of them comes
    after theirs. Who reads the results of one that has failed gets its error. Programs after this call do not: JAX
    hands the error on with the token, which goes."""
    tokens = dispatch.runtime_tokens
    if effect not in tokens.current_tokens:
        return
    _wait(tokens.current_tokens, effect)
    for device in list(tokens.output_runtime_tokens):  # of the last program on each, which may be one of these
        _wait(tokens.output_runtime_tokens, device)


def _wait(tokens: dict[Any, Any], key: Any) -> None:
    try:
        tokens[key].block_until_ready()
    except RuntimeError:
        del tokens[key]


before_operations(wait_for_programs)
atexit.register(wait_for_programs)  # before JAX's own wait, which would print the error of a program once more
