"""The frameworks that the demo speaks: how to find one without importing it, make a tensor in host memory, also where
the framework prefers a GPU, and scale its rows."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[Any]
"""Elements as bit patterns: uint16 for bfloat16, uint32 for float32."""


@dataclass(frozen=True)
class Framework:
    """One framework. ``package`` is what pip installs, ``module`` what Python imports."""

    name: str
    module: str
    package: str

    @property
    def version(self) -> str | None:
        """None when it is not installed. Does not import it."""
        if importlib.util.find_spec(self.module) is None:
            return None
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return "installed"  # under another name, such as paddlepaddle-gpu

    def tensor(self, bits: Bits) -> Any:
        """A tensor of bfloat16 or float32 with these bits. Imports the framework."""
        # Paddle says at import that it cannot compile extensions fast; nobody asked for that here.
        warnings.filterwarnings("ignore", message="No ccache found")
        return _TENSOR[self.name](bits)

    def scale_rows(self, x: Any, factors: npt.NDArray[np.float32]) -> Any:
        """Each row times its factor, by the framework's own arithmetic, in the dtype of ``x``."""
        return _SCALE[self.name](x, factors)


FRAMEWORKS = (
    Framework("numpy", "numpy", "numpy"),
    Framework("torch", "torch", "torch"),
    Framework("paddle", "paddle", "paddlepaddle"),
    Framework("jax", "jax", "jax"),
)


def framework(name: str) -> Framework:
    return next(entry for entry in FRAMEWORKS if entry.name == name)


def has_bfloat16(name: str) -> bool:
    """NumPy has bfloat16 from ml_dtypes, which JAX brings along; the others have their own."""
    return name != "numpy" or importlib.util.find_spec("ml_dtypes") is not None


def _numpy_dtype(bits: Bits) -> np.dtype[Any]:
    if bits.dtype == np.uint32:
        return np.dtype(np.float32)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)  # type: ignore[no-any-return, unused-ignore]


def _numpy_tensor(bits: Bits) -> Any:
    return bits.view(_numpy_dtype(bits))


def _numpy_scale(x: Any, factors: npt.NDArray[np.float32]) -> Any:
    return x * factors.astype(x.dtype)[:, None]


def _torch_tensor(bits: Bits) -> Any:
    import torch

    if bits.dtype == np.uint32:
        return torch.from_numpy(bits.view(np.float32))
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def _torch_scale(x: Any, factors: npt.NDArray[np.float32]) -> Any:
    import torch

    return x * torch.from_numpy(factors).to(x.dtype)[:, None]


def _paddle_tensor(bits: Bits) -> Any:
    import paddle

    host = paddle.CPUPlace()
    if bits.dtype == np.uint32:
        return paddle.to_tensor(bits.view(np.float32), place=host)
    return paddle.view(paddle.to_tensor(bits.view(np.int16), place=host), "bfloat16")


def _paddle_scale(x: Any, factors: npt.NDArray[np.float32]) -> Any:
    import paddle

    return x * paddle.to_tensor(factors, place=x.place).astype(x.dtype).unsqueeze(1)


def _jax_tensor(bits: Bits) -> Any:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_platforms", "cpu")
    return jnp.asarray(bits.view(_numpy_dtype(bits)))


def _jax_scale(x: Any, factors: npt.NDArray[np.float32]) -> Any:
    import jax.numpy as jnp

    return x * jnp.asarray(factors, dtype=x.dtype)[:, None]


_TENSOR = {"numpy": _numpy_tensor, "torch": _torch_tensor, "paddle": _paddle_tensor, "jax": _jax_tensor}
_SCALE = {"numpy": _numpy_scale, "torch": _torch_scale, "paddle": _paddle_scale, "jax": _jax_scale}
