"""Gradients: outputs that an exchange fills become results of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import paddle
from paddle.autograd import PyLayer

import a2a
from a2a.adapting import collective

# An exchange that makes its own outputs: from tensors like the outputs to tensors like the inputs, or the inverse.
Way = Callable[[Sequence[Any]], Sequence[Any]]


class _Exchange:
    """An object that hides its tensors from PyLayer: they are no inputs of the node."""

    def __init__(
        self, comm: a2a.Communicator, outputs: Sequence[Any], back: Way, there: Way, wanted: list[bool]
    ) -> None:
        self.comm, self.outputs, self.back, self.there, self.wanted = comm, outputs, back, there, wanted


class _Node(PyLayer):  # type: ignore[misc, unused-ignore]
    """The node of an exchange in the graph. The exchange is done, or in flight, when the node is made."""

    @staticmethod
    def forward(ctx: Any, exchange: _Exchange, *inputs: Any) -> tuple[Any, ...]:
        ctx.exchange = exchange
        results = tuple(output.detach() for output in exchange.outputs)
        exchange.outputs = ()  # so that the node does not keep them alive
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        exchange = ctx.exchange
        found = _sent(exchange.comm, exchange.back, gradients)
        if not all(gradient.stop_gradient for gradient in gradients):  # a derivative of higher order is wanted
            found = results(exchange.comm, gradients, found, exchange.there, exchange.back)
        # Paddle requires None exactly for the inputs without a gradient.
        return tuple(gradient if wanted else None for gradient, wanted in zip(found, exchange.wanted, strict=True))


@collective
def _sent(comm: a2a.Communicator, back: Way, gradients: Sequence[Any]) -> Sequence[Any]:
    """A rank that fails before its exchange, as for want of memory, tells its peers."""
    return back([_values(gradient) for gradient in gradients])


def _values(gradient: Any) -> Any:
    """Return the gradient without a gradient of its own. A device tensor is made contiguous, because the core does not
    accept gaps there."""
    values = gradient.detach()
    return values if values.place.is_cpu_place() else values.contiguous()


def wants_gradient(inputs: Sequence[Any]) -> bool:
    """Whether operations on the inputs are recorded. Objects that are no tensors do not count."""
    return not all(getattr(tensor, "stop_gradient", True) for tensor in inputs) and paddle.is_grad_enabled()


def require_no_leaf(output: Any, name: str) -> None:
    """Raise for a leaf that requires a gradient: it cannot become the result of an exchange that has one."""
    if not getattr(output, "stop_gradient", True) and output.is_leaf:
        raise a2a.InvalidArgumentError(
            f"{name} is a leaf with stop_gradient=False, and the input has a gradient, too; pass an output with "
            "stop_gradient=True"
        )


def results(
    comm: a2a.Communicator, inputs: Sequence[Any], outputs: Sequence[Any], back: Way, there: Way
) -> tuple[Any, ...]:
    """Return tensors over the memory of ``outputs`` that are results of ``inputs``. ``back`` sends gradients from the
    outputs to the inputs, ``there`` sends tensors the way of the inputs. Both get tensors whose own gradient they
    ignore."""
    exchange = _Exchange(comm, outputs, back, there, [not tensor.stop_gradient for tensor in inputs])
    return tuple(_Node.apply(exchange, *inputs))


def connect(comm: a2a.Communicator, inputs: Sequence[Any], outputs: Sequence[Any], back: Way, there: Way) -> None:
    """Make the tensors of the caller results of ``inputs``."""
    for output, result in zip(outputs, results(comm, inputs, outputs, back, there), strict=True):
        paddle.assign(result, output)  # same memory, so nothing is copied
