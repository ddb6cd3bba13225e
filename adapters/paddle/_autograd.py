"""Gradients: outputs that an exchange fills become results of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import paddle
from paddle.autograd import PyLayer

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
        found = exchange.back([gradient.detach().contiguous() for gradient in gradients])
        if not all(gradient.stop_gradient for gradient in gradients):  # for a derivative of higher order
            found = results(gradients, found, exchange.there, exchange.back)
        # Paddle wants None exactly for the inputs without a gradient.
        return tuple(gradient if wanted else None for gradient, wanted in zip(found, exchange.wanted, strict=True))


def wants_gradient(inputs: Sequence[Any]) -> bool:
    return paddle.is_grad_enabled() and not all(tensor.stop_gradient for tensor in inputs)


def plain(tensor: Any) -> Any:
    """The tensor for the core, which refuses gradients: it knows no way to bring them back."""
    return tensor if tensor.stop_gradient else tensor.detach()


def results(inputs: Sequence[Any], outputs: Sequence[Any], back: Way, there: Way) -> tuple[Any, ...]:
    """Tensors over the memory of ``outputs`` that are results of ``inputs``. ``back`` brings gradients from the outputs
    to the inputs, ``there`` what has to travel like the inputs did."""
    exchange = _Exchange(outputs, back, there, [not tensor.stop_gradient for tensor in inputs])
    return tuple(_Node.apply(exchange, *inputs))


def connect(inputs: Sequence[Any], outputs: Sequence[Any], back: Way, there: Way) -> None:
    """Makes the tensors of the caller results of ``inputs``, if one of these wants a gradient. Otherwise Paddle is told
    that they were written, so that it refuses a backward pass that needs what they held before."""
    if wants_gradient(inputs):
        for output, result in zip(outputs, results(inputs, outputs, back, there), strict=True):
            paddle.assign(result, output)  # same memory, so nothing is copied
    else:
        for output in outputs:
            output._bump_inplace_version()
