"""Tensors of every framework from the same bytes. Imports a framework only when one of its tensors is wanted."""

from __future__ import annotations

import importlib.util
from typing import Any

import ml_dtypes
import numpy as np

NAMES = ("numpy", "torch", "paddle", "jax")
INSTALLED = tuple(name for name in NAMES if importlib.util.find_spec(name) is not None)

# The dtypes that all four have; JAX has 64 bits only when asked at its start.
COMMON = ("bool int8 int16 int32 uint8 float16 bfloat16 float32 complex64 float8_e4m3fn float8_e5m2").split()


def name_of(tensor: Any) -> str:
    root = type(tensor).__module__.partition(".")[0]
    return "jax" if root == "jaxlib" else root


def dtype_of(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name, name))


def tensor(framework: str, array: Any) -> Any:
    """A contiguous tensor of its own memory with the shape, dtype and bytes of a NumPy array."""
    array = np.array(array)
    if framework == "numpy":
        return array
    if framework == "jax":
        import jax.numpy

        return jax.numpy.array(array)
    # Integers of the same width travel through every constructor unchanged.
    bits = array.view(f"i{min(array.itemsize, 8)}") if array.ndim else array
    if framework == "torch":
        import torch

        return torch.from_numpy(bits).view(getattr(torch, array.dtype.name))
    import paddle

    if array.size == 0:  # paddle.view refuses it
        return paddle.empty(array.shape, array.dtype.name)
    return paddle.view(paddle.to_tensor(bits), array.dtype.name)
