"""Every way into a view: producers, dtypes, refusals, and how long memory is held."""

import array
import ctypes
import gc
import mmap
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import forge
import numpy as np
import pytest
from forge import Forged, raw_bytes

from a2a import _core
from a2a._core import InvalidArgumentError, UnsupportedError, describe_tensor

DTYPES = {
    "numpy": "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
    " bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e4m3b11fnuz float8_e8m0fnu",
    "torch": "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex32 complex64"
    " complex128 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2",
    "paddle": "bool int8 int16 int32 int64 uint8 float16 float32 float64 complex64 complex128 bfloat16 float8_e4m3fn"
    " float8_e5m2",
    "jax": "bool int8 int16 int32 uint8 uint16 uint32 float16 float32 complex64 bfloat16 float8_e4m3fn float8_e5m2",
}
CASES = [(framework, dtype) for framework, names in DTYPES.items() for dtype in names.split()]


@pytest.fixture(scope="module")
def comm() -> Iterator[_core.Communicator]:
    with _core.connect(0, 1) as comm:
        yield comm


def make(framework: str, dtype: str, shape: tuple[int, ...] = (6, 2)) -> Any:
    """Powers of two, which every dtype holds exactly."""
    values = (2.0 ** (np.arange(np.prod(shape)) % 3)).reshape(shape).astype(np.float32)
    module = pytest.importorskip("jax.numpy" if framework == "jax" else framework)
    if framework == "numpy":
        return values.astype(dtype if hasattr(np, dtype) else getattr(pytest.importorskip("ml_dtypes"), dtype))
    if framework == "torch":
        tensor = module.from_numpy(values)
        if dtype == "float4_e2m1fn_x2":
            return tensor.to(module.uint8).view(module.float4_e2m1fn_x2)
        return tensor.to(getattr(module, dtype))
    if framework == "paddle":
        return module.to_tensor(values).astype(dtype)
    return module.asarray(values).astype(dtype)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize(("framework", "dtype"), CASES)
def test_every_dtype_travels(comm: _core.Communicator, framework: str, dtype: str) -> None:
    tensor = make(framework, dtype)
    seen = describe_tensor(tensor)
    assert (seen["dtype"], seen["shape"], seen["framework"]) == (dtype, (6, 2), framework)
    assert seen["device"] == (1, 0) and seen["contiguous"] and seen["bytes"] == len(raw_bytes(tensor))
    assert seen["writable"] is (framework != "jax")
    result, counts = comm.exchange(tensor, [6])
    assert type(result) is type(tensor) and result.dtype == tensor.dtype and tuple(result.shape) == (6, 2)
    assert raw_bytes(result) == raw_bytes(tensor) and counts.tolist() == [6]


@pytest.mark.parametrize("framework", DTYPES)
def test_empty_tensors(comm: _core.Communicator, framework: str) -> None:
    tensor = make(framework, "float32", (0, 3))
    assert describe_tensor(tensor)["bytes"] == 0
    received, _ = comm.exchange(tensor, [0])
    assert tuple(received.shape) == (0, 3)
    result: Any = comm.global_scatter(tensor, [0], [0])
    assert tuple(result.shape) == (0, 3)


@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_rows_without_bytes(comm: _core.Communicator, framework: str) -> None:
    result, counts = comm.exchange(make(framework, "float32", (5, 0)), [5])
    assert tuple(result.shape) == (5, 0) and counts.tolist() == [5]


def refused(tensor: Any, match: str, output: bool = False) -> None:
    comm = _core.connect(0, 1)
    other = np.zeros(4, np.float32)
    with pytest.raises(InvalidArgumentError, match=match):
        comm.alltoallv(other, [1], tensor, [1]) if output else comm.alltoallv(tensor, [1], other, [1])
    comm.barrier()
    comm.close()


# NumPy


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [
        (">f4", "newbyteorder"),
        ("datetime64[ns]", "int64"),
        ("timedelta64[s]", "int64"),
        ("O", "objects cannot"),
        ("S3", "uint8"),
        ("U3", "uint32"),
        ([("a", "i4"), ("b", "f4")], "uint8"),
        ("longdouble", "astype"),
        ("clongdouble", "astype"),
    ],
)
def test_numpy_dtypes_of_numpy_alone(dtype: Any, advice: str) -> None:
    refused(np.zeros(4, dtype), advice)


def test_numpy_dtypes_of_less_than_a_byte() -> None:
    refused(np.zeros(4, pytest.importorskip("ml_dtypes").int4), "int4")


