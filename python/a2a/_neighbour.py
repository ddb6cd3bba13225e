"""The unrelated ``a2a-sdk`` (Agent2Agent) owns the import name ``a2a`` too.

Installed before this package it loses its ``a2a/__init__.py`` to ours, and ``import a2a`` warns. Installed after, it
replaces ours: then ``import a2a`` is its own and silent, and the ``a2a`` command tells what happened. Uninstalled, it
takes ``a2a/__init__.py`` along. ``import a2a_comm`` works in all of these cases.
"""

from __future__ import annotations

import os
import sys
import warnings

ADVICE = (
    "the unrelated package a2a-sdk (Agent2Agent) is or was installed in the place of a2a-comm. Both use the import "
    "name 'a2a', and the one installed last replaces a2a/__init__.py. Write `import a2a_comm as a2a`, which works "
    "beside it, and `python -m a2a_comm` for the command; or give each an environment of its own: "
    "pip uninstall a2a-sdk a2a-comm, then install the one that this environment needs"
)


def has_sdk(*folders: str) -> bool:
    """Whether a2a-sdk has left files in one of the folders of this package. Costs a few microseconds."""
    # Every release of a2a-sdk has had a2a/client; this package has no such module.
    return any(os.path.exists(f"{folder}/client/__init__.py") for folder in folders)  # noqa: PTH110


def warn_of_sdk(*folders: str) -> None:
    """Warns of a2a-sdk, unless the program has imported ``a2a_comm``, which works beside it."""
    if "a2a_comm" not in sys.modules and has_sdk(*folders):
        warnings.warn(ADVICE, RuntimeWarning, stacklevel=3)


def import_names() -> str:
    """By which names this package is imported, for ``a2a info``; with the advice where another has been at one."""
    from . import _core

    if has_sdk(os.path.dirname(__file__), os.path.dirname(_core.__file__)):  # noqa: PTH120
        return f"a2a_comm alone is sure: {ADVICE}"
    return "a2a, a2a_comm"
