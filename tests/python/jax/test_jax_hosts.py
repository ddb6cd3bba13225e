"""Compiled programs between ranks on several hosts, over TCP and over MPI. The hosts are assigned by A2A_HOSTS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from commands import needs
from mpi import INSTALLED
from rank_pool import Pool
from sample import with_full
from test_jax_in_step import disagreements
from test_jax_ragged import Case

import a2a

needs("jax")

pytestmark = pytest.mark.timeout(110)

POOLS = [Pool(4, hosts="a,a,b,b"), *(Pool(4, hosts="a,b,a,b", mpi=mpi) for mpi in INSTALLED)]
POOLS += with_full([Pool(4, hosts="a,b,c,d")])


@pytest.fixture(scope="module", params=POOLS, ids=repr)
def hosts(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with request.param as made:
        yield made


def differentiated(world: a2a.Communicator, rows: int) -> None:
    """Values and gradients, of few bytes and of so many that they go from memory to memory."""
    import jax
    import jax.numpy as jnp
    from a2a.jax import all_to_all, broadcast, ppermute, psum, psum_scatter

    whole = jnp.asarray(np.random.default_rng(3).integers(-4, 5, (4, 4 * rows, 3)), "float32")
    x = whole[world.rank]
    ring = [(rank, (rank + 1) % 4) for rank in range(4)]

    def ours(x: Any) -> Any:
        y = all_to_all(x, world, 0, 1, tiled=True)
        return y, psum(x, world), psum_scatter(x, world, tiled=True), ppermute(x, world, ring)

    def theirs(x: Any) -> Any:
        y = jax.lax.all_to_all(x, "ranks", 0, 1, tiled=True)
        scattered = jax.lax.psum_scatter(x, "ranks", tiled=True)
        return y, jax.lax.psum(x, "ranks"), scattered, jax.lax.ppermute(x, "ranks", ring)

    everyone = jax.vmap(theirs, axis_name="ranks")
    for got, wanted in zip(jax.jit(ours)(x), everyone(whole), strict=True):
        assert (got == wanted[world.rank]).all()
    slope = jax.jit(jax.grad(lambda x: sum((y**2).sum() for y in ours(x))))(x)
    wanted = jax.grad(lambda whole: sum((y**2).sum() for y in everyone(whole)))(whole)[world.rank]
    np.testing.assert_allclose(slope, wanted)
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda _, x: broadcast(ppermute(x, world, ring), world, 2), x))
    assert (looped(x) == whole[(1 - 4) % 4]).all()
    in_flight = [jax.jit(lambda x: psum(x, world))(x + step) for step in range(10)]
    for step, y in enumerate(in_flight):
        assert (y == whole.sum(0) + 4 * step).all()


@pytest.mark.parametrize("rows", [2, 5000])
def test_values_and_gradients(hosts: Pool, rows: int) -> None:
    hosts.run(differentiated, rows)


def ragged(world: a2a.Communicator) -> None:
    import jax
    from a2a.jax import ragged_all_to_all

    case, rank = Case(4, 2), world.rank
    call = jax.jit(lambda *given: ragged_all_to_all(*given, axis_name=world))
    assert (call(case.operand[rank], case.output[rank], *case.indices(rank)) == case.result[rank]).all()
    slope = jax.jit(jax.grad(lambda *given: (call(*given) ** 2).sum()))
    got = slope(case.operand[rank], case.output[rank], *case.indices(rank))
    np.testing.assert_allclose(got, np.where(case.sent[rank], 2 * case.operand[rank], 0))


def test_ragged(hosts: Pool) -> None:
    hosts.run(ragged)


def disagreed(world: a2a.Communicator) -> None:
    import jax
    import jax.numpy as jnp
    from a2a.jax import psum

    for words, first, given in disagreements(world, world.rank == 1):
        program = jax.jit(lambda x, first=first: (first(x), psum(x, world)))
        with pytest.raises(jax.errors.JaxRuntimeError, match=words):
            jax.block_until_ready(program(given))
        assert not world.broken
        assert (jax.jit(lambda x: psum(x, world))(jnp.ones(4) * world.rank) == 6).all()


def test_ranks_that_disagree_stay_in_step(hosts: Pool) -> None:
    hosts.run(disagreed)
