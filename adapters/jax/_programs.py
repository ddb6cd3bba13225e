"""What orders the operations of compiled programs, within a program and from one to the next: an ordered effect of JAX.

JAX threads a token through everything with the effect, loops and branches included, and from each program to the next
one of the same thread. So all ranks that run the same program start its operations in one order."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from collections import deque
from typing import Any

import jax
import numpy as np
from jax._src import core, dispatch, effects
from jax._src.interpreters import partial_eval, pxla
from jax.interpreters import mlir

from a2a._core import abort_programs, before_operations, before_starvation, xla_handler

__all__ = ["call", "effect", "is_traced", "program_of", "wait_for_programs"]

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


class _Program:
    """A program that is lowered. Its calls have one number."""

    def __init__(self, number: int) -> None:
        self.number = number


_numbers = itertools.count(1)


def program_of(ctx: mlir.LoweringRuleContext) -> int:
    """Return the number of the program that is lowered."""
    kept = ctx.module_context.keepalives
    found = next((each for each in kept if isinstance(each, _Program)), None)
    if found is None:
        found = _Program(next(_numbers))
        kept.append(found)
    return found.number


def is_traced() -> bool:
    """Whether operations are recorded for a program here, and not run."""
    trace = core.trace_ctx.trace
    while hasattr(trace, "parent_trace"):
        trace = trace.parent_trace
    return isinstance(trace, partial_eval.DynamicJaxprTrace)


# ---- from one program to the next ------------------------------------------------------------------------------------


class _Thread(threading.local):
    """What a thread has started."""

    def __init__(self) -> None:
        self.program = 0  # the last one
        # Programs behind which others were started before they ended: the token, the program, and the next one.
        self.followed: deque[tuple[Any, int, int]] = deque()


_here = _Thread()
_tokens_of: dict[int, dict[Any, Any]] = {}  # by thread
_add_tokens = pxla.ExecuteReplicated._add_tokens_to_inputs


def _has_failed(token: Any) -> bool:
    """Wait for the end of the program whose result a token is."""
    try:
        token.block_until_ready()
    except RuntimeError:
        return True
    return False


def _look_back(wait: bool) -> None:
    """A program that fails takes those with it that were started behind it. Other ranks may have had the error before
    they started these, and then run them; nobody knows. So no rank goes on."""
    followed = _here.followed
    while followed and (wait or followed[0][0]._buf.is_ready()):
        if not _has_failed(followed[0][0]):
            followed.popleft()
            continue
        programs = {number for _, *numbers in followed for number in numbers}
        followed.clear()
        abort_programs("a compiled program failed, and the programs that were started behind it did not run", programs)


def _with_tokens(executable: Any, inputs: Any) -> Any:
    """ExecuteReplicated._add_tokens_to_inputs, which JAX calls before it starts a program, has no hook for what an
    effect needs here: a program that has failed ends alone, where its error came before the next one is started. JAX
    would hand the error on. It would also copy the token of each program."""
    if effect not in executable.ordered_effects:
        return _add_tokens(executable, inputs)
    tokens = dispatch.runtime_tokens.current_tokens
    _tokens_of[threading.get_ident()] = tokens
    before = _here.program
    _here.program = next((each.number for each in executable.keepalive or () if isinstance(each, _Program)), 0)
    _look_back(wait=False)
    last = tokens.get(effect)
    if last is None:
        return _add_tokens(executable, inputs)
    if not last._buf.is_ready():
        _here.followed.append((last, before, _here.program))
    elif _has_failed(last):
        del tokens[effect]
        return _add_tokens(executable, inputs)
    if len(executable.ordered_effects) > 1 or last._buf.devices() != set(executable._local_devices):
        return _add_tokens(executable, inputs)
    return [last._buf, *inputs]


pxla.ExecuteReplicated._add_tokens_to_inputs = _with_tokens


def _starves(waiting: int) -> bool:
    """Whether XLA has no thread for programs that were started. It has one for each CPU, or for each device if these
    are more."""
    own = os.environ.get("NPROC", "")
    threads = max(int(own) if own.isdigit() else len(os.sched_getaffinity(0)), jax.local_device_count("cpu"))
    alive = {thread.ident for thread in threading.enumerate()}
    for thread in _tokens_of.keys() - alive:
        _tokens_of.pop(thread, None)
    lasts = [tokens.get(effect) for tokens in list(_tokens_of.values())]
    return waiting >= threads and sum(last is not None and not last._buf.is_ready() for last in lasts) > waiting


before_starvation(_starves)


def wait_for_programs() -> None:
    """Wait until the programs that this thread has dispatched have ended, so that an operation outside of them comes
    after theirs. Who reads the results of one that has failed gets its error."""
    tokens = dispatch.runtime_tokens
    if effect not in tokens.current_tokens:
        return
    if _has_failed(tokens.current_tokens[effect]):
        del tokens.current_tokens[effect]
    for device, token in list(tokens.output_runtime_tokens.items()):  # of the last program on each, maybe one of these
        if _has_failed(token):
            del tokens.output_runtime_tokens[device]
    _look_back(wait=True)


before_operations(wait_for_programs)
atexit.register(wait_for_programs)  # before JAX's own wait, which would print the error of a program once more
