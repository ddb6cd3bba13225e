"""JAX arrays on the host. They are immutable, so they are sent, and received where a call allocates its output."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy
import numpy as np
import numpy.typing as npt

from ..host import MEMORY, make, read
from . import numpy as _numpy

__all__ = ["DTYPES", "MEMORY", "OUTPUTS", "make", "prepare", "read", "tensor"]

DTYPES = frozenset(name for name in _numpy.DTYPES if hasattr(jax.numpy, name))
OUTPUTS = False


def prepare(rank: int) -> None:
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    jax.numpy.zeros(1).block_until_ready()  # the first array takes a second


def tensor(memory: npt.NDArray[np.uint8], offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
    return jax.device_put(_numpy.tensor(memory, offset, dtype, shape))
