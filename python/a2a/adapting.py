"""What packages that carry another library's calls are made of: ``a2a.torch`` and ``a2a.paddle``, and yours.

``Dialect`` is one function of that library, told in its own names and classes of errors, and run by the core in one
step. A check of the package itself that fails before that is told to the peers with ``refuse``, or by itself in a
function that is ``collective``. ``Division`` says how an exchange along axes divides a tensor. CONTRIBUTING.md has the
steps.
"""

from __future__ import annotations

from ._core import Dialect, collective, refuse
from ._divisions import Division

__all__ = ["Dialect", "Division", "collective", "refuse"]
