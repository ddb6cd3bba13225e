"""The package ``a2a`` under a name that no other distribution has: ``import a2a_comm as a2a``.

``a2a_comm`` is the module ``a2a``, ``a2a_comm.torch`` is ``a2a.torch``, and so on for every name below it. It also
works where a2a-sdk (Agent2Agent) has replaced ``a2a/__init__.py``, the one file that both packages have: the names of
this package are then added to the module ``a2a``, which keeps its own.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

import a2a


class _Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``a2a_comm.x`` in ``a2a.x``, the same module."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, rest = name.partition(".")
        if package != "a2a_comm" or rest == "__main__" or importlib.util.find_spec(f"a2a.{rest}") is None:
            return None
        return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = importlib.import_module(_real(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        # It has run as a2a.x. The import has just named it a2a_comm.x, which its own relative imports would reject.
        alias = module.__spec__
        module.__spec__ = alias.loader_state if alias is not None else None

    def get_code(self, name: str) -> types.CodeType | None:
        """For ``python -m a2a_comm.x``."""
        spec = importlib.util.find_spec(_real(name))
        loader: Any = spec.loader if spec is not None else None
        code: types.CodeType | None = loader.get_code(_real(name))
        return code


def _real(name: str) -> str:
    return "a2a" + name.removeprefix("a2a_comm")


def _complete(module: types.ModuleType) -> None:
    """Add the names that are missing where another distribution's ``a2a/__init__.py`` has run."""
    try:
        names = importlib.import_module("a2a._names")
    except ImportError as error:
        where = getattr(module, "__file__", None) or list(module.__path__)
        raise ImportError(
            f"a2a_comm: the module a2a that Python finds, {where}, is not that of a2a-comm ({error}). "
            "Remove it from sys.path, or install a2a-comm again"
        ) from error
    for name in names.__all__:
        if not hasattr(module, name):
            setattr(module, name, getattr(names, name))


_complete(a2a)
sys.meta_path.insert(0, _Alias())
sys.modules[__name__] = a2a
