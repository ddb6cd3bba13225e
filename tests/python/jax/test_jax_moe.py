"""a2a.jax.moe: dispatch and combine with a fixed capacity, under jax.jit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from commands import command, environment, needs
from rank_pool import Pool

import a2a

needs("jax")

pytestmark = pytest.mark.timeout(110)

EXAMPLES = Path(__file__).parents[3] / "examples"


def routed(world: a2a.Communicator, capacity: int) -> None:
    """Each expert multiplies its rows by its number, from 1."""
    import jax
    import jax.numpy as jnp
    from a2a.jax import moe

    rng = np.random.default_rng(world.rank)
    x = jnp.asarray(rng.normal(size=(6, 3)), "float32")
    chosen = rng.integers(0, 8, (6, 2))
    weights = jnp.asarray(rng.normal(size=(6, 2)), "float32")

    @jax.jit
    def layer(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows, routing = moe.dispatch(x, chosen, num_experts=8, capacity=capacity, axis_name=world)
        assert rows.shape == (2, 4 * capacity, 3)
        factor = 1 + 2 * world.rank + jnp.arange(2.0)
        return moe.combine(rows * factor[:, None, None], routing, weights, axis_name=world), routing.kept

    got, kept = layer(x)
    wanted_kept = np.zeros((6, 2), bool)
    rows_of = dict.fromkeys(range(8), 0)
    for at in np.ndindex(6, 2):
        wanted_kept[at] = rows_of[chosen[at]] < capacity
        rows_of[chosen[at]] += 1
    assert (kept == wanted_kept).all()
    factors = (np.where(wanted_kept, weights, 0) * (chosen + 1)).sum(1)
    np.testing.assert_allclose(got, x * factors[:, None], rtol=1e-5, atol=1e-6)
    slope = jax.jit(jax.grad(lambda x: layer(x)[0].sum()))(x)
    np.testing.assert_allclose(slope, np.repeat(factors[:, None], 3, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("capacity", [1, 6])
def test_rows_come_to_their_experts_and_back(pool: Pool, capacity: int) -> None:
    pool.run(routed, capacity)


def refused(world: a2a.Communicator) -> None:
    from a2a.jax import moe

    x = np.ones((3, 2), np.float32)
    for experts, how, words in (
        (np.zeros((3, 1), int), dict(num_experts=6, capacity=2), "num_experts is 6, which 4 ranks"),
        (np.zeros((3, 1), int), dict(num_experts=8, capacity=0), "capacity is 0"),
        (np.zeros(3, int), dict(num_experts=8, capacity=1), "experts .3,.; pass .tokens, ...."),
    ):
        with pytest.raises(a2a.InvalidArgumentError, match=words):
            moe.dispatch(x, experts, axis_name=world, **how)
    world.barrier()


def test_refusals(pool: Pool) -> None:
    pool.run(refused)


@pytest.mark.skipif(not EXAMPLES.exists(), reason="needs a checkout")
@pytest.mark.parametrize("name", ["moe_jax.py", "moe_jax_shard_map.py"])
def test_the_examples(name: str) -> None:
    import jax

    if name == "moe_jax_shard_map.py" and not hasattr(jax, "shard_map"):
        pytest.skip("needs jax.shard_map")
    done = subprocess.run(
        command("run", "-n", "4", str(EXAMPLES / name)), env=environment(), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "4 ranks train as one" in done.stdout
