"""Errors that are both this package's and those that torch raises in the same place."""

from __future__ import annotations

from typing import Any

from a2a import Error, InvalidArgumentError, PeerLostError, TimeoutError

__all__ = [
    "ArgumentTypeError",
    "AxisError",
    "MembersError",
    "SplitError",
    "TensorError",
    "in_torchs_words",
    "not_a_tensor",
]


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """An argument is not a tensor, not a list, or not a list of integers."""


class AxisError(InvalidArgumentError, IndexError):
    """A tensor has no such dimension."""


class SplitError(InvalidArgumentError, RuntimeError):
    """Split sizes, or the number of tensors in a list, do not fit the tensors or the group."""


class MembersError(InvalidArgumentError, RuntimeError):
    """The ranks that a process group is to have cannot be: their handles, or a number that was used already."""


class TensorError(InvalidArgumentError, NotImplementedError):
    """A tensor cannot take part: sparse, nested, quantized, meta, lazily conjugated or negated, or an output that
    requires a gradient. (NotImplementedError is a RuntimeError.)"""


def not_a_tensor(name: str, given: Any) -> ArgumentTypeError:
    """Return the error for an argument that is no tensor."""
    kind = type(given)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    advice = "" if given is None else "; pass torch.as_tensor(x)"
    return ArgumentTypeError(f"{name} is {module}{kind.__qualname__}, not torch.Tensor{advice}")


def in_torchs_words(error: Error) -> Error:
    """Return the error with the words by which programs tell torch's errors apart."""
    for kind, words in _WORDS.items():
        if isinstance(error, kind) and words not in str(error):
            error.args = (f"{error} ({words})",)
    return error


_WORDS = {TimeoutError: "the timeout has passed", PeerLostError: "Connection closed by peer"}
