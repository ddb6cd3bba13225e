"""Our own memory in other frameworks' hands: from_pointer, Communicator.empty and the exports of SharedArray."""

import ctypes
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import forge
import numpy as np
import pytest
from forge import raw_bytes

from a2a import _core
from a2a._core import InvalidArgumentError, SharedArray, UnsupportedError, from_pointer


@pytest.fixture(scope="module")
def comm() -> Iterator[_core.Communicator]:
    with _core.connect(0, 1) as comm:
        yield comm


class Owner:
    """Memory that can be watched: dies when the last tensor over it is gone."""

    def __init__(self) -> None:
        block = ctypes.create_string_buffer(128)
        aligned = -ctypes.addressof(block) % 64  # JAX copies what is not aligned
        self.data = (ctypes.c_float * 6).from_buffer(block, aligned)
        self.data[:] = [0, 1, 2, 3, 4, 5]

    def view(self, readonly: bool = False) -> Any:
        return from_pointer(ctypes.addressof(self.data), (2, 3), "float32", owner=self, readonly=readonly)


def imported(framework: str, array: SharedArray) -> Any:
    module = pytest.importorskip("jax.dlpack" if framework == "jax" else framework)
    return module.from_dlpack(array)


FRAMEWORKS = ["numpy", "torch", "paddle", "jax"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks_share_the_memory_and_keep_its_owner(framework: str) -> None:
    owner = Owner()
    alive = weakref.ref(owner)
    tensor = imported(framework, owner.view())
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    if framework != "jax":
        tensor[0, 0] = 7
        assert owner.data[0] == 7
    del owner
    gc.collect()
    assert alive() is not None
    del tensor
    gc.collect()
    assert alive() is None


def test_the_last_tensor_may_go_on_another_thread() -> None:
    owner = Owner()
    alive = weakref.ref(owner)
    tensors = [imported("torch", owner.view())]
    del owner
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert alive() is None


def test_capsules_nobody_took() -> None:
    owner = Owner()
    alive = weakref.ref(owner)
    array = owner.view()
    capsules = [array.__dlpack__(), array.__dlpack__(max_version=(1, 0))]
    names = [forge.api.PyCapsule_GetName(capsule) for capsule in capsules]
    assert names == [b"dltensor", b"dltensor_versioned"]
    del owner, array, capsules
    gc.collect()
    assert alive() is None


def test_what_a_capsule_says() -> None:
    owner = Owner()
    capsule = owner.view(readonly=True).__dlpack__(max_version=(1, 2))
    address = forge.api.PyCapsule_GetPointer(capsule, b"dltensor_versioned")
    managed = forge.ManagedVersioned.from_address(address)
    tensor = managed.tensor
    assert (managed.major, managed.minor, managed.flags) == (1, 3, forge.READ_ONLY)
    assert tensor.data == ctypes.addressof(owner.data) and tensor.byte_offset == 0
    assert (tensor.ndim, tensor.shape[:2], tensor.strides[:2]) == (2, [2, 3], [3, 1])
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.device_type, tensor.device_id) == (2, 32, 1, 1, 0)


def test_what_an_export_refuses() -> None:
    array = Owner().view()
    bad: list[dict[str, Any]] = [{"stream": 1}, {"copy": True}, {"dl_device": (2, 0)}]
    for options in bad:
        with pytest.raises(BufferError):
            array.__dlpack__(**options)
    good: list[dict[str, Any]] = [{"stream": -1}, {"copy": False}, {"dl_device": (1, 0)}, {"dl_device": (1, None)}]
    for options in good:
        assert array.__dlpack__(**options)
    with pytest.raises(BufferError, match="versioned"):
        Owner().view(readonly=True).__dlpack__()


def test_read_only() -> None:
    owner = Owner()
    array = owner.view(readonly=True)
    assert not np.from_dlpack(array).flags.writeable
    assert memoryview(array).readonly
    assert _core.describe_tensor(array)["writable"] is False
    assert _core.describe_tensor(owner.view())["writable"] is True