def test_numpy_layouts() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    for gaps in (base[:, ::2], base.T, base[::-1], np.broadcast_to(base[0], (4, 6))):
        assert not describe_tensor(gaps)["contiguous"]
    several = np.lib.stride_tricks.as_strided(base, (4, 6), (0, 4))
    refused(several, "elements that may share memory", output=True)
    for good in (base[1:3], base[:1, ::1], base[2:2, ::2], base[:, :1][:1], base.reshape(1, 24)):
        assert describe_tensor(good)["contiguous"]
    base.flags.writeable = False
    refused(base, "read-only", output=True)
    assert describe_tensor(base)["writable"] is False


def test_numpy_subclass(tmp_path: Any, comm: _core.Communicator) -> None:
    file = np.memmap(tmp_path / "x", np.float32, "w+", shape=(8,))
    file[:] = range(8)
    result = np.zeros(8, np.float32)
    comm.alltoall(file, result)
    assert result.tolist() == list(range(8))
    comm.alltoall(result[::-1].copy(), file)
    assert file[0] == 7


def test_scalars_have_no_rows(comm: _core.Communicator) -> None:
    refused(np.float32(1), "0-d")
    refused(np.array(1.0, np.float32), "0-d", output=True)
    result = np.zeros(1, np.float32)
    comm.allgather(np.array(3.0, np.float32), result)
    assert result[0] == 3


# Buffers


@pytest.mark.parametrize(
    ("buffer", "dtype"),
    [
        (b"abcd", "uint8"),
        (bytearray(b"abcd"), "uint8"),
        (memoryview(b"abcd"), "uint8"),
        (memoryview(bytearray(8)).cast("i"), "int32"),
        (array.array("d", [1, 2]), "float64"),
        (array.array("l", [1, 2]), "int64"),
        ((ctypes.c_int16 * 3)(1, 2, 3), "int16"),
        ((ctypes.c_bool * 3)(), "bool"),
        (mmap.mmap(-1, 16), "uint8"),
    ],
)
def test_buffers(comm: _core.Communicator, buffer: Any, dtype: str) -> None:
    seen = describe_tensor(buffer)
    assert seen["dtype"] == dtype and seen["bytes"] == memoryview(buffer).nbytes
    assert seen["writable"] is not memoryview(buffer).readonly
    result, _ = comm.exchange(buffer, [seen["shape"][0]])
    assert isinstance(result, np.ndarray) and result.tobytes() == memoryview(buffer).tobytes()


def test_buffers_as_outputs(comm: _core.Communicator) -> None:
    target = bytearray(4)
    comm.alltoall(b"wxyz", target)
    assert target == b"wxyz"
    refused(b"abcd", "read-only", output=True)
    comm.alltoall(memoryview(b"w-x-y-z-")[::2], target)
    assert target == b"wxyz"
    comm.alltoall(b"abcd", memoryview(target)[::-1])
    assert target == b"dcba"


def test_no_buffer_of_characters() -> None:
    class Wide(ctypes.Structure):
        _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_int))

    refused((Wide * 2)(), "cast")


@pytest.mark.parametrize("thing", ["text", 3, None, [1.0], object(), {}, np.dtype("f4"), int])
def test_not_a_tensor(thing: Any) -> None:
    refused(thing, "send is not a tensor")
    with pytest.raises(InvalidArgumentError, match="not a tensor"):
        describe_tensor(thing)


# Torch


def test_torch_signs_that_are_not_in_memory(comm: _core.Communicator) -> None:
    torch = pytest.importorskip("torch")
    z = torch.tensor([1 + 2j, 3 - 4j])
    x = torch.ones(4)
    for output in (False, True):
        refused(z.conj(), "resolve_conj", output)
        refused(torch._neg_view(x), "resolve_neg", output)
        refused(z.conj().imag[:1], "resolve_neg", output)
    assert comm.exchange(z.conj().resolve_conj(), [2])[0].tolist() == [1 - 2j, 3 + 4j]
    assert comm.exchange(torch._neg_view(x).resolve_neg(), [4])[0].tolist() == [-1] * 4


def test_torch_without_plain_memory() -> None:
    torch = pytest.importorskip("torch")
    for output in (False, True):
        refused(torch.eye(4).to_sparse(), "no plain memory", output)
        refused(torch.zeros(4, device="meta"), "no plain memory", output)
        refused(torch.quantize_per_tensor(torch.zeros(4), 1.0, 0, torch.qint8), "no plain memory", output)


def test_torch_parameters_and_gradients(comm: _core.Communicator) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.arange(4.0))
    result, _ = comm.exchange(weight.detach(), [4])
    assert type(result) is torch.Tensor and not result.requires_grad and result.tolist() == [0, 1, 2, 3]
    target = torch.zeros(4, requires_grad=True)
    with torch.no_grad():
        comm.alltoall(weight, target)
    assert target.tolist() == [0, 1, 2, 3]


