"""JAX arrays. They are immutable, so they are sent, and received where a call allocates its output."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .._core import InvalidArgumentError, UnsupportedError, dtype_names
from ._framework import Framework
from .numpy import NumPy


class Jax(Framework):
    """Without DLPack's C exchange API, and without a stream of its own."""

    packages = ("jax", "jaxlib")
    immutable = "JAX arrays are immutable"

    def require_dtype(self, dtype: str) -> None:
        """In its 32-bit mode it would shorten those of 64 bits."""
        if dtype_names[dtype][1] < 64:
            return
        jax = _jax()
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise InvalidArgumentError(
                f"JAX makes no arrays of {dtype} in its 32-bit mode; call "
                'jax.config.update("jax_enable_x64", True), or ask for another framework'
            )

    def from_dlpack(self, array: Any) -> Any:
        """A copy of memory that is not aligned as it likes."""
        return importlib.import_module("jax.dlpack").from_dlpack(array)

    def empty_like(self, like: Any, shape: list[int]) -> Any:
        """An array that nobody has seen yet may still be written."""
        return _placed(like, partial(_numpy().empty, shape, like.dtype))

    def convert(self, like: Any, made: Any) -> Any:
        """An array of its own on the device of ``like``."""
        if not isinstance(made, np.ndarray):
            return made  # of empty_like()
        array = _placed(like, partial(_numpy().asarray, made))
        if array.dtype != made.dtype or array.shape != made.shape:
            raise UnsupportedError(f"JAX made an array of {array.dtype} {array.shape} of {made.dtype} {made.shape}")
        return array

    def dtypes(self) -> frozenset[str]:
        """Those of NumPy and ml_dtypes that it has, too."""
        jnp = _numpy()
        return frozenset(name for name in NumPy("host").dtypes() if hasattr(jnp, name))

    def prepare(self, rank: int) -> None:
        """All dtypes, on the CPU. The first array takes a second."""
        jax = _jax()
        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_platforms", "cpu")
        jax.numpy.zeros(1).block_until_ready()

    def tensor(self, memory: Any, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """A copy."""
        return _jax().device_put(NumPy("host").tensor(memory, offset, dtype, shape))


def _placed(like: Any, make: Callable[[], Any]) -> Any:
    """The array that ``make`` returns, on the device of ``like``, also where JAX prefers another one, and bound to it
    as ``like`` is."""
    jax = importlib.import_module("jax")
    device = next(iter(like.devices()))
    with jax.default_device(device):
        array = make()
    return jax.device_put(array, device) if getattr(like, "committed", True) else array


def _jax() -> Any:
    return importlib.import_module("jax")


def _numpy() -> Any:
    return importlib.import_module("jax.numpy")


FRAMEWORK = Jax
