"""Ranks that are processes of jax.distributed, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import command, environment, needs
from sample import with_full

needs("jax")

pytestmark = pytest.mark.timeout(110)

SUPPORT = Path(__file__).parents[1] / "support"

PROGRAM = """
import importlib
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import a2a
from a2a.jax import install, psum
comm = a2a.init()
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize()
assert (jax.process_index(), jax.process_count()) == (comm.rank, comm.size)
assert (jax.jit(lambda x: psum(x, comm))(jnp.ones(3)) == comm.size).all()

install()
mesh, spec = Mesh(np.array(jax.devices()), ("ranks",)), PartitionSpec("ranks")
if hasattr(jax, "shard_map"):
    shard_map, how = jax.shard_map, {}
else:
    shard_map, how = importlib.import_module("jax.experimental.shard_map").shard_map, dict(check_rep=False)

def whole(own):
    return jax.make_array_from_process_local_data(NamedSharding(mesh, spec), np.asarray(own))

# Each rank sends its number + 1 rows to every rank.
n, r = comm.size, comm.rank
operand = whole(np.arange(8, dtype=np.float32) + 10 * r)
output = whole(np.full(8, -1, np.float32))
begins = [r + 1] * n if r == 0 else [0] * n
places = [r * (r + 1) // 2] * n
indices = [whole(np.array(each, np.int32)) for each in (begins, [r + 1] * n, places, np.arange(n) + 1)]
call = lambda *own: jax.lax.ragged_all_to_all(*own, axis_name="ranks")
y = jax.jit(shard_map(call, mesh=mesh, in_specs=(spec,) * 6, out_specs=spec, **how))(operand, output, *indices)
assert y.addressable_shards[0].data.tolist() == [1, 10, 11, -1, -1, -1, -1, -1]
print("as wanted")
"""


def test_a2a_run_tells_jax_what_it_needs(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        command("run", "-n", "2", str(program)), env=environment(), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("as wanted") == 2


def run_on_devices(devices: int, *line: str) -> str:
    """With fewer threads of XLA than devices, if it had no more than NPROC."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    env = environment(XLA_FLAGS=flags, JAX_PLATFORMS="cpu", NPROC="1")
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


PLACES = {"one process": (1, 4), "two ranks": (2, 2), "four ranks": (4, 1)}


@pytest.mark.parametrize("ranks, devices", PLACES.values(), ids=PLACES)
def test_what_jax_tries_of_its_ragged_exchange_on_devices(ranks: int, devices: int) -> None:
    program = str(SUPPORT / "jax_ragged_ranks.py")
    line = [sys.executable, program] if ranks == 1 else command("run", "-n", str(ranks), program)
    assert run_on_devices(devices, *line).count("as wanted") == ranks


@pytest.mark.parametrize("first", [0, *with_full(range(6, 60, 6))])
def test_calls_on_ranks_as_on_a_mesh_of_devices(first: int) -> None:
    assert "as wanted" in run_on_devices(4, sys.executable, str(SUPPORT / "jax_mesh_ranks.py"), str(first), "6")
