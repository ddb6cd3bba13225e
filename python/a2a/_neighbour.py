"""The unrelated ``a2a-sdk`` (Agent2Agent) owns the import name ``a2a`` too; the two cannot share an environment.

Installed before this package it loses its ``a2a/__init__.py`` to ours, and ``import a2a`` warns. Installed after, it
replaces ours: then ``import a2a`` is its own and silent, and the ``a2a`` command tells what happened. Uninstalled, it
takes ``a2a/__init__.py`` along.
"""

from __future__ import annotations

import os
import warnings

ADVICE = (
    "the unrelated package a2a-sdk (Agent2Agent) is or was installed in the place of a2a-comm. Both use the import "
    "name 'a2a', and the one installed last replaces files of the other. Give each an environment of its own: "
    "pip uninstall a2a-sdk a2a-comm, then install the one that this environment needs"
)


def warn_of_sdk(*folders: str) -> None:
    """Warns when a2a-sdk has left files in one of the folders of this package. Costs a few microseconds."""
    # Every release of a2a-sdk has had a2a/client; this package has no such module.
    if any(os.path.exists(f"{folder}/client/__init__.py") for folder in folders):  # noqa: PTH110
        warnings.warn(ADVICE, RuntimeWarning, stacklevel=3)
