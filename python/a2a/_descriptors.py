"""Descriptors of our own are never those of the standard streams: where the program runs without one of these, the
kernel gives its number to the next file, and what is printed would go there."""

from __future__ import annotations

import fcntl
import os

__all__ = ["above_standard", "open_standard"]

_FIRST = 3


def above_standard(descriptor: int) -> int:
    """A descriptor that was just opened, or what takes its place. Not inherited then."""
    if descriptor >= _FIRST:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST)
    finally:
        os.close(descriptor)


def open_standard() -> None:
    """Opens what is closed of the standard streams, for a process that is all ours, and for what it starts."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < _FIRST:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
