"""One module for each framework. It has

- ``DTYPES``: the names of the dtypes (of ``cases.DTYPES``) that it has.
- ``OUTPUTS``: whether its tensors can be received into.
- ``tensor(memory, dtype, shape)``: a tensor over (or, where it must, with a copy of) a uint8 array.
- ``prepare()``: called once in each rank.

Reading is ``a2a.testing.as_bytes``. To add a framework, add a module here; nothing else names it.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from types import ModuleType

__all__ = ["installed", "load"]


def installed() -> list[str]:
    """Names of the frameworks that this environment has, NumPy first."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return sorted((name for name in names if importlib.util.find_spec(name)), key=lambda name: (name != "numpy", name))


def load(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")
