"""jax.lax's all_to_all between processes with arrays of their own: ``from a2a import jax as a2ajax``. ``boxes`` makes
those of ``comm.reshard`` of JAX's shardings."""

from __future__ import annotations

from ._all_to_all import all_to_all
from ._sharding import boxes

__all__ = ["all_to_all", "boxes"]
