"""JAX arrays. They are immutable, so they are sent, and received where a call allocates its output."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy
import numpy as np
import numpy.typing as npt

from ..cases import DTYPES as _ALL
from . import numpy as _numpy

DTYPES = _numpy.DTYPES & set(_ALL)
OUTPUTS = False


def prepare() -> None:
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")


def tensor(memory: npt.NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> Any:
    return jax.numpy.array(_numpy.tensor(memory, dtype, shape))
