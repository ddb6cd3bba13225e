"""One small file for each framework, or for each kind of memory of one. It has

- ``DTYPES``: the dtypes of ``cases.DTYPES`` that it has.
- ``MEMORY``: where its tensors live: "host", "cuda" or "npu". Each transport serves one of them.
- ``OUTPUTS``: whether its tensors can be received into. Where not, NumPy's are, and it receives what calls allocate.
- ``prepare()``: called once in each rank; before that once in a process whose threads are ranks.
- ``make(content)``: memory that holds a copy of these bytes (or, on the host, the bytes themselves), at an address that
  is a multiple of 64.
- ``tensor(memory, offset, dtype, shape)``: a tensor over the bytes from ``offset`` on; a copy where tensors cannot be
  made otherwise.
- ``read(thing)``: the bytes of a memory or of a tensor as they are now.

The kit fills, poisons and guards tensors by the bytes that it gives to ``make()``, and looks at all of them by
``read()``. ``a2a.conformance.host`` has ``make`` and ``read`` of host memory.

A framework's name is its file's here, or the path of a file anywhere; nothing else has to know about it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Framework", "installed", "is_installed", "known", "load", "short"]

Bytes = npt.NDArray[np.uint8]


class Framework(Protocol):
    """What such a file has."""

    DTYPES: frozenset[str]
    MEMORY: str
    OUTPUTS: bool

    def prepare(self) -> None: ...
    def make(self, content: Bytes) -> Any: ...
    def tensor(self, memory: Any, offset: int, dtype: str, shape: tuple[int, ...]) -> Any: ...
    def read(self, thing: Any) -> Bytes: ...


def known() -> list[str]:
    """The names of those that come with the kit, NumPy first."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(names, key=lambda name: (name != "numpy", name))


def installed() -> list[str]:
    """Those of them that this environment has."""
    return [name for name in known() if is_installed(name)]


def is_installed(name: str) -> bool:
    """Whether the package is there that a file is for, which its name begins with: torch_cuda is for torch."""
    return importlib.util.find_spec(name.partition("_")[0]) is not None


@functools.cache
def load(name: str) -> Framework:
    """A framework by its name, or by the path of its file."""
    if not name.endswith(".py"):
        return importlib.import_module(f"{__name__}.{name}")
    unique = f"{__name__}._{short(name)}_{abs(hash(Path(name).resolve()))}"
    spec = importlib.util.spec_from_file_location(unique, name)
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    spec.loader.exec_module(module)
    return module


def short(name: str) -> str:
    """The name to show: a file's without folder and ending."""
    return Path(name).stem if name.endswith(".py") else name
