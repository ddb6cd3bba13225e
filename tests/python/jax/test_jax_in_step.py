"""After a program has failed: whether the ranks are in step, and the communicator is usable, or broken on all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from commands import needs
from rank_pool import Pool

import a2a

needs("jax")

pytestmark = pytest.mark.timeout(110)

Call = Callable[[Any], Any]


def disagreements(comm: a2a.Communicator, odd: bool) -> Iterator[tuple[str, Call, Any]]:
    """What the error says, a call, and its argument: rank 1 is odd."""
    import jax.numpy as jnp

    from a2a import jax as a2ajax

    x, other, ones = jnp.ones(4), jnp.ones(8), np.ones(4, int)
    groups = [[0, 2], [3, 1]]

    def barrier(x: Any) -> Any:
        a2ajax.barrier(comm)
        return x

    def total(x: Any) -> Any:
        return a2ajax.psum(x, comm)

    def ragged(rows: Any, begins: Any, sends: Any, recvs: Any) -> Call:
        places = ones * comm.rank
        return lambda x: a2ajax.ragged_all_to_all(rows, rows, begins, sends, places, recvs, axis_name=comm)

    yield "rank 1 reduces 8 elements", total, other if odd else x
    yield "rank 1 reduces with max", (lambda x: a2ajax.pmax(x, comm)) if odd else total, x
    yield "rank 1 calls barrier", barrier if odd else total, x
    yield "rank 1 uses dtype int32", lambda x: a2ajax.all_gather(x, comm), x.astype("int32") if odd else x
    yield "to rank 1|rank 1 sends", lambda x: a2ajax.all_to_all(x, comm, 0, 0, tiled=True), x if odd else other
    yield "1", lambda x: a2ajax.ppermute(x, comm, [(0, 1)]), other if odd else x
    yield "1", lambda x: a2ajax.ppermute(x, comm, [(0, 2 if odd else 3)]), x
    yield "1", lambda x: a2ajax.psum(x, comm, axis_index_groups=groups[::-1] if odd else groups), x
    yield "sends 1 rows to rank 2, which expects 2", ragged(x, ones * 0, ones, ones + (comm.rank == 2)), x
    yield "rank 1.*leaves a buffer", ragged(x, ones * 9 * odd, ones, ones), x
    yield "1", ragged(jnp.ones((4, 1 + odd)), ones * 0, ones * 0, ones * 0), x


def disagreed(world: a2a.Communicator, slow: bool) -> None:
    """Every rank fails in the first operation, so none starts the second: they are in step."""
    import jax
    import jax.numpy as jnp
    from a2a.jax import psum

    comm = world.group(range(4))
    assert comm is not None
    for words, first, given in disagreements(comm, comm.rank == 1):

        @jax.jit
        def program(x: Any, first: Call = first) -> Any:
            if slow:
                big = jnp.ones((300, 300)) * x[0]
                x = x + ((big @ big).sum() * 0).astype(x.dtype)
            return first(x), psum(x, comm)

        with pytest.raises(jax.errors.JaxRuntimeError, match=words):
            jax.block_until_ready(program(given))
        assert not comm.broken
        assert (jax.jit(lambda x: psum(x, comm))(jnp.ones(4) * comm.rank) == 6).all()
        assert (psum(jnp.ones(4), comm) == 4).all()


def alike(world: a2a.Communicator) -> None:
    """The same pairs in another order are the same."""
    import jax
    import jax.numpy as jnp
    from a2a.jax import ppermute

    ring = [((i + world.rank) % 4, (i + world.rank + 1) % 4) for i in range(4)]
    call = jax.jit(lambda x: ppermute(x, world, ring))
    assert (call(jnp.full(3, world.rank)) == (world.rank - 1) % 4).all()
    slope = jax.jit(jax.grad(lambda x: (call(x) * (1.0 + world.rank)).sum()))(jnp.ones(3))
    assert (slope == 1 + (world.rank + 1) % 4).all()


def test_arguments_that_mean_the_same(pool: Pool) -> None:
    pool.run(alike)


@pytest.mark.parametrize("slow", [False, True])
def test_ranks_that_disagree_stay_in_step(pool: Pool, slow: bool) -> None:
    pool.run(disagreed, slow)


BEHIND = "programs that were started behind it did not run"


def overtaken(world: a2a.Communicator) -> str:
    """Rank 1 reads the error of each program before it starts the next one; the others start two meanwhile."""
    import time

    import jax
    import jax.numpy as jnp
    from a2a.jax import psum

    comm = world.group(range(4))
    assert comm is not None

    @jax.jit
    def slow(x: Any) -> Any:
        big = jnp.ones((400, 400)) * x[0]
        return psum(x + (big @ big @ big).sum() * 0, comm)

    quick = jax.jit(lambda x: psum(x, comm))
    quick(jnp.ones(2)).block_until_ready()
    jax.jit(lambda x: psum(x, world))(jnp.ones(2)).block_until_ready()  # another communicator, which stays usable
    words = f"rank 1 reduces 4 elements|{BEHIND}"  # a rank that was late has its second program alone
    slow.lower(jnp.ones(3)).compile()
    world.barrier()
    if world.rank == 1:
        time.sleep(1.5)
        with pytest.raises(jax.errors.JaxRuntimeError, match=words):
            quick(jnp.ones(4)).block_until_ready()
    else:
        with pytest.raises(jax.errors.JaxRuntimeError, match=words):
            first = slow(jnp.ones(3))
            jax.block_until_ready((first, quick(jnp.ones(2))))
    with pytest.raises((a2a.AbortedError, jax.errors.JaxRuntimeError)) as caught:
        if world.rank == 1:
            quick(jnp.ones(2)).block_until_ready()
        else:
            comm.barrier()
    assert comm.broken
    world.barrier()
    return str(caught.value)


def test_programs_behind_one_that_failed_break_the_communicator(pool: Pool) -> None:
    for text in pool.run(overtaken):
        assert BEHIND in text


def in_two_communicators(world: a2a.Communicator) -> None:
    """Ranks 0 and 1 disagree in a group of theirs, while 2 and 3 go on to an operation of all."""
    import jax
    import jax.numpy as jnp
    from a2a.jax import psum

    comm = world.group(range(4))
    half = world.split(world.rank // 2)
    assert comm is not None and half is not None
    call = jax.jit(lambda x: psum(psum(x, half).sum(), comm))
    with pytest.raises(jax.errors.JaxRuntimeError, match="elements" if world.rank < 2 else "a compiled program failed"):
        call(jnp.ones(3 + (world.rank == 1))).block_until_ready()
    assert comm.broken
    world.barrier()


def test_a_program_with_two_communicators_breaks_both(pool: Pool) -> None:
    pool.run(in_two_communicators)


def failed_elsewhere(world: a2a.Communicator) -> None:
    """What fails is no operation, on all ranks alike. The next program runs."""
    import jax
    import jax.numpy as jnp
    from a2a.jax import psum

    def fails(x: Any) -> Any:
        raise RuntimeError("a callback has failed")

    @jax.jit
    def call(x: Any) -> Any:
        x = psum(x, world)
        x = jax.pure_callback(fails, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return psum(x, world)

    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match="a callback has failed"):
            call(jnp.ones(3)).block_until_ready()
        assert (jax.jit(lambda x: psum(x, world))(jnp.ones(3)) == 4).all()


def test_the_program_after_one_that_failed_otherwise(pool: Pool) -> None:
    pool.run(failed_elsewhere)
