"""Gradients: outputs that an exchange fills become results of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import paddle
from paddle.autograd import PyLayer

import a2a

# An exchange that makes its own outputs: from tensors like the outputs to tensors like the inputs, or the other way.
Way = Callable[[Sequence[Any]], Sequence[Any]]


class _Exchange:
    """What PyLayer is not to look into: the tensors in here are no inputs of the node."""

    def __init__(self, outputs: Sequence[Any], back: Way, there: Way, wanted: list[bool]) -> None:
        self.outputs, self.back, self.there, self.wanted = outputs, back, there, wanted


class _Node(PyLayer):  # type: ignore[misc, unused-ignore]
    """The exchange in the graph. It has taken place, or is under way, when the node is made."""

    @staticmethod
    def forward(ctx: Any, exchange: _Exchange, *inputs: Any) -> tuple[Any, ...]:
        ctx.exchange = exchange
        results = tuple(output.detach() for output in exchange.outputs)
        exchange.outputs = ()  # the node outlives them
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        exchange = ctx.exchange
        found = exchange.back([_values(gradient) for gradient in gradients])
        if not all(gradient.stop_gradient for gradient in gradients):  # for a derivative of higher order
            found = results(gradients, found, exchange.there, exchange.back)
        # Paddle wants None exactly for the inputs without a gradient.
        return tuple(gradient if wanted else None for gradient, wanted in zip(found, exchange.wanted, strict=True))


def _values(gradient: Any) -> Any:
    """Without a gradient of its own. On the host it may have any strides, on a device a backward pass leaves gaps that
    the core does not take."""
    values = gradient.detach()
    return values if values.place.is_cpu_place() else values.contiguous()


def wants_gradient(inputs: Sequence[Any]) -> bool:
    """Whether what becomes of the inputs is recorded. What is no tensor wants nothing."""
    return not all(getattr(tensor, "stop_gradient", True) for tensor in inputs) and paddle.is_grad_enabled()


def require_no_leaf(output: Any, name: str) -> None:
    """A leaf that asks for a gradient of its own cannot become the result of an exchange that has one."""
    if not getattr(output, "stop_gradient", True) and output.is_leaf:
        raise a2a.InvalidArgumentError(
            f"{name} is a leaf with stop_gradient=False, and the input has a gradient, too; pass an output with "
            "stop_gradient=True"
        )


def results(inputs: Sequence[Any], outputs: Sequence[Any], back: Way, there: Way) -> tuple[Any, ...]:
    """Tensors over the memory of ``outputs`` that are results of ``inputs``. ``back`` brings gradients from the outputs
    to the inputs, ``there`` what has to travel like the inputs did. Both get tensors whose own gradient they are not to
    mind."""
    exchange = _Exchange(outputs, back, there, [not tensor.stop_gradient for tensor in inputs])
    return tuple(_Node.apply(exchange, *inputs))


def connect(inputs: Sequence[Any], outputs: Sequence[Any], back: Way, there: Way) -> None:
    """Makes the tensors of the caller results of ``inputs``."""
    for output, result in zip(outputs, results(inputs, outputs, back, there), strict=True):
        paddle.assign(result, output)  # same memory, so nothing is copied
