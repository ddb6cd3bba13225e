"""One small file for each framework; ``cuda/`` and ``npu/`` have those for tensors on devices. It has

- ``DTYPES``: the dtypes of ``cases.DTYPES`` that it has.
- ``MEMORY``: where its tensors live: "host", "cuda" or "npu". Each transport serves one of them.
- ``OUTPUTS``: whether its tensors can be received into. Where not, NumPy's are, and it receives what calls allocate.
- ``devices()``: how many there are; rank r has number r. On the host there are none, and no such function.
- ``prepare(rank)``: called once in each rank; before that with 0 in a process whose threads are ranks.
- ``make(content)``: memory that holds a copy of these bytes (or, on the host, the bytes themselves), at an address that
  is a multiple of 64.
- ``tensor(memory, offset, dtype, shape)``: a tensor over the bytes from ``offset`` on; a copy where tensors cannot be
  made otherwise.
- ``read(thing)``: the bytes of a memory or of a tensor as they are now, on a device after all that was called before.

The kit fills, poisons and guards tensors by the bytes that it gives to ``make()``, and looks at all of them by
``read()``. ``a2a.conformance.host`` has ``make`` and ``read`` of host memory.

A framework's name is its file's here, or the path of a file anywhere; nothing else has to know about it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..cases import DTYPES

__all__ = ["Framework", "defect", "installed", "is_installed", "known", "load", "short"]

Bytes = npt.NDArray[np.uint8]
_FOLDERS = {"host": "", "cuda": ".cuda", "npu": ".npu"}


class Framework(Protocol):
    """What such a file has."""

    DTYPES: frozenset[str]
    MEMORY: str
    OUTPUTS: bool

    def devices(self) -> int: ...
    def prepare(self, rank: int) -> None: ...
    def make(self, content: Bytes) -> Any: ...
    def tensor(self, memory: Any, offset: int, dtype: str, shape: tuple[int, ...]) -> Any: ...
    def read(self, thing: Any) -> Bytes: ...


def known(memory: str = "host") -> list[str]:
    """The names of those that come with the kit, NumPy first."""
    folder = Path(__file__).parent / _FOLDERS[memory].lstrip(".")
    names = [file.stem for file in folder.glob("*.py") if file.stem != "__init__"]
    return sorted(names, key=lambda name: (name != "numpy", name))


def installed(memory: str = "host") -> list[str]:
    """Those of them that this environment has."""
    return [name for name in known(memory) if is_installed(name)]


def is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@functools.cache
def load(name: str, memory: str = "host") -> Framework:
    """A framework by its name and the kind of memory, or by the path of its file."""
    if not name.endswith(".py"):
        return importlib.import_module(f"{__name__}{_FOLDERS[memory]}.{name}")
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


def defect(framework: Framework) -> str:
    """What a file of somebody else's has not, or has wrong; "" for nothing."""
    on_device = getattr(framework, "MEMORY", "") in ("cuda", "npu")
    wanted = {name for name in (*Framework.__annotations__, *vars(Framework)) if not name.startswith("_")}
    lacking = sorted(name for name in wanted if not hasattr(framework, name) and (on_device or name != "devices"))
    if lacking:
        return f"has no {', '.join(lacking)}"
    if not isinstance(framework.DTYPES, (set, frozenset)) or not framework.DTYPES:
        return f"has DTYPES = {framework.DTYPES!r}, which is no set of names"
    unknown = sorted(str(name) for name in framework.DTYPES - DTYPES.keys())
    return f"has DTYPES that the kit does not know: {', '.join(unknown)}" if unknown else ""
