"""jax.lax's all_to_all between processes with arrays of their own: ``from a2a import jax as a2ajax``."""

from __future__ import annotations

from ._all_to_all import all_to_all

__all__ = ["all_to_all"]
