"""The collectives of jax.lax between processes with arrays of their own, inside and outside of jax.jit:
``from a2a import jax as a2ajax``. ``boxes`` makes those of ``comm.reshard`` of JAX's shardings."""

from __future__ import annotations

from . import _cluster as _cluster
from . import moe
from ._collectives import all_gather, all_to_all, broadcast, pmax, pmean, pmin, ppermute, psum, psum_scatter
from ._install import install
from ._messages import barrier, recv, send
from ._ragged import ragged_all_to_all
from ._sharding import boxes

__all__ = [
    "all_gather",
    "all_to_all",
    "barrier",
    "boxes",
    "broadcast",
    "install",
    "moe",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "psum",
    "psum_scatter",
    "ragged_all_to_all",
    "recv",
    "send",
]
