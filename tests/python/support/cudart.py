"""Memory, streams and graphs of NVIDIA GPUs, through the driver or what A2A_CUDA_LIBRARY names in its place (in most
tests its double), and tensors that lie there."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import device_tensors
import numpy as np

import a2a

CUDA = 2  # DLPack's device type


@functools.cache
def driver() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ.get("A2A_CUDA_LIBRARY", "libcuda.so.1"))
    require(library.cuInit(0))
    return library


@functools.cache
def nccl() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ.get("A2A_NCCL_LIBRARY", "libnccl.so.2"))


def require(status: int) -> None:
    assert status == 0, f"CUDA or NCCL: error {status}"


def devices() -> int:
    count = ctypes.c_int()
    require(driver().cuDeviceGetCount(ctypes.byref(count)))
    return count.value


def use(device: int) -> None:
    """This thread works on that device from now on."""
    require(driver().cuCtxSetCurrent(_context(device)))


def _context(device: int) -> ctypes.c_void_p:
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    require(driver().cuDeviceGet(ctypes.byref(handle), device))
    require(driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), handle))
    return context


def current() -> int:
    """The device that this thread works on."""
    device = ctypes.c_int()
    require(driver().cuCtxGetDevice(ctypes.byref(device)))
    return device.value


def capability() -> int:
    """The first number of the compute capability of the device that this thread works on."""
    major, number = 75, ctypes.c_int()
    require(driver().cuDeviceGetAttribute(ctypes.byref(number), major, current()))
    return number.value


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
        self.write(data)

    def write(self, array: Any) -> None:
        """Replaces the contents, at once."""
        use(self.device)
        data = np.ascontiguousarray(array, self.dtype)
        assert data.nbytes == self.nbytes
        if self.nbytes:
            require(driver().cuMemcpyHtoD_v2(self._address, data.ctypes.data_as(ctypes.c_void_p), self._size()))
            synchronize(0)  # the call returns when the host's copy is read, which other streams would not wait for

    @property
    def address(self) -> int:
        return self._address.value

    @property
    def tensor(self) -> Any:
        return self.slice(0, self.shape)

    def slice(self, row: int, shape: tuple[int, ...]) -> Any:
        """A part of the memory, from that row on."""
        start = row * self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))
        address = self.address + start if self.nbytes else 0
        return a2a.from_pointer(address, shape, self.dtype.name, device=(CUDA, self.device), owner=self)

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
    require(driver().cuCtxPushCurrent_v2(_context(device)))  # whoever collects garbage keeps the device it works on
    require(driver().cuMemFree_v2(ctypes.c_uint64(address)))
    require(driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))


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
        synchronize(self.cuda_stream)

    def destroy(self) -> None:
        """When nothing is left on it."""
        _handles.remove(self.cuda_stream)
        require(driver().cuStreamDestroy_v2(ctypes.c_void_p(self.cuda_stream)))


def synchronize(stream: int) -> None:
    require(driver().cuStreamSynchronize(ctypes.c_void_p(stream)))


def fill(address: int, value: int, size: int) -> None:
    require(driver().cuMemsetD8_v2(ctypes.c_uint64(address), ctypes.c_ubyte(value), ctypes.c_size_t(size)))
    synchronize(0)


def copy(source: int, target: int, size: int, stream: int) -> None:
    """So many bytes from one address on a device to another, enqueued on that stream."""
    addresses = ctypes.c_uint64(target), ctypes.c_uint64(source)
    require(driver().cuMemcpyAsync(*addresses, ctypes.c_size_t(size), ctypes.c_void_p(stream)))


def order(before: int, after: int) -> None:
    """What is enqueued on the stream ``after`` from now on comes after what is on the stream ``before``."""
    event, without_timing = ctypes.c_void_p(), 2
    require(driver().cuEventCreate(ctypes.byref(event), without_timing))
    require(driver().cuEventRecord(event, ctypes.c_void_p(before)))
    require(driver().cuStreamWaitEvent(ctypes.c_void_p(after), event, 0))
    require(driver().cuEventDestroy_v2(event))


def busy(stream: int) -> bool:
    """Whether something on that stream is not done."""
    status = driver().cuStreamQuery(ctypes.c_void_p(stream))
    not_ready = 600
    require(0 if status == not_ready else status)
    return bool(status == not_ready)


@contextlib.contextmanager
def held_up(device: int, stream: int) -> Iterator[None]:
    """What is enqueued on that stream in here runs when this is left, and not before."""
    word, opener = Array(np.zeros(1, np.uint32), device), Stream()
    equal = 1
    require(driver().cuStreamWaitValue32_v2(ctypes.c_void_p(stream), word._address, ctypes.c_uint32(1), equal))
    try:
        yield
    finally:
        handle = ctypes.c_void_p(opener.cuda_stream)
        require(driver().cuStreamWriteValue32_v2(handle, word._address, ctypes.c_uint32(1), 0))
        opener.synchronize()
        opener.destroy()  # a benchmark makes thousands
        synchronize(stream)  # before the word is freed


@contextlib.contextmanager
def held_up_for(seconds: float, device: int, stream: Stream) -> Iterator[Callable[[], float]]:
    """What is enqueued on that stream in here waits for so many seconds. Yields what says how many have passed."""
    held = contextlib.ExitStack()
    held.enter_context(held_up(device, stream.cuda_stream))

    def let_go() -> None:
        use(device)
        held.close()

    start = time.monotonic()
    timer = threading.Timer(seconds, let_go)
    timer.start()
    try:
        yield lambda: time.monotonic() - start
    finally:
        timer.join()


class Graph:
    """What ``body`` enqueues on the stream, to be launched again and again."""

    def __init__(self, stream: Stream, body: Callable[[], object]) -> None:
        self._stream = ctypes.c_void_p(stream.cuda_stream)
        graph, self._executable = ctypes.c_void_p(), ctypes.c_void_p()
        everywhere = 0  # no thread may do what a capture forbids
        require(driver().cuStreamBeginCapture_v2(self._stream, everywhere))
        try:
            body()
        finally:
            status = driver().cuStreamEndCapture(self._stream, ctypes.byref(graph))
        require(status)
        require(driver().cuGraphInstantiateWithFlags(ctypes.byref(self._executable), graph, ctypes.c_ulonglong(0)))
        # NCCL gives up a communicator when the last graph that has its operations is gone.
        weakref.finalize(self, _destroy, self._executable, graph)

    def launch(self) -> None:
        require(driver().cuGraphLaunch(self._executable, self._stream))


def _destroy(executable: ctypes.c_void_p, graph: ctypes.c_void_p) -> None:
    require(driver().cuGraphExecDestroy(executable))
    require(driver().cuGraphDestroy(graph))


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_ubyte * 128),)


def new_communicator(comm: a2a.Communicator) -> int:
    """The address of an ncclComm_t of all ranks of the communicator, made by hand for the devices that they use."""
    unique, made = _UniqueId(), ctypes.c_void_p()
    if comm.rank == 0:
        require(nccl().ncclGetUniqueId(ctypes.byref(unique)))
    unique = _UniqueId.from_buffer_copy(comm.allgather_bytes(bytes(unique))[0])
    require(nccl().ncclCommInitRank(ctypes.byref(made), comm.size, unique, comm.rank))
    return made.value or 0


# ---- frameworks ------------------------------------------------------------------------------------------------------


class Produced:
    """A tensor of a framework with no more than ``__dlpack__``: it makes the stream that it is told wait for its
    own, and takes -1 for the address of one, as JAX does."""

    def __init__(self, array: Array, stream: Stream) -> None:
        self._array, self._stream = array, stream
        self.told: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self._array.device

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        self.told.append(stream)
        assert stream is not None and stream > 0
        order(self._stream.cuda_stream, stream)
        return self._array.tensor.__dlpack__(**options)


class _CuPyArray:
    """As much of cupy.ndarray as a2a uses."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self._array.device

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        assert stream == -1, "whoever takes it uses the current stream"
        return self._array.tensor.__dlpack__(**options)


