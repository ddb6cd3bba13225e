"""A mixture-of-experts layer in JAX, trained under jax.jit on the CPU: a2a run -n 4 examples/moe_jax.py

A gate sends every token to its best experts, on whichever ranks they are. What they make of it comes back as a weighted
sum, and the backward pass goes the same ways, all inside of one compiled step. Every rank also trains the dense layer,
which has all experts and sees the tokens of all ranks, and compares the two.
"""

import jax
import jax.numpy as jnp
from a2a.jax import moe, psum

import a2a

FEATURES, HIDDEN, TOKENS, EXPERTS_PER_RANK, TOP_K, STEPS, RATE = 8, 16, 32, 2, 2, 10, 0.5


def experts_of(w1, w2, x):
    """x is [experts, rows, features], a block of rows for each expert."""
    return jnp.einsum("erh,ehf->erf", jnp.tanh(jnp.einsum("erf,efh->erh", x, w1)), w2)


def route(gate, x):
    return jax.lax.top_k(jax.nn.softmax(x @ gate), TOP_K)


def dense_layer(parameters, x):
    """All experts see all tokens; the gate's choice is a mask."""
    gate, w1, w2 = parameters
    weights, chosen = route(gate, x)
    mask = (jax.nn.one_hot(chosen, len(w1)) * weights[..., None]).sum(1)
    return jnp.einsum("te,etf->tf", mask, experts_of(w1, w2, jnp.broadcast_to(x, (len(w1), *x.shape))))


def main():
    with a2a.init() as comm:
        ranks, experts = comm.size, comm.size * EXPERTS_PER_RANK
        keys = jax.random.split(jax.random.key(0), 5)  # the same everywhere
        gate = jax.random.normal(keys[0], (FEATURES, experts))
        w1 = jax.random.normal(keys[1], (experts, FEATURES, HIDDEN)) / 3
        w2 = jax.random.normal(keys[2], (experts, HIDDEN, FEATURES)) / 4
        tokens = jax.random.normal(keys[3], (ranks, TOKENS, FEATURES))
        wanted = jnp.tanh(tokens @ jax.random.normal(keys[4], (FEATURES, FEATURES)))
        mine = slice(comm.rank * EXPERTS_PER_RANK, (comm.rank + 1) * EXPERTS_PER_RANK)

        def layer(parameters, x):
            gate, w1, w2 = parameters
            weights, chosen = route(gate, x)
            rows, routing = moe.dispatch(x, chosen, num_experts=experts, capacity=TOKENS, axis_name=comm)
            return moe.combine(experts_of(w1, w2, rows), routing, weights, axis_name=comm)

        @jax.jit
        def step(parameters, x, y):
            # The share of this rank in the mean over all ranks.
            loss, slopes = jax.value_and_grad(lambda p: ((layer(p, x) - y) ** 2).mean() / ranks)(parameters)
            slopes = (psum(slopes[0], comm), *slopes[1:])  # every rank has the gate, and experts of its own
            return psum(loss, comm), tuple(p - RATE * slope for p, slope in zip(parameters, slopes, strict=True))

        @jax.jit
        def dense_step(parameters, x, y):
            loss, slopes = jax.value_and_grad(lambda p: ((dense_layer(p, x) - y) ** 2).mean())(parameters)
            return loss, tuple(p - RATE * slope for p, slope in zip(parameters, slopes, strict=True))

        parameters, dense = (gate, w1[mine], w2[mine]), (gate, w1, w2)
        for number in range(STEPS):
            loss, parameters = step(parameters, tokens[comm.rank], wanted[comm.rank])
            alone, dense = dense_step(dense, tokens.reshape(-1, FEATURES), wanted.reshape(-1, FEATURES))
            assert jnp.allclose(loss, alone, rtol=1e-4), (number, loss, alone)
        assert jnp.allclose(parameters[1], dense[1][mine], atol=1e-4)
        if comm.rank == 0:
            print(f"{ranks} ranks train as one: loss {loss:.4f} after {STEPS} steps")


main()
