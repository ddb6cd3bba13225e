"""Errors that are both this package's and what torch raises in the same place."""

from __future__ import annotations

from a2a import Error, InvalidArgumentError, PeerLostError, TimeoutError

__all__ = ["ArgumentTypeError", "AxisError", "SplitError", "TensorError", "in_torchs_words"]


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """An argument is not a tensor, not a list, or not a list of integers."""


class AxisError(InvalidArgumentError, IndexError):
    """A tensor has no such dimension."""


class SplitError(InvalidArgumentError, RuntimeError):
    """Split sizes, or the number of tensors in a list, do not fit the tensors or the group."""


class TensorError(InvalidArgumentError, NotImplementedError):
    """A tensor cannot take part: sparse, nested, quantized, meta, lazily conjugated or negated, or an output that
    requires a gradient. (NotImplementedError is a RuntimeError.)"""


def in_torchs_words(error: Error) -> Error:
    """The error, with the words by which programs tell torch's errors apart."""
    for kind, words in _WORDS.items():
        if isinstance(error, kind) and words not in str(error):
            error.args = (f"{error} ({words})",)
    return error


_WORDS = {TimeoutError: "the timeout has passed", PeerLostError: "Connection closed by peer"}
