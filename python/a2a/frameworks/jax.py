"""JAX arrays. They are immutable, so they can be sent, and received only where a call allocates its output."""

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
    """JAX has no C exchange API of DLPack, and no current stream."""

    packages = ("jax", "jaxlib")
    immutable = "JAX arrays are immutable"

    def require_dtype(self, dtype: str) -> None:
        """Raise in JAX's 32-bit mode for 64-bit dtypes, which it would truncate."""
        if dtype_names[dtype][1] < 64:
            return
        jax = _jax()
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise InvalidArgumentError(
                f"JAX makes no arrays of {dtype} in its 32-bit mode; call "
                'jax.config.update("jax_enable_x64", True), or ask for another framework'
            )

    def from_dlpack(self, array: Any) -> Any:
        """JAX copies memory whose alignment it does not support."""
        return importlib.import_module("jax.dlpack").from_dlpack(array)

    def empty_like(self, like: Any, shape: list[int]) -> Any:
        """Return a new array, which may be written because the program has no reference to it yet."""
        return _placed(like, partial(_numpy().empty, shape, like.dtype))

    def convert(self, like: Any, made: Any) -> Any:
        """Return a new array on the device of ``like``."""
        if not isinstance(made, np.ndarray):
            return made  # of empty_like()
        array = _placed(like, partial(_numpy().asarray, made))
        if array.dtype != made.dtype or array.shape != made.shape:
            raise UnsupportedError(f"JAX made an array of {array.dtype} {array.shape} of {made.dtype} {made.shape}")
        return array

    def dtypes(self) -> frozenset[str]:
        """Return the dtypes of NumPy and ml_dtypes that JAX has, too."""
        jnp = _numpy()
        return frozenset(name for name in NumPy("host").dtypes() if hasattr(jnp, name))

    def prepare(self, rank: int) -> None:
        """Enable all dtypes, on the CPU. Makes an array, because the first one is slow."""
        jax = _jax()
        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_platforms", "cpu")
        jax.numpy.zeros(1).block_until_ready()

    def tensor(self, memory: Any, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return a copy."""
        return _jax().device_put(NumPy("host").tensor(memory, offset, dtype, shape))


def _placed(like: Any, make: Callable[[], Any]) -> Any:
    """Return the array of ``make`` on the device of ``like``, also where JAX prefers another one, and committed to it
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
