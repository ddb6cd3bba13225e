"""Memory and streams of NVIDIA GPUs, through the driver that A2A_CUDA_LIBRARY names (in tests its double), and tensors
that lie there."""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from typing import Any

import numpy as np

import a2a

CUDA = 2  # DLPack's device type


@functools.cache
def driver() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ["A2A_CUDA_LIBRARY"])
    require(library.cuInit(0))
    return library


def require(status: int) -> None:
    assert status == 0, f"CUDA: error {status}"


def use(device: int) -> None:
    """This thread works on that device from now on."""
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    require(driver().cuDeviceGet(ctypes.byref(handle), device))
    require(driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), handle))
    require(driver().cuCtxSetCurrent(context))


class Array:
    """A copy of a NumPy array on a device. ``tensor`` is what a2a gets; it holds the memory, and so does this."""

    kind = CUDA

    def __init__(self, array: Any, device: int) -> None:
        use(device)
        data = np.ascontiguousarray(array)
        self.shape, self.dtype, self.nbytes, self.device = data.shape, data.dtype, data.nbytes, device
        self._address = ctypes.c_uint64()
        require(driver().cuMemAlloc_v2(ctypes.byref(self._address), ctypes.c_size_t(max(self.nbytes, 1))))
        weakref.finalize(self, _free, self._address.value, device)
        if self.nbytes:
            require(driver().cuMemcpyHtoD_v2(self._address, data.ctypes.data_as(ctypes.c_void_p), self._size()))

    @property
    def address(self) -> int:
        return self._address.value

    @property
    def tensor(self) -> Any:
        address = self.address if self.nbytes else 0
        return a2a.from_pointer(address, self.shape, self.dtype.name, device=(CUDA, self.device), owner=self)

    def read(self) -> Any:
        """After everything on the streams of the tests."""
        use(self.device)
        for handle in _handles:
            require(driver().cuStreamSynchronize(ctypes.c_void_p(handle)))
        data = np.empty(self.shape, self.dtype)
        if self.nbytes:
            require(driver().cuMemcpyDtoH_v2(data.ctypes.data_as(ctypes.c_void_p), self._address, self._size()))
        return data

    def _size(self) -> ctypes.c_size_t:
        return ctypes.c_size_t(self.nbytes)


def _free(address: int, device: int) -> None:
    use(device)
    require(driver().cuMemFree_v2(ctypes.c_uint64(address)))


_handles = [0]  # of all streams, the default one first


class Stream:
    """A stream of the device that this thread uses, as Torch and CUDA's own Python packages show theirs."""

    def __init__(self) -> None:
        handle = ctypes.c_void_p()
        require(driver().cuStreamCreate(ctypes.byref(handle), 1))
        self.cuda_stream = handle.value or 0
        _handles.append(self.cuda_stream)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    def synchronize(self) -> None:
        require(driver().cuStreamSynchronize(ctypes.c_void_p(self.cuda_stream)))