def test_torch_layouts() -> None:
    torch = pytest.importorskip("torch")
    base = torch.zeros(4, 6)
    for gaps in (base.t(), base[:, ::2], base[0].expand(4, 6), base[:, 1:]):
        assert not describe_tensor(gaps)["contiguous"]
    refused(base[0].expand(4, 6), "elements that may share memory", output=True)
    for good in (base[1:], base[:, :0], base[:1, :][:, :6], base.view(1, 24)):
        assert describe_tensor(good)["contiguous"]


# Paddle and JAX


def test_paddle_gradients(comm: _core.Communicator) -> None:
    paddle = pytest.importorskip("paddle")
    tensor = paddle.arange(4, dtype="float32")
    tensor.stop_gradient = False
    with paddle.no_grad():
        result, _ = comm.exchange(tensor, [4])
    assert result.stop_gradient and result.numpy().tolist() == [0, 1, 2, 3]
    target = paddle.zeros([4])
    comm.alltoall(tensor, target)
    assert target.numpy().tolist() == [0, 1, 2, 3]


def test_jax_is_immutable(comm: _core.Communicator) -> None:
    jnp = pytest.importorskip("jax.numpy")
    refused(jnp.zeros(4), "immutable.*allocates its output", output=True)
    work = comm.global_scatter(jnp.arange(4.0), [4], [4], async_op=True)
    assert isinstance(work, _core.Work) and work.result.tolist() == [0, 1, 2, 3] and work.done()


def test_jax_waits_for_its_values(comm: _core.Communicator) -> None:
    jax = pytest.importorskip("jax")
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, y: y @ x, x))(jax.numpy.eye(300) * 1.0)
    assert raw_bytes(comm.exchange(slow, [300])[0]) == np.eye(300, dtype=np.float32).tobytes()


# Forged tensors


def test_a_good_forgery(comm: _core.Communicator) -> None:
    source, target = Forged(), Forged()
    target.memory[:4] = [0, 0, 0, 0]
    comm.alltoall(source, target)
    assert target.memory[:4] == [0, 1, 2, 3]
    assert source.calls == [{"max_version": (1, 3), "copy": False}]


@pytest.mark.parametrize(
    ("forged", "match"),
    [
        (lambda: Forged(version=(2, 0)), "DLPack 2.0"),
        (lambda: Forged(ndim=-1), "-1 dimensions"),
        (lambda: Forged(ndim=65), "65 dimensions"),
        (lambda: Forged((-4,)), "a dimension of -4"),
        (lambda: Forged((2**62, 2**62), (1, 1)), "dimension"),
        (lambda: Forged(null=True), "no memory"),
        (lambda: Forged(dtype=(17, 4, 1)), "whole bytes"),
        (lambda: Forged(dtype=(2, 0, 1)), "whole bytes"),
    ],
)
@pytest.mark.parametrize("output", [False, True])
def test_bad_forgeries(forged: Callable[[], Forged], match: str, output: bool) -> None:
    refused(forged(), match, output)
    refused(forged().capsule(), match, output)


@pytest.mark.parametrize("flag", [forge.READ_ONLY, forge.IS_COPIED])
def test_flags_forbid_writing(comm: _core.Communicator, flag: int) -> None:
    assert describe_tensor(Forged(flags=flag))["writable"] is False
    refused(Forged(flags=flag), "read-only", output=True)
    comm.alltoall(Forged(flags=flag), np.zeros(4, np.float32))


def test_legacy_capsules(comm: _core.Communicator) -> None:
    assert describe_tensor(Forged(version=None))["writable"] is None
    comm.alltoall(Forged(version=None), np.zeros(4, np.float32))
    comm.alltoall(Forged(version=None).capsule(), np.zeros(4, np.float32))
    refused(Forged(version=None), "legacy DLPack", output=True)
    refused(Forged(version=None).capsule(), "legacy DLPack", output=True)


def test_a_consumed_capsule_is_refused() -> None:
    refused(Forged().capsule(b"used_dltensor_versioned"), "unused")
    refused(Forged(version=None).capsule(b"used_dltensor"), "unused")


def test_forged_layouts(comm: _core.Communicator) -> None:
    result = np.zeros(4, np.float32)
    comm.alltoall(Forged(strides=None), result)  # legal before DLPack 1.2
    assert result.tolist() == [0, 1, 2, 3]
    comm.alltoall(Forged(byte_offset=8), result)
    assert result.tolist() == [2, 3, 4, 5]
    comm.alltoall(Forged((4, 1), (1, -77)), result.reshape(4, 1))  # strides of dimensions of one entry mean nothing
    assert result.tolist() == [0, 1, 2, 3]
    assert describe_tensor(Forged((0, 3), (0, 0), null=True))["contiguous"]
    comm.alltoall(Forged((4,), (-1,), byte_offset=12), result)
    assert result.tolist() == [3, 2, 1, 0]
    refused(Forged((4, 2), (1, 1)), "elements that may share memory", output=True)


