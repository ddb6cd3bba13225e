"""Errors that are both this package's and what torch raises in the same place."""

from __future__ import annotations

from a2a import InvalidArgumentError

__all__ = ["ArgumentTypeError", "SplitError", "TensorError"]


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """An argument is not a tensor, not a list, or not a list of integers."""


class SplitError(InvalidArgumentError, RuntimeError):
    """Split sizes, or the number of tensors in a list, do not fit the tensors or the group."""


class TensorError(InvalidArgumentError, NotImplementedError):
    """A tensor cannot take part: sparse, nested, quantized, meta, lazily conjugated or negated, or an output that
    requires a gradient. (NotImplementedError is a RuntimeError.)"""
