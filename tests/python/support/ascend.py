"""Memory and streams of Ascend devices, through the AscendCL that A2A_ASCENDCL_LIBRARY names (in tests its double), and
tensors that lie there."""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from typing import Any

import numpy as np
from device_tensors import ALLOCATORS, Tensor

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

    kind = EXT_DEV

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


# ---- tensors with DLPack's C exchange API ----------------------------------------------------------------------------

ALLOCATORS[EXT_DEV] = Memory
_codes = {"i": 0, "u": 1, "f": 2}


def tensor(array: Any, device: int) -> Tensor:
    """A copy of a NumPy array of integers or floats."""
    memory = Memory(array.nbytes, device)
    memory.write(array)
    return Tensor(memory, array.shape, (_codes[array.dtype.kind], 8 * array.dtype.itemsize, 1))


def array_of(tensor: Tensor) -> Any:
    code, bits, _ = tensor.dtype
    kind = next(kind for kind, number in _codes.items() if number == code)
    return np.frombuffer(tensor.memory.read(), f"{kind}{bits // 8}").reshape(tensor.shape)
