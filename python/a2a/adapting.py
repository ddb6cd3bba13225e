"""The tools of packages that imitate another library's calls: ``a2a.torch``, ``a2a.paddle``, and yours.

``Dialect`` is one function of that library, with its own names and classes of errors, run by the core in one step. If a
check of the package fails before that, ``refuse`` tells the peers; in a ``collective`` function the decorator does, for
the operations of the call that ``takes`` has announced. ``refuse_message`` tells the one other rank of a message.
``everywhere`` marks errors that all ranks raise. Call ``wait_to_read`` before a call reads a tensor itself: operations
in flight may still write it.
``Division`` says how an exchange along axes divides a tensor. CONTRIBUTING.md has the steps.
"""

from __future__ import annotations

from ._core import Dialect, collective, everywhere, refuse, refuse_message, takes, wait_to_read
from ._divisions import Division

__all__ = ["Dialect", "Division", "collective", "everywhere", "refuse", "refuse_message", "takes", "wait_to_read"]
