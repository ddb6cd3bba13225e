"""DLPack from the inside: tensors forged with ctypes, and the raw bytes of anybody's tensor."""

import ctypes
from typing import Any

CPU, CUDA, CUDA_HOST, METAL, EXT_DEV = 1, 2, 3, 8, 12
READ_ONLY, IS_COPIED = 1, 2


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
api = ctypes.pythonapi
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_GetName.restype = ctypes.c_char_p
api.PyCapsule_GetName.argtypes = [ctypes.py_object]


class Forged:
    """A producer of one float32 tensor, wrong in whatever way the arguments say. Counts calls of its deleter."""

    def __init__(
        self,
        shape: tuple[int, ...] = (4,),
        strides: tuple[int, ...] | None = (1,),
        *,
        version: tuple[int, int] | None = (1, 3),
        flags: int = 0,
        dtype: tuple[int, int, int] = (2, 32, 1),
        device: tuple[int, int | None] = (CPU, 0),
        byte_offset: int = 0,
        ndim: int | None = None,
        null: bool = False,
        deleter: bool = True,
    ) -> None:
        self.memory = (ctypes.c_float * 16)(*range(16))
        self.deleted = 0
        self.calls: list[dict[str, Any]] = []
        self.device = device
        self.managed: Any
        self._deleter = Deleter(self._delete)
        self._shape: Any = (ctypes.c_int64 * len(shape))(*shape)
        self._strides: Any = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        tensor = Tensor(
            None if null else ctypes.addressof(self.memory),
            device[0],
            device[1] or 0,
            len(shape) if ndim is None else ndim,
            *dtype,
            ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64)),
            ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64)),
            byte_offset,
        )
        free = ctypes.cast(self._deleter, ctypes.c_void_p).value if deleter else None
        if version is None:
            self.name, self.managed = b"dltensor", Managed(tensor, None, free)
        else:
            self.name, self.managed = b"dltensor_versioned", ManagedVersioned(*version, None, free, flags, tensor)

    def _delete(self, _: int) -> None:
        self.deleted += 1

    def capsule(self, name: bytes | None = None) -> Any:
        """A capsule without a destructor, so that only a consumer calls the deleter."""
        return api.PyCapsule_New(ctypes.addressof(self.managed), name or self.name, None)

    def __dlpack_device__(self) -> tuple[int, int | None]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        self.calls.append(options)
        return self.capsule()


def raw_bytes(tensor: Any) -> bytes:
    """The memory of a contiguous tensor of any framework with __dlpack__, or of a NumPy array."""
    if hasattr(tensor, "tobytes") and hasattr(tensor, "flags"):
        return bytes(tensor.tobytes())
    capsule = tensor.__dlpack__()
    found = Managed.from_address(api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))).tensor
    elements = 1
    for i in range(found.ndim):
        elements *= found.shape[i]
    return ctypes.string_at((found.data or 0) + found.byte_offset, elements * found.bits * found.lanes // 8)
