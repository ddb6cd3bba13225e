"""Changes a module of others: now if the program has imported it, otherwise when it does."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["change"]


def change(name: str, how: Callable[[Any], None]) -> None:
    """Call ``how`` with the module of this name, once it is there. Nothing is imported for it."""
    if name in sys.modules:
        how(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, how))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module as usual, once, and changes it when it has been loaded."""

    def __init__(self, name: str, how: Callable[[Any], None]) -> None:
        self._name, self._how = name, how

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            _load_and_change(spec.loader, self._how)
        return spec


def _load_and_change(loader: Any, how: Callable[[Any], None]) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        how(module)

    loader.exec_module = exec_module