def test_buffers() -> None:
    owner = Owner()
    view: Any = memoryview(owner.view())
    assert (view.format, view.shape, view.strides, view.readonly) == ("f", (2, 3), (12, 4), False)
    view[1, 2] = 9.0
    assert owner.data[5] == 9
    exotic: Any = from_pointer(ctypes.addressof(owner.data), 12, "bfloat16", owner=owner)
    with pytest.raises(BufferError, match="bfloat16 has no buffer format"):
        memoryview(exotic)
    assert np.ndarray(24, np.uint8, exotic).tobytes() == bytes(owner.data)


def test_the_exchange_api_of_our_own_type(comm: _core.Communicator) -> None:
    owner = Owner()
    result, _ = comm.exchange(owner.view(), [2])
    assert type(result) is SharedArray and result.shape == (2, 3) and raw_bytes(result) == bytes(owner.data)
    tvm_ffi = pytest.importorskip("tvm_ffi")
    assert np.from_dlpack(tvm_ffi.from_dlpack(owner.view())).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((0, 4, "float32"), "ptr is 0"),
        ((8, -1, "float32"), "no possible size"),
        ((8, (2**62, 4), "float32"), "no possible size"),
        ((8, (2, 2.5), "float32"), r"shape\[1\] is 2.5"),
        ((8, [1] * 65, "float32"), "65 dimensions"),
        ((8, 4, "float33"), "float33"),
        ((8, 4, object()), "none of bool"),
    ],
)
def test_impossible_pointers(arguments: tuple[Any, ...], match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        from_pointer(*arguments)


def test_pointers_to_nothing_and_to_devices(comm: _core.Communicator) -> None:
    assert from_pointer(0, (0, 3), "float32").shape == (0, 3)
    device: Any = from_pointer(4096, (4,), "float16", device=(2, 1))
    assert device.__dlpack_device__() == (2, 1) and "float16" in repr(device)
    with pytest.raises(UnsupportedError, match="receive into a tensor of your own"):
        comm.exchange(device, [4])
    with pytest.raises(BufferError, match="device memory"):
        memoryview(device)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16", "float8_e4m3fn", "complex64"])
@pytest.mark.parametrize("like", FRAMEWORKS)
def test_empty(comm: _core.Communicator, like: str, dtype: str) -> None:
    if dtype == "int64" and like == "jax":
        pytest.skip("needs jax_enable_x64")
    module = pytest.importorskip("jax.numpy" if like == "jax" else like)
    if like == "numpy":
        pytest.importorskip("ml_dtypes")
    tensor = comm.empty((3, 5), dtype, like)
    seen = _core.describe_tensor(tensor)
    assert (seen["shape"], seen["dtype"], seen["framework"]) == ((3, 5), dtype, like)
    again = comm.empty(7, tensor.dtype, tensor)  # a framework's own dtype object, and one of its tensors
    assert again.dtype == tensor.dtype and tuple(again.shape) == (7,) and type(again) is type(tensor)
    assert tuple(comm.empty((0, 2), dtype, like).shape) == (0, 2)
    assert tuple(comm.empty((), dtype, like).shape) == ()
    assert module is not None


def test_dtypes_by_any_spelling(comm: _core.Communicator) -> None:
    for dtype in ("float64", np.float64, np.dtype("f8"), float):
        assert comm.empty(1, dtype).dtype == np.float64
    with pytest.raises(InvalidArgumentError, match="datetime64"):
        comm.empty(1, "datetime64")
    with pytest.raises(UnsupportedError, match="like"):
        comm.empty(1, "float4_e2m1fn_x2")
    with pytest.raises(InvalidArgumentError, match="tensorflow"):
        comm.empty(1, like="tensorflow")


def test_empty_outlives_the_communicator() -> None:
    comm = _core.connect(0, 1)
    tensors = [comm.empty(1000, "float32", like) for like in ("numpy", "numpy")]
    comm.close()
    del comm
    gc.collect()
    for tensor in tensors:
        tensor[:] = 5
        assert tensor.sum() == 5000


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_nobody_makes_these_by_hand() -> None:
    for kind in (SharedArray, _core.Work, _core.Plan, _core.Communicator, _core.CoreBootstrap):
        with pytest.raises(TypeError):
            kind()
