"""A mixture-of-experts layer in jax.shard_map, as programs for TPUs have it, trained under jax.jit on CPUs:
a2a run -n 4 examples/moe_jax_shard_map.py

a2a.jax.install() brings jax.lax.ragged_all_to_all, which XLA lacks on CPUs. Every rank is a process of jax.distributed
with one device; a2a run tells JAX what it needs. Each token goes to its best experts and no row is dropped. Every rank
also trains the dense layer, which has all experts and sees the tokens of all ranks, and compares the two.
"""

import jax
import jax.numpy as jnp
import numpy as np
from a2a.jax import install
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import a2a

FEATURES, HIDDEN, TOKENS, EXPERTS_PER_RANK, TOP_K, STEPS, RATE = 8, 16, 32, 2, 2, 10, 0.5
EVERYWHERE, BY_RANK = PartitionSpec(), PartitionSpec("ranks")


def offsets(sizes):
    """Where each of the slices begins, along the last axis."""
    return jnp.cumsum(sizes, -1) - sizes


def route(gate, x):
    return jax.lax.top_k(jax.nn.softmax(x @ gate), TOP_K)


def experts_of(w1, w2, rows, number):
    """Each row goes through the expert of its number; -1: through none."""
    each = jnp.einsum("erh,ehf->erf", jnp.tanh(jnp.einsum("rf,efh->erh", rows, w1)), w2)
    return (each * (number == jnp.arange(len(w1))[:, None])[..., None]).sum(0)


def layer(gate, w1, w2, x):
    """Of one rank, in shard_map."""
    weights, chosen = route(gate, x)
    order = jnp.argsort(chosen.reshape(-1))
    rank, ranks = jax.lax.axis_index("ranks"), jax.lax.axis_size("ranks")
    owner = chosen.reshape(-1)[order] // EXPERTS_PER_RANK
    sizes = jax.lax.all_gather((owner[:, None] == jnp.arange(ranks)).sum(0), "ranks")  # [from, to]
    begins, places = offsets(sizes), offsets(sizes.T).T
    there = begins[rank], sizes[rank], places[rank], sizes[:, rank]
    back = places[:, rank], sizes[:, rank], begins[:, rank], sizes[rank]

    def exchange(operand, output, way):
        return jax.lax.ragged_all_to_all(operand, output, *way, axis_name="ranks")

    room = ranks * len(order)
    rows = exchange(x[order // TOP_K], jnp.zeros((room, FEATURES)), there)
    number = exchange(chosen.reshape(-1)[order] % EXPERTS_PER_RANK, jnp.full(room, -1, chosen.dtype), there)
    made = exchange(experts_of(w1, w2, rows, number), jnp.zeros((len(order), FEATURES)), back)
    return (made[jnp.argsort(order)].reshape(*chosen.shape, -1) * weights[..., None]).sum(1)


def dense_layer(gate, w1, w2, x):
    weights, chosen = route(gate, x)
    return sum(experts_of(w1, w2, x, chosen[:, k]) * weights[:, k, None] for k in range(TOP_K))


def trained(loss_of):
    @jax.jit
    def step(parameters, x, y):
        loss, slopes = jax.value_and_grad(lambda p: loss_of(*p, x, y).mean())(parameters)
        return loss, tuple(p - RATE * slope for p, slope in zip(parameters, slopes, strict=True))

    return step


def main():
    install()
    jax.distributed.initialize()
    with a2a.init() as comm:
        assert (comm.rank, comm.size) == (jax.process_index(), jax.process_count())
        mesh = Mesh(np.array(jax.devices()), ("ranks",))
        rng = np.random.default_rng(0)  # the same everywhere
        experts = comm.size * EXPERTS_PER_RANK
        gate = rng.normal(size=(FEATURES, experts))
        w1 = rng.normal(size=(experts, FEATURES, HIDDEN)) / 3
        w2 = rng.normal(size=(experts, HIDDEN, FEATURES)) / 4
        x = rng.normal(size=(comm.size * TOKENS, FEATURES))
        y = np.tanh(x @ rng.normal(size=(FEATURES, FEATURES)))
        dense = tuple(each.astype(np.float32) for each in (gate, w1, w2))
        data = x.astype(np.float32), y.astype(np.float32)

        def spread(array, spec):
            return jax.device_put(array, NamedSharding(mesh, spec))

        parameters = spread(dense[0], EVERYWHERE), spread(dense[1], BY_RANK), spread(dense[2], BY_RANK)
        parts = [spread(each, BY_RANK) for each in data]
        step = trained(
            jax.shard_map(
                lambda gate, w1, w2, x, y: (layer(gate, w1, w2, x) - y) ** 2,
                mesh=mesh,
                in_specs=(EVERYWHERE, BY_RANK, BY_RANK, BY_RANK, BY_RANK),
                out_specs=BY_RANK,
                check_vma=False,
            )
        )
        dense_step = trained(lambda gate, w1, w2, x, y: (dense_layer(gate, w1, w2, x) - y) ** 2)
        for number in range(STEPS):
            loss, parameters = step(parameters, *parts)
            alone, dense = dense_step(dense, *data)
            assert jnp.allclose(float(loss), float(alone), rtol=1e-4), (number, loss, alone)
        for own, whole in zip(parameters, dense, strict=True):
            for shard in own.addressable_shards:
                assert np.allclose(shard.data, whole[shard.index], atol=1e-4)
        comm.barrier()
        if comm.rank == 0:
            print(f"{comm.size} ranks train as one: loss {float(loss):.4f} after {STEPS} steps")


main()