_CuPyArray.__module__ = "cupy"


class _JaxArray:
    """As much of jax.Array as a2a uses, to which nobody can write who asks for it by name."""

    committed = True

    def __init__(self, array: Array) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def devices(self) -> set[str]:
        return {f"cuda:{self.array.device}"}

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.array.device

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        assert stream is not None and stream > 0
        return self.array.tensor.__dlpack__()  # which does not say whether it may be written


_JaxArray.__module__ = "jaxlib.xla"


@contextlib.contextmanager
def jax() -> Iterator[Callable[[Array], _JaxArray]]:
    """What makes arrays of a JAX that works in here. It prefers another device than theirs."""
    module, numpy, chosen = types.ModuleType("jax"), types.ModuleType("jax.numpy"), ["cuda:7"]

    @contextlib.contextmanager
    def default_device(device: str) -> Iterator[None]:
        chosen.append(device)
        yield
        chosen.pop()

    def empty(shape: list[int], dtype: Any) -> _JaxArray:
        return _JaxArray(Array(np.full(shape, 99, dtype), int(chosen[-1].removeprefix("cuda:"))))

    numpy.empty = empty  # type: ignore[attr-defined]
    module.numpy, module.default_device = numpy, default_device  # type: ignore[attr-defined]
    module.device_put = lambda array, device: array  # type: ignore[attr-defined]
    module.dtypes = types.SimpleNamespace(canonicalize_dtype=np.dtype)  # type: ignore[attr-defined]
    with mock.patch.dict(sys.modules, {"jax": module, "jax.numpy": numpy}):
        yield _JaxArray


@contextlib.contextmanager
def framework(name: str, stream: Stream) -> Iterator[Callable[[Array], Any]]:
    """What makes tensors of bytes of a framework that works on that stream: one with the C exchange API, "CuPy", or one
    with the "protocol" alone."""
    if name == "exchange API":
        with device_tensors.working_on(CUDA, stream.cuda_stream):
            yield lambda array: device_tensors.Tensor(array, array.shape, (1, 8, 1))
    elif name == "CuPy":
        module: Any = types.ModuleType("cupy")
        current = types.SimpleNamespace(ptr=stream.cuda_stream)
        module.cuda = types.SimpleNamespace(get_current_stream=lambda: current)
        with mock.patch.dict(sys.modules, cupy=module):
            yield _CuPyArray
    else:
        yield lambda array: Produced(array, stream)
