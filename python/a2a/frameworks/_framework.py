"""What a2a asks of a framework."""

from __future__ import annotations

import abc
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Recorder:
    """How to ask and tell a framework that records operations for a backward pass. Each function is its own class's, so
    that no Python code of a subclass runs where the memory of tensors has been taken already."""

    requires_grad: Callable[[Any], bool]
    """Of a tensor."""
    grad_enabled: Callable[[], bool]
    """Whether this thread records."""
    wrote: Callable[[Any], object]
    """Raises the version counter of a tensor."""
    calls: str
    """Where calls that have a gradient are, for messages."""
    opposite: bool = False
    """``requires_grad`` says the opposite."""
    several: bool = False
    """``wrote`` takes a tuple of tensors."""
    is_neg: Callable[[Any], bool] | None = None
    is_conj: Callable[[Any], bool] | None = None
    """Whether the values of a tensor are not yet its bytes, but are to be negated or conjugated."""
    is_dense: Callable[[Any], bool] | None = None
    """Whether a tensor's export may be believed. None for a framework that refuses to export the others."""
    guard: Callable[[], Any] | None = None
    """What to enter around the questions above."""
    dispatches: bool = False
    """Operators on tensors of this type run Python code of it, so that they may have no memory of their own."""


class Framework(abc.ABC):
    """A framework, with its tensors in one kind of memory: ``self.memory``.

    The bindings ask the first half of this, the conformance kit and the demo the second. Only ``dtypes`` and ``tensor``
    have no default. Making one imports nothing.
    """

    name: ClassVar[str] = ""
    """What programs call it and Python imports; by default the name of the file."""
    distribution: ClassVar[str] = ""
    """What pip installs, by default the same."""
    packages: ClassVar[tuple[str, ...]] = ()
    """The top-level packages that the types of its tensors come from. Without any, calls take its tensors and allocate
    none."""
    memories: ClassVar[tuple[str, ...]] = ("host",)
    """Where its tensors may live: "host", "cuda", "npu"."""
    immutable: ClassVar[str] = ""
    """Why its tensors cannot be written, in words; "" for those that can."""
    bfloat16: bool = True
    """Whether it has bfloat16, told without importing it."""

    def __init__(self, memory: str) -> None:
        self.memory = memory

    def is_installed(self) -> bool:
        """Does not import it."""
        return importlib.util.find_spec(self.name) is not None

    def version(self) -> str | None:
        """None when it is not installed. Does not import it."""
        if not self.is_installed():
            return None
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return "installed"  # under another name, such as paddlepaddle-gpu

    # ---- for the bindings: called where one of its tensors was given, or was asked for by the framework's name

    def recorder(self, kind: type[Any]) -> Recorder | None:
        """How to ask and tell it about tensors of this type; None where nothing is recorded."""
        return None

    def require_dtype(self, dtype: str) -> None:  # noqa: B027 (a default)
        """Raises InvalidArgumentError for a dtype in which it makes no tensors now."""

    def from_dlpack(self, array: Any) -> Any:
        """A tensor over the memory of ``array``, which has ``__dlpack__`` and a buffer."""
        return importlib.import_module(self.name).from_dlpack(array)

    def empty_like(self, like: Any, shape: list[int]) -> Any:
        """Something with ``__dlpack__`` to receive into on the device of ``like``, with its dtype and this shape. Asked
        of frameworks without DLPack's C exchange API only. None: there is no way."""
        return None

    convert: ClassVar[Callable[[Any, Any, Any], Any] | None] = None
    """``convert(self, like, made)``: the result that belongs to a tensor ``like``, of what was received into:
    empty_like()'s, or on the host a NumPy array. Called once it is full. None: that is the result."""

    def current_stream(self, memory: str, device: int) -> int | None:
        """The handle of the stream of "cuda" or "npu" that it works on. Asked of frameworks whose tensors do not tell
        it by DLPack's C exchange API. None: it says nothing."""
        return None

    # ---- for the conformance kit and the demo

    @abc.abstractmethod
    def dtypes(self) -> frozenset[str]:
        """Those keys of ``dtype_names`` that it has."""

    def devices(self) -> int:
        """How many devices there are for ``memory``; rank r has number r."""
        return 0

    def prepare(self, rank: int) -> None:  # noqa: B027 (a default)
        """Called once in each rank, and before that with 0 in a process whose threads are ranks."""

    def make(self, content: Bytes) -> Any:
        """Memory that holds a copy of these bytes, at an address that is a multiple of 64. The kit fills, poisons and
        guards tensors by these bytes."""
        room = np.empty(content.size + 64, np.uint8)
        start = -room.ctypes.data % 64
        memory = room[start : start + content.size]
        memory[...] = content
        return memory

    @abc.abstractmethod
    def tensor(self, memory: Any, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """A tensor over the bytes from ``offset`` on of what make() returned; a copy where tensors cannot be made
        otherwise."""

    def read(self, thing: Any) -> Bytes:
        """The bytes of a memory or of a tensor as they are now, on a device after all that was called before."""
        return bytes_of(thing)


def bytes_of(thing: Any) -> Bytes:
    """The bytes of host memory that NumPy, the buffer protocol, ``__array__`` or DLPack shows, in row-major order."""
    if not isinstance(thing, np.ndarray):
        try:
            return np.frombuffer(thing, np.uint8)
        except (TypeError, ValueError, BufferError):
            # JAX arrays become NumPy arrays of ml_dtypes; everything else goes by __array__ or DLPack.
            thing = np.asarray(thing) if hasattr(thing, "__array__") else np.from_dlpack(thing)
    return np.ascontiguousarray(thing).reshape(-1).view(np.uint8)
