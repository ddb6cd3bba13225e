"""Memory and streams of Ascend devices, through the AscendCL that A2A_ASCENDCL_LIBRARY names (in tests its double), and
tensors that lie there."""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from typing import Any

import numpy as np

import a2a

# DLPack's device type of other devices, which Torch uses for Ascend.
EXT_DEV = 12
_TO_DEVICE, _TO_HOST = 1, 2


@functools.cache
def acl() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ["A2A_ASCENDCL_LIBRARY"])


@functools.cache
def hccl() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ["A2A_HCCL_LIBRARY"])


def require(status: int) -> None:
    assert status == 0, f"AscendCL or HCCL: error {status}"


def use(device: int) -> None:
    """This thread works on that device from now on."""
    assert acl().aclInit(None) in (0, 100002)  # or somebody has before
    require(acl().aclrtSetDevice(device))


class Memory:
    """Bytes on a device, given back with the last reference."""

    def __init__(self, nbytes: int, device: int) -> None:
        use(device)
        self.nbytes, self.device = nbytes, device
        address = ctypes.c_void_p()
        if nbytes > 0:
            require(acl().aclrtMalloc(ctypes.byref(address), ctypes.c_size_t(nbytes), 0))
            weakref.finalize(self, _free, address.value, device)
        self.address = address.value or 0

    def write(self, array: Any) -> None:
        data = np.ascontiguousarray(array)
        assert data.nbytes == self.nbytes
        self._copy(ctypes.c_void_p(self.address), data.ctypes.data_as(ctypes.c_void_p), _TO_DEVICE)

    def read(self) -> bytes:
        data = np.empty(self.nbytes, np.uint8)
        self._copy(data.ctypes.data_as(ctypes.c_void_p), ctypes.c_void_p(self.address), _TO_HOST)
        return data.tobytes()

    def _copy(self, to: ctypes.c_void_p, from_: ctypes.c_void_p, kind: int) -> None:
        if self.nbytes > 0:
            size = ctypes.c_size_t(self.nbytes)
            require(acl().aclrtMemcpy(to, size, from_, size, kind))


def _free(address: int, device: int) -> None:
    use(device)
    require(acl().aclrtFree(ctypes.c_void_p(address)))


class Array:
    """A copy of a NumPy array on a device. ``tensor`` is what a2a gets."""

    def __init__(self, array: Any, device: int) -> None:
        self.memory = Memory(array.nbytes, device)
        self.memory.write(array)
        self.shape, self.dtype = array.shape, array.dtype

    @property
    def tensor(self) -> Any:
        return self.slice(0, self.shape)

    def slice(self, row: int, shape: tuple[int, ...]) -> Any:
        """A part of the memory, from that row on."""
        start = row * self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))
        address = self.memory.address + start if self.memory.address else 0
        where = (EXT_DEV, self.memory.device)
        return a2a.from_pointer(address, shape, self.dtype.name, device=where, owner=self.memory)

    def read(self) -> Any:
        return np.frombuffer(self.memory.read(), self.dtype).reshape(self.shape)


class Stream:
    """A stream of the device that this thread uses, with the attribute that torch_npu's streams have."""

    def __init__(self) -> None:
        handle = ctypes.c_void_p()
        require(acl().aclrtCreateStream(ctypes.byref(handle)))
        self.npu_stream = handle.value or 0

    def synchronize(self) -> int:
        return acl().aclrtSynchronizeStream(ctypes.c_void_p(self.npu_stream))


def new_communicator(comm: a2a.Communicator) -> int:
    """The address of an HcclComm of all ranks of the communicator, made by hand."""
    root = ctypes.create_string_buffer(4108)
    if comm.rank == 0:
        require(hccl().HcclGetRootInfo(root))
    root.raw = comm.allgather_bytes(root.raw)[0]
    made = ctypes.c_void_p()
    require(hccl().HcclCommInitRootInfo(comm.size, root, comm.rank, ctypes.byref(made)))
    return made.value or 0


# ---- a framework of its own: tensors with DLPack's C exchange API, which a2a can make more of ------------------------


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
    """A contiguous tensor on a device."""

    def __init__(self, memory: Memory, shape: tuple[int, ...], dtype: tuple[int, int, int]) -> None:
        self.memory, self.shape, self.dtype = memory, shape, dtype
        strides = [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape))]
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = (ctypes.c_int64 * len(shape))(*strides)

    def describe(self, tensor: DLTensor) -> None:
        tensor.data, tensor.byte_offset, tensor.ndim = self.memory.address, 0, len(self.shape)
        tensor.device, tensor.dtype = DLDevice(EXT_DEV, self.memory.device), DLDataType(*self.dtype)
        tensor.shape = ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64))
        tensor.strides = ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64))


_codes = {"i": 0, "u": 1, "f": 2}
_exported: dict[int, Any] = {}  # address -> what an exported tensor needs


def tensor(array: Any, device: int) -> Tensor:
    """A copy of a NumPy array of integers or floats."""
    memory = Memory(array.nbytes, device)
    memory.write(array)
    return Tensor(memory, array.shape, (_codes[array.dtype.kind], 8 * array.dtype.itemsize, 1))


def array_of(tensor: Tensor) -> Any:
    code, bits, _ = tensor.dtype
    kind = next(kind for kind, number in _codes.items() if number == code)
    return np.frombuffer(tensor.memory.read(), f"{kind}{bits // 8}").reshape(tensor.shape)


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
    return _export(Tensor(Memory(nbytes, like.device.index), shape, dtype), out)


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
def _stream(_kind: int, _index: int, out: Any) -> int:
    out[0] = None
    return 0


_api = ExchangeAPI(1, 3, None, _allocate, _from_object, _to_object, _borrow, _stream)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_name = b"dlpack_exchange_api"  # which the capsule only points to
Tensor.__dlpack_c_exchange_api__ = _new_capsule(ctypes.addressof(_api), _name, None)  # type: ignore[attr-defined]
