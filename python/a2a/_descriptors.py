"""Keeps descriptors of this package apart from the standard streams: where the program runs without one of these, the
kernel gives its number to the next file, which would then receive the program's output."""

from __future__ import annotations

import fcntl
import os

__all__ = ["above_standard", "open_standard"]

_FIRST = 3


def above_standard(descriptor: int) -> int:
    """Return a descriptor that was just opened, or its duplicate above the standard streams, which is not inherited."""
    if descriptor >= _FIRST:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST)
    finally:
        os.close(descriptor)


def open_standard() -> None:
    """Open the standard streams that are closed. For a process of this package, and for its children."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < _FIRST:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