class OldProducer(Forged):
    def __dlpack__(self) -> Any:  # type: ignore[override]
        return self.capsule()


def test_old_producers_and_devices_without_a_number(comm: _core.Communicator) -> None:
    result = np.zeros(4, np.float32)
    comm.alltoall(OldProducer(version=None), result)
    comm.alltoall(Forged(device=(forge.CPU, None)), result)
    comm.alltoall(Forged(device=(forge.CUDA_HOST, 0)), result)
    assert result.tolist() == [0, 1, 2, 3]


def test_device_memory_without_its_library(comm: _core.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("NCCL", "CUDA"):  # NCCL stays loaded, where another test has found it
        monkeypatch.setenv(f"A2A_{library}_LIBRARY", "/nowhere/library.so")
    cuda, other = Forged(device=(forge.CUDA, 1)), Forged(device=(forge.CUDA, 1))
    with pytest.raises(UnsupportedError, match="gives no way to make another one on a device"):
        comm.exchange(cuda, [4])
    assert cuda.calls == 2 * [{"max_version": (1, 3), "copy": False, "stream": 1}]
    other.managed.tensor.data = ctypes.addressof(cuda.memory) + 32
    with pytest.raises(UnsupportedError, match=r"cannot find (NCCL|the CUDA driver); looked for\n  /nowhere/"):
        comm.alltoall(cuda, other)
    with pytest.raises(UnsupportedError, match="device type 8"):
        comm.exchange(Forged(device=(forge.METAL, 0)), [4])
    refused(Forged(device=(forge.CUDA, 0)), "cuda:0 memory, but recv is in host memory")
    comm.barrier()


def test_streams_of_other_devices_are_not_guessed() -> None:
    ascend = Forged(device=(forge.EXT_DEV, 0))
    describe_tensor(ascend)
    assert ascend.calls == [{"max_version": (1, 3), "copy": False, "stream": -1}]


def test_an_error_of_the_producer_is_the_cause() -> None:
    class Broken(Forged):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("not today")

    with pytest.raises(InvalidArgumentError, match="not today") as caught:
        describe_tensor(Broken())
    assert isinstance(caught.value.__cause__, BufferError)


def test_capsules_are_consumed_only_by_what_outlives_the_call(comm: _core.Communicator) -> None:
    forged, result = Forged(), np.zeros(4, np.float32)
    capsule = forged.capsule()
    comm.alltoall(capsule, result)
    assert forge.api.PyCapsule_GetName(capsule) == b"dltensor_versioned" and forged.deleted == 0
    comm.alltoall(capsule, result, async_op=True).wait()  # type: ignore[union-attr]
    gc.collect()
    assert forge.api.PyCapsule_GetName(capsule) == b"used_dltensor_versioned" and forged.deleted == 1
    forged = Forged(version=None, deleter=False)
    comm.alltoall(forged.capsule(), result, async_op=True).wait()  # type: ignore[union-attr]


# Lifetimes


@pytest.mark.parametrize("framework", ["numpy", "torch", "paddle"])
def test_tensors_are_let_go(comm: _core.Communicator, framework: str) -> None:
    def refuses(send: Any, recv: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="share memory"):
            comm.alltoallv(send, [2], send, [2])

    def dies(run: Callable[[Any, Any], Any]) -> None:
        send, recv = make(framework, "float32"), make(framework, "float32")
        alive = [weakref.ref(send), weakref.ref(recv)]
        run(send, recv)
        del send, recv
        gc.collect()
        assert [ref() for ref in alive] == [None, None]

    dies(comm.alltoall)
    dies(lambda send, recv: comm.alltoall(send, recv, async_op=True).wait())  # type: ignore[union-attr]
    dies(lambda send, recv: comm.plan_alltoall(send, recv).run(send, recv))
    dies(lambda send, _: comm.exchange(send, [6]))
    dies(refuses)
    dies(lambda send, _: describe_tensor(send))


def test_a_held_bytearray_cannot_be_resized() -> None:
    bootstraps = _core.thread_bootstraps(1)
    comm = _core.connect(0, 1, bootstrap=bootstraps[0])
    recv = bytearray(4)
    work = comm.alltoall(b"abcd", recv, async_op=True)
    assert work is not None
    work.wait()
    recv.append(1)
    assert recv == b"abcd\x01"
