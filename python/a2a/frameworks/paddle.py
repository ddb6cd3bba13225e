"""Paddle tensors on the host."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np

from .._core import dtype_names, from_pointer
from ._framework import Bytes, Framework, Recorder, bytes_of


class Paddle(Framework):
    """Its tensors have DLPack's C exchange API, with an allocator and, on GPUs, the current stream."""

    distribution = "paddlepaddle"
    packages = ("paddle",)

    def recorder(self, kind: type[Any]) -> Recorder | None:
        """Return Paddle's own functions. Paddle exports every tensor as a dense one."""
        paddle = _paddle()
        base = paddle.Tensor
        if not issubclass(kind, base):
            return None
        return Recorder(
            requires_grad=base.stop_gradient.__get__,
            opposite=True,
            grad_enabled=paddle.is_grad_enabled,
            wrote=base._bump_inplace_version,
            calls="a2a.paddle",
            is_dense=base.is_dense,
        )

    def dtypes(self) -> frozenset[str]:
        """Return the dtypes with which Paddle can compute. The wider unsigned integers have names, and can be imported,
        but there are no kernels for them, not even to make an empty tensor."""
        paddle = _paddle()
        return frozenset(name for name in dtype_names if hasattr(paddle, name)) - {"uint16", "uint32", "uint64"}

    def prepare(self, rank: int) -> None:
        """Call an operator: the first call registers all operators, which threads must not do at the same time."""
        paddle = _paddle()
        paddle.device.set_device("cpu")
        paddle.zeros([1]).reshape([-1])

    def tensor(self, memory: Any, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return a view."""
        return _paddle().from_dlpack(from_pointer(memory.ctypes.data + offset, shape, dtype, owner=memory))

    def read(self, thing: Any) -> Bytes:
        """Return the bytes without a copy where that is possible."""
        paddle = _paddle()
        if not isinstance(thing, paddle.Tensor):
            return bytes_of(thing)
        if 0 in thing.shape:
            # Paddle's operators release the memory of an empty tensor while they hold a lock of Paddle and not
            # Python's. If that memory belongs to a Python object, a from_dlpack() of another thread is a deadlock.
            return np.empty(0, np.uint8)
        flat = thing.detach().contiguous().reshape([-1])
        if flat.offset:
            flat = flat.clone()  # paddle.view() to another dtype reads the wrong place for a tensor at an offset
        return np.asarray(paddle.view(flat, "uint8").numpy())


def _paddle() -> Any:
    with warnings.catch_warnings():
        # Paddle warns that it cannot compile extensions fast, which does not matter here.
        warnings.filterwarnings("ignore", message="No ccache found")
        return importlib.import_module("paddle")


FRAMEWORK = Paddle
