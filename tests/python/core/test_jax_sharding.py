"""a2a.jax.boxes: shardings of JAX as shardings of comm.reshard."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from commands import needs

needs("jax")

pytestmark = pytest.mark.timeout(110)

# Four devices of one process describe four ranks.
PROGRAM = """
import itertools, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
import a2a
from a2a.jax import boxes

devices = np.array(jax.devices())
line, grid = Mesh(devices, "x"), Mesh(devices.reshape(2, 2).T, ("x", "y"))
pair = Mesh(devices[2:], "x")
shardings = [NamedSharding(line, P("x")), NamedSharding(line, P(None, "x")), NamedSharding(grid, P("x", "y")),
             NamedSharding(grid, P(("y", "x"))), NamedSharding(grid, P(None, "y")), NamedSharding(pair, P()),
             NamedSharding(pair, P("x")), SingleDeviceSharding(devices[1])]
full = np.arange(8 * 12, dtype=np.float32).reshape(8, 12)

def parts(array):  # what JAX itself puts on each device
    return {shard.device.id: np.asarray(shard.data) for shard in array.addressable_shards}

def exchange(comm, pairs):
    for src, dst in pairs:
        before, after = parts(jax.device_put(full, src)), parts(jax.device_put(full, dst))
        send = before.get(comm.rank)
        recv = np.zeros_like(after[comm.rank]) if comm.rank in after else None
        comm.reshard(send, recv, full.shape, boxes(src, full.shape), boxes(dst, full.shape))
        assert recv is None or (recv == after[comm.rank]).all(), (src, dst)

a2a.spawn(exchange, 4, list(itertools.product(shardings, repeat=2)), threads=True)
for sharding, shape in ((shardings[0], (6, 2)), (shardings[2], (8,))):
    try:
        boxes(sharding, shape)
        print("no error", sharding, shape)
    except a2a.InvalidArgumentError as error:
        assert "does not fit shape" in str(error), error
print("fine")
"""


def test_reshard_gives_what_jax_puts_on_devices() -> None:
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=90)
    assert done.stdout == "fine\n", done.stdout + done.stderr


def test_what_does_not_fit() -> None:
    import jax
    from a2a.jax import boxes

    import a2a

    one = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    assert boxes(one, (3, 2), lambda device: 5) == {5: (slice(0, 3), slice(0, 2))}
    assert boxes(one, (), lambda device: 5) == {5: ()}
    with pytest.raises(a2a.InvalidArgumentError, match="sharding is str"):
        boxes("rows", (3,))  # type: ignore[arg-type]
    two = SimpleNamespace(devices_indices_map=lambda shape: {"a": (slice(0, 1),), "b": (slice(1, None),)})
    assert boxes(two, (3,), "ab".index) == {0: (slice(0, 1),), 1: (slice(1, 3),)}  # type: ignore[arg-type]
    with pytest.raises(a2a.InvalidArgumentError, match="rank 7 has several parts"):
        boxes(two, (3,), lambda device: 7)  # type: ignore[arg-type]
