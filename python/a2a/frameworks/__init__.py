"""The differences between the frameworks whose tensors are exchanged: one small file for each. The rest of the package
uses this one. Nothing is imported before it is used.

A file has ``FRAMEWORK``, a class derived from ``Framework``. Its name is that of the file. A file elsewhere is named by
its path, NAME.py: ``load()`` then registers it for all calls of the process.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from .._core import dtype_names
from ._framework import Bytes, Framework, Recorder, bytes_of

__all__ = [
    "Bytes",
    "Framework",
    "Recorder",
    "bytes_of",
    "dtype_names",
    "installed",
    "known",
    "load",
    "named",
    "of",
    "short",
]

_by_name: dict[str, Framework] = {}
_of_package: dict[str, Framework] = {}
"""Frameworks by the top-level package of their tensors' types."""


def known(memory: str = "") -> list[str]:
    """Return the names of the frameworks that come with this package, NumPy first. With ``memory``, "host", "cuda" or
    "npu", only those that have tensors there."""
    return [name for name, framework in _package().items() if not memory or memory in framework.memories]


def installed(memory: str = "") -> list[str]:
    """Return those of them that this environment has."""
    return [name for name in known(memory) if load(name).is_installed()]


def load(name: str, memory: str = "") -> Framework:
    """Return a framework by its name, or by the path of its file, for its tensors in one kind of memory; by default the
    first that it has. Raises ImportError where there is none."""
    kind = _class_of(name)
    return _made(kind, memory or kind.memories[0])


def named(name: str) -> Framework | None:
    """Return the framework that this package or a loaded file has under this name."""
    _package()
    return _by_name.get(name)


def of(kind: type[Any]) -> Framework | None:
    """Return the framework of a type of tensors, or of a base class of the type. None for an unknown one."""
    _package()
    for base in kind.__mro__:
        found = _of_package.get(base.__module__.partition(".")[0])
        if found is not None:
            return found
    return None


def short(name: str) -> str:
    """Return the name to show: a file's without folder and ending."""
    return Path(name).stem if name.endswith(".py") else name


@functools.cache
def _package() -> dict[str, Framework]:
    files = (file.stem for file in Path(__file__).parent.glob("[!_]*.py"))
    return {name: load(name) for name in sorted(files, key=lambda name: (name != "numpy", name))}


@functools.cache
def _class_of(name: str) -> type[Framework]:
    module = _run(name) if name.endswith(".py") else importlib.import_module(f"{__name__}.{name}")
    kind = getattr(module, "FRAMEWORK", None)
    if not isinstance(kind, type) or not issubclass(kind, Framework):
        raise ImportError(f"{name} has no FRAMEWORK, a class derived from {__name__}.Framework")
    kind.name = vars(kind).get("name") or short(name)
    kind.distribution = vars(kind).get("distribution") or kind.name
    framework = _made(kind, kind.memories[0])
    _by_name.setdefault(kind.name, framework)
    for package in kind.packages:
        _of_package.setdefault(package, framework)
    return kind


@functools.cache
def _made(kind: type[Framework], memory: str) -> Framework:
    return kind(memory)


def _run(path: str) -> Any:
    _package()  # no other file may take their names and tensors
    name = f"{__name__}._{short(path)}_{abs(hash(Path(path).resolve()))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
