"""Errors that are both a2a's and what Paddle raises in the same place."""

from __future__ import annotations

from a2a import InvalidArgumentError

__all__ = ["ArgumentTypeError", "CallError"]


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """An argument is of the wrong type, where Paddle raises TypeError or ValueError."""


class CallError(InvalidArgumentError, RuntimeError):
    """A call that cannot be meant, where Paddle raises RuntimeError."""
