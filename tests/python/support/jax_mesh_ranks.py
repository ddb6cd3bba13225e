"""Calls drawn at random on ranks that are threads, against those of jax.lax in shard_map on a mesh of as many devices:
python jax_mesh_ranks.py FIRST COUNT, where XLA has four devices."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jax_ragged_ranks import mapped

import a2a
from a2a import jax as a2ajax

sys.path.append(str(Path(__file__).parents[1] / "jax"))
from test_jax_compiled import random_call

RANKS = 4


def on_devices(name: str, how: dict[str, Any], whole: Any) -> Any:
    mesh, spec = Mesh(np.array(jax.devices()[:RANKS]), ("ranks",)), PartitionSpec("ranks")
    call = mapped(lambda x: getattr(jax.lax, name)(x[0], "ranks", **how)[None], mesh, spec, spec)
    return np.asarray(jax.jit(call)(whole))


def on_ranks(name: str, how: dict[str, Any], whole: Any) -> Any:
    def rank(comm: a2a.Communicator) -> list[Any]:
        def call(x: Any) -> Any:
            return getattr(a2ajax, name)(x, comm, **how)

        def scanned(x: Any) -> Any:
            return jax.lax.scan(lambda _, x: (None, call(x)), None, jnp.stack([x, x]))[1][1]

        x = whole[comm.rank]
        batch = jax.jit(jax.vmap(call, in_axes=-1, out_axes=0))(jnp.stack([x, x], -1))[0]
        donated = jax.jit(call, donate_argnums=0)(jnp.array(x))
        return [np.asarray(each) for each in (jax.jit(call)(x), jax.jit(scanned)(x), batch, donated)]

    return a2a.spawn(rank, RANKS, threads=True)


def main() -> None:
    first, count = (int(argument) for argument in sys.argv[1:])
    for seed in range(first, first + count):
        name, how, shape, dtype = random_call(np.random.default_rng(seed))
        whole = jnp.asarray(np.random.default_rng(seed).integers(0, 9, (RANKS, *shape))).astype(dtype)
        wanted = on_devices(name, how, whole)
        for own, results in zip(wanted, on_ranks(name, how, whole), strict=True):
            for got in results:
                assert (got.shape, got.dtype) == (own.shape, own.dtype), (seed, name, how, shape, dtype)
                assert (got == own).all(), (seed, name, how, shape, dtype, got, own)
    print("as wanted")


if __name__ == "__main__":
    main()
