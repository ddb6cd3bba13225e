"""Averages the gradients of a ``paddle.DataParallel`` over its ranks, in place of Paddle's EagerReducer."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
from paddle.base import core

import a2a
from a2a.adapting import collective, everywhere, takes

from ._arguments import plain

# Adds a hook to the running backward pass; Paddle removes it afterwards.
_at_the_end: Any = core.eager._add_backward_final_hook


class Reducer:
    """After each backward pass that changed gradients on this rank, they are averaged over the ranks, in place. A rank
    without a gradient that another one has counts as zeros, and gets the average as well, so ranks may use different
    parameters. With several passes for one step, as in reentrant recomputation, each averages the gradients that have
    changed since the one before; gradients that were averaged stay unchanged."""

    def __init__(self, comm: a2a.Communicator, parameters: Sequence[Any]) -> None:
        self._comm, self._parameters = comm, parameters
        self._changed = np.zeros(len(parameters), np.int32)
        self._synchronises = False  # of the last forward pass
        self._awaits_end = False
        self._passes = 0  # backward passes averaged since the last forward pass
        # Paddle holds the hooks where no collector of cycles finds them, so they must not hold this object.
        this = weakref.ref(self)
        for at, parameter in enumerate(parameters):

            def hook(*_: Any, at: int = at) -> None:
                reducer = this()
                if reducer is not None:
                    reducer._arrived(at)

            parameter._register_backward_hook(hook)

    def begin(self, synchronises: bool) -> None:
        """Call at the begin of a forward pass, within no_sync() or not."""
        self._synchronises, self._passes = synchronises, 0

    def prepare_for_backward(self, outputs: Sequence[Any]) -> None:
        """DataParallel calls this. It does nothing: the parameters on which the outputs depend need not be known before
        the backward pass."""

    def _arrived(self, at: int) -> None:
        """Called when the gradient of a parameter is complete in this pass."""
        self._changed[at] = 1
        if self._synchronises and not self._awaits_end:
            self._awaits_end = True
            _at_the_end(self._end)

    def _end(self) -> None:
        self._awaits_end = False
        self._passes += 1
        with paddle.no_grad():
            _average(self._comm, self._parameters, self._changed, self._passes)
        self._changed[:] = 0


@collective
def _average(comm: a2a.Communicator, parameters: Sequence[Any], changed: Any, passes: int) -> None:
    """``changed``: 1 for each parameter whose gradient has changed on this rank. The same ones are averaged on all."""
    takes(2)  # or more, or 1: this rank does not know it yet
    mine = [at for at in changed.nonzero()[0].tolist() if parameters[at].grad is not None]
    told = np.zeros(len(parameters) + 2, np.int32)
    told[mine] = 1
    told[-2:] = passes, -passes
    comm.allreduce(told, op="max")
    wanted = told[:-2].nonzero()[0].tolist()
    takes(1 + len(wanted), together=True)
    if told[-2] != -told[-1]:
        takes(1)
        raise everywhere(
            a2a.MismatchError(
                f"rank {comm.rank}: this is backward pass {passes} after a forward pass, but on another rank it is "
                f"pass {told[-2] if told[-2] != passes else -told[-1]}: the ranks average gradients of different steps"
            )
        )
    works: list[a2a.Work] = []
    errors: list[BaseException] = []
    for at in wanted:
        try:
            works.append(_start(comm, parameters[at]))
        except BaseException as error:  # every rank starts the rest as well
            errors.append(error)
    for work in works:
        try:
            work.wait()
        except a2a.Error as error:
            errors.append(error)
    if errors:
        raise errors[0]


@collective
def _start(comm: a2a.Communicator, parameter: Any) -> a2a.Work:
    work = comm.allreduce(_gradient(parameter), op="avg", async_op=True)
    assert work is not None
    return work


def _gradient(parameter: Any) -> Any:
    if parameter.grad is None:
        parameter.grad = paddle.zeros_like(parameter)
    make_contiguous(parameter)
    return plain(parameter.grad, f"the gradient of {parameter.name}")


def make_contiguous(parameter: Any) -> None:
    """Make the gradient contiguous: a backward pass may leave it transposed."""
    gradient = parameter.grad
    if gradient is not None and gradient.is_dense() and not gradient.is_contiguous():
        parameter.grad = gradient.contiguous()
