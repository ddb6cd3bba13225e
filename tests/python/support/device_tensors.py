"""Tensors on devices with DLPack's C exchange API, which a2a can make more of: a small framework for the tests."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from a2a.frameworks import Framework, dtype_names

ALLOCATORS: dict[int, Callable[[int, int], Any]] = {}
"""By DLPack's type of the device: (bytes, device) -> memory, which has ``address``, ``kind``, ``device`` and, for
bytes_of(), ``read()``."""

_streams: dict[int, int] = {}  # by DLPack's type of the device: what this framework works on, if not the default stream


@contextlib.contextmanager
def working_on(kind: int, stream: int) -> Iterator[None]:
    """In here the framework works on the stream with that handle."""
    before = _streams.get(kind, 0)
    _streams[kind] = stream
    try:
        yield
    finally:
        _streams[kind] = before


class DLDevice(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", DLDevice), ("ndim", ctypes.c_int32), ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class Managed(ctypes.Structure):
    pass


Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = (
    ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", Deleter),
    ("flags", ctypes.c_uint64), ("tensor", DLTensor),
)  # fmt: skip
ManagedPointer = ctypes.POINTER(Managed)
Allocate = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(DLTensor), ctypes.POINTER(ManagedPointer), ctypes.c_void_p, ctypes.c_void_p
)
FromObject = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ManagedPointer))
ToObject = ctypes.CFUNCTYPE(ctypes.c_int, ManagedPointer, ctypes.POINTER(ctypes.c_void_p))
Borrow = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
CurrentStream = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class ExchangeAPI(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p), ("allocate", Allocate),
        ("from_object", FromObject), ("to_object", ToObject), ("borrow", Borrow), ("stream", CurrentStream),
    )  # fmt: skip


class Tensor:
    """A contiguous tensor on a device, over memory from an offset in bytes on."""

    def __init__(self, memory: Any, shape: tuple[int, ...], dtype: tuple[int, int, int], offset: int = 0) -> None:
        self.memory, self.shape, self.dtype, self.offset = memory, shape, dtype, offset
        strides = [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape))]
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = (ctypes.c_int64 * len(shape))(*strides)

    def describe(self, tensor: DLTensor) -> None:
        tensor.data, tensor.byte_offset, tensor.ndim = self.memory.address, self.offset, len(self.shape)
        tensor.device, tensor.dtype = DLDevice(self.memory.kind, self.memory.device), DLDataType(*self.dtype)
        tensor.shape = ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64))
        tensor.strides = ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64))


def bytes_of(tensor: Tensor) -> Any:
    _, bits, lanes = tensor.dtype
    size = int(np.prod(tensor.shape, dtype=np.int64)) * bits * lanes // 8
    return np.frombuffer(tensor.memory.read(), np.uint8)[tensor.offset :][:size]


_exported: dict[int, Any] = {}  # address -> what an exported tensor needs


def _export(tensor: Tensor, out: Any) -> int:
    managed = Managed(major=1, minor=3, deleter=_delete)
    tensor.describe(managed.tensor)
    _exported[ctypes.addressof(managed)] = (managed, tensor)
    out[0] = ctypes.pointer(managed)
    return 0


@Deleter
def _delete(managed: Any) -> None:
    del _exported[ctypes.addressof(managed.contents)]


@Allocate
def _allocate(prototype: Any, out: Any, _context: Any, _set_error: Any) -> int:
    like = prototype.contents
    shape = tuple(like.shape[i] for i in range(like.ndim))
    dtype = (like.dtype.code, like.dtype.bits, like.dtype.lanes)
    nbytes = int(np.prod(shape, dtype=np.int64)) * like.dtype.bits * like.dtype.lanes // 8
    memory = ALLOCATORS[like.device.kind](nbytes, like.device.index)
    return _export(Tensor(memory, shape, dtype), out)


@FromObject
def _from_object(obj: Any, out: Any) -> int:
    return _export(obj, out)


@ToObject
def _to_object(managed: Any, out: Any) -> int:
    _, tensor = _exported.pop(ctypes.addressof(managed.contents))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))
    out[0] = id(tensor)
    return 0


@Borrow
def _borrow(obj: Any, out: Any) -> int:
    obj.describe(out.contents)
    return 0


@CurrentStream
def _stream(kind: int, _index: int, out: Any) -> int:
    out[0] = _streams.get(kind, 0) or None
    return 0


_api = ExchangeAPI(1, 3, None, _allocate, _from_object, _to_object, _borrow, _stream)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_name = b"dlpack_exchange_api"  # which the capsule only points to
EXCHANGE_API = _new_capsule(ctypes.addressof(_api), _name, None)
"""For classes whose objects have ``describe``."""
Tensor.__dlpack_c_exchange_api__ = EXCHANGE_API  # type: ignore[attr-defined]


class DoubleFramework(Framework):
    """What the kit has to know of tensors on any double. A child says how their memory is made and read."""

    def dtypes(self) -> frozenset[str]:
        return frozenset(dtype_names)

    def devices(self) -> int:
        return int(os.environ.get("A2A_FAKE_DEVICES", "8"))

    def tensor(self, memory: Any, offset: int, dtype: str, shape: tuple[int, ...]) -> Tensor:
        return Tensor(memory, shape, dtype_names[dtype], offset)
