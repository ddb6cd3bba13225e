"""Errors that are both a2a's and those that Paddle raises in the same place."""

from __future__ import annotations

from a2a import InvalidArgumentError

__all__ = ["ArgumentTypeError", "CallError"]


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """An argument is of the wrong type, where Paddle raises TypeError or ValueError."""


class CallError(InvalidArgumentError, RuntimeError):
    """An impossible call, where Paddle raises RuntimeError."""
