"""The interface of a framework."""

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
    """The functions of a framework that records operations for a backward pass. Each is that of its own class, so that
    no Python code of a subclass runs after the addresses of tensors have been read."""

    requires_grad: Callable[[Any], bool]
    """Whether a tensor requires a gradient."""
    grad_enabled: Callable[[], bool]
    """Whether this thread records."""
    wrote: Callable[[Any], object]
    """Raises the version counter of a tensor."""
    calls: str
    """The module of the calls that have a gradient, for messages."""
    opposite: bool = False
    """``requires_grad`` says the opposite."""
    several: bool = False
    """``wrote`` takes a tuple of tensors."""
    is_neg: Callable[[Any], bool] | None = None
    is_conj: Callable[[Any], bool] | None = None
    """Whether a tensor is lazily negated or conjugated, so that its bytes are not its values."""
    is_dense: Callable[[Any], bool] | None = None
    """Whether the export of a tensor is valid. None for a framework that refuses to export the others."""
    guard: Callable[[], Any] | None = None
    """A context manager to enter around calls of the functions above."""
    dispatches: bool = False
    """Operators on tensors of this type run its Python code, so such tensors may have no memory of their own."""
    values: Callable[[Any], Any] | None = None
    """Returns the tensor that has the values of one that ``dispatches``, when they have arrived."""


class Framework(abc.ABC):
    """A framework, with its tensors in one kind of memory: ``self.memory``.

    The bindings use the first half of this, the conformance kit and the demo the second. Only ``dtypes`` and ``tensor``
    have no default. The constructor imports nothing.
    """

    name: ClassVar[str] = ""
    """Its name in programs and in imports; by default the name of the file."""
    distribution: ClassVar[str] = ""
    """The name of its distribution for pip, by default the same."""
    packages: ClassVar[tuple[str, ...]] = ()
    """The top-level packages of its tensors' types. Without any, calls accept its tensors and allocate none."""
    memories: ClassVar[tuple[str, ...]] = ("host",)
    """The kinds of memory that its tensors may have: "host", "cuda", "npu"."""
    immutable: ClassVar[str] = ""
    """Why its tensors cannot be written, in words; "" for those that can."""
    bfloat16: bool = True
    """Whether it has bfloat16; known without importing it."""

    def __init__(self, memory: str) -> None:
        self.memory = memory

    def is_installed(self) -> bool:
        """Whether it is installed. Does not import it."""
        return importlib.util.find_spec(self.name) is not None

    def version(self) -> str | None:
        """Return its version, or None when it is not installed. Does not import it."""
        if not self.is_installed():
            return None
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return "installed"  # under another name, such as paddlepaddle-gpu

    # ---- for the bindings: called where one of its tensors was given, or was asked for by the framework's name

    def recorder(self, kind: type[Any]) -> Recorder | None:
        """Return the recorder for tensors of this type; None where nothing is recorded."""
        return None

    def require_dtype(self, dtype: str) -> None:  # noqa: B027 (a default)
        """Raise InvalidArgumentError for a dtype of which it can make no tensors now."""

    def from_dlpack(self, array: Any) -> Any:
        """Return a tensor over the memory of ``array``, which has ``__dlpack__`` and a buffer."""
        return importlib.import_module(self.name).from_dlpack(array)

    def empty_like(self, like: Any, shape: list[int]) -> Any:
        """Return an object with ``__dlpack__`` to receive into, on the device of ``like``, with its dtype and this
        shape. Called only for frameworks without DLPack's C exchange API. None: not possible."""
        return None

    convert: ClassVar[Callable[[Any, Any, Any], Any] | None] = None
    """``convert(self, like, made)``: return the result for a tensor ``like``, made of the buffer that was received
    into: that of empty_like(), or on the host a NumPy array. Called when all data has arrived. None: the buffer is the
    result."""

    def current_stream(self, memory: str, device: int) -> int | None:
        """Return the handle of the "cuda" or "npu" stream on which it works. Called for frameworks whose tensors do not
        give it by DLPack's C exchange API. None: unknown."""
        return None

    # ---- for the conformance kit and the demo

    @abc.abstractmethod
    def dtypes(self) -> frozenset[str]:
        """Return the keys of ``dtype_names`` that it has."""

    def devices(self) -> int:
        """Return the number of devices for ``memory``; rank r uses device r."""
        return 0

    def prepare(self, rank: int) -> None:  # noqa: B027 (a default)
        """Called once in each rank, and before that with 0 in a process whose threads are ranks."""

    def make(self, content: Bytes) -> Any:
        """Allocate memory that holds a copy of these bytes, at an address that is a multiple of 64. The kit fills,
        poisons and guards tensors by these bytes."""
        room = np.empty(content.size + 64, np.uint8)
        start = -room.ctypes.data % 64
        memory = room[start : start + content.size]
        memory[...] = content
        return memory

    @abc.abstractmethod
    def tensor(self, memory: Any, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return a tensor over the bytes from ``offset`` on of memory from make(); a copy where tensors cannot be made
        otherwise."""

    def read(self, thing: Any) -> Bytes:
        """Return the bytes of a memory or of a tensor as they are now, on a device after all earlier calls."""
        return bytes_of(thing)


def bytes_of(thing: Any) -> Bytes:
    """Return the bytes of host memory that NumPy, the buffer protocol, ``__array__`` or DLPack exports, in row-major
    order."""
    if not isinstance(thing, np.ndarray):
        try:
            return np.frombuffer(thing, np.uint8)
        except (TypeError, ValueError, BufferError):
            # JAX arrays become NumPy arrays of ml_dtypes; everything else goes by __array__ or DLPack.
            thing = np.asarray(thing) if hasattr(thing, "__array__") else np.from_dlpack(thing)
    return np.ascontiguousarray(thing).reshape(-1).view(np.uint8)
