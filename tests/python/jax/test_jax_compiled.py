"""The collectives of a2a.jax inside and outside of jax.jit, against those of jax.lax, which run here on a mesh of as
many devices of one process as there are ranks, by vmap with a named axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from commands import needs
from rank_pool import Pool
from sample import with_full

import a2a

needs("jax")

pytestmark = pytest.mark.timeout(110)

PAIRS = [(0, 1), (1, 3), (3, 0)]
GROUPS = [[2, 0], [1, 3]]

# name -> (the call, its arguments); `axis_name` is the second one.
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "psum": ("psum", {}),
    "pmean": ("pmean", {}),
    "pmax": ("pmax", {}),
    "pmin": ("pmin", {}),
    "all_gather": ("all_gather", dict(axis=1)),
    "all_gather, tiled": ("all_gather", dict(axis=1, tiled=True)),
    "psum_scatter": ("psum_scatter", {}),
    "psum_scatter, tiled": ("psum_scatter", dict(scatter_dimension=1, tiled=True)),
    "ppermute": ("ppermute", dict(perm=[*PAIRS, (2, 2)])),
    "all_to_all": ("all_to_all", dict(split_axis=0, concat_axis=1)),
    "all_to_all, tiled": ("all_to_all", dict(split_axis=1, concat_axis=0, tiled=True)),
    "broadcast": ("broadcast", dict(root=2)),
}


def inputs(shape: tuple[int, ...] = (4, 8)) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(np.random.default_rng(7).integers(-9, 10, (4, *shape)), "float32") / 8


def pair(world: a2a.Communicator, name: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """a2a's call and the one of jax.lax."""
    import jax

    from a2a import jax as a2ajax

    call, how = CALLS[name]
    if call == "broadcast":
        return lambda x: a2ajax.broadcast(x, world, **how), lambda x: jax.lax.all_gather(x, "ranks")[how["root"]]
    return (
        lambda x: getattr(a2ajax, call)(x, world, **how),
        lambda x: getattr(jax.lax, call)(x, "ranks", **how),
    )


def compared(world: a2a.Communicator, name: str) -> None:
    import jax
    import jax.numpy as jnp

    ours, theirs = pair(world, name)
    whole = inputs()
    x = whole[world.rank]

    def everyone(whole: Any) -> Any:
        return jax.vmap(lambda x: theirs(x * x), axis_name="ranks")(whole)

    def own(x: Any) -> Any:
        return ours(x * x)

    wanted = everyone(whole)[world.rank]
    for call in (own, jax.jit(own)):
        got = call(x)
        assert got.shape == wanted.shape and got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    batch = jax.jit(jax.vmap(own, in_axes=1, out_axes=-1))(jnp.stack([x, 2 * x], 1))
    np.testing.assert_allclose(batch[..., 1], everyone(2 * whole)[world.rank], rtol=1e-6)
    if name in ("pmax", "pmin"):
        with pytest.raises(NotImplementedError, match="has no derivative"):
            jax.grad(lambda x: own(x).sum())(x)
        world.barrier()
        return
    slope = jax.grad(lambda whole: (everyone(whole) ** 2).sum())(whole)[world.rank]
    loss = lambda x: (own(x) ** 2).sum()  # noqa: E731
    for gradient in (jax.jit(jax.grad(loss)), jax.jit(jax.grad(jax.checkpoint(loss)))):
        np.testing.assert_allclose(gradient(x), slope, rtol=1e-5)
    value, tangent = jax.jit(lambda x: jax.jvp(ours, (x,), (2 * x,)))(x)
    np.testing.assert_allclose(tangent, 2 * value, rtol=1e-6)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.smoke if name == "psum" else ()) for name in CALLS]
)
def test_as_lax(pool: Pool, name: str) -> None:
    pool.run(compared, name)


def grouped(world: a2a.Communicator) -> None:
    import jax

    from a2a import jax as a2ajax

    whole = inputs((2, 4))
    members = next(group for group in GROUPS if world.rank in group)
    for name, how in (
        ("psum", {}),
        ("pmean", {}),
        ("pmax", {}),
        ("all_gather", dict(axis=1)),
        ("psum_scatter", {}),
        ("psum_scatter", dict(scatter_dimension=1, tiled=True)),
        ("all_to_all", dict(split_axis=1, concat_axis=0, tiled=True)),
    ):
        theirs = jax.vmap(lambda x: getattr(jax.lax, name)(x, "ranks", **how), axis_name="ranks")  # noqa: B023
        wanted = theirs(whole[np.array(members)])[members.index(world.rank)]
        ours = lambda x: getattr(a2ajax, name)(x, world, axis_index_groups=GROUPS, **how)  # noqa: B023, E731
        for call in (ours, jax.jit(ours)):
            np.testing.assert_allclose(call(whole[world.rank]), wanted, rtol=1e-6)


def test_groups(pool: Pool) -> None:
    pool.run(grouped)


def of_dtype(world: a2a.Communicator, dtype: str) -> None:
    import jax
    import jax.numpy as jnp

    from a2a import jax as a2ajax

    for shape in ((3,), (), (0, 2)):
        x = jnp.full(shape, 1 + world.rank).astype(dtype)
        total, permuted = jax.jit(lambda x: (a2ajax.psum(x, world), a2ajax.ppermute(x, world, PAIRS)))(x)
        whole = np.stack([np.full(shape, 1 + rank).astype(x.dtype) for rank in range(4)])
        wanted = whole.astype("int32").sum(0) if dtype == "bool" else whole.sum(0, dtype=x.dtype)
        assert total.shape == shape and (np.asarray(total) == wanted).all()
        assert total.dtype == (np.int32 if dtype == "bool" else x.dtype) and permuted.dtype == x.dtype
        source = {to: source for source, to in PAIRS}.get(world.rank)
        assert (np.asarray(permuted) == (np.zeros_like(whole[0]) if source is None else whole[source])).all()
    assert a2ajax.psum(1, world) == 4 and a2ajax.psum(2.5, world) == 10.0


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", *with_full(["int8", "float16", "complex64", "uint32"])])
def test_dtypes_and_shapes(pool: Pool, dtype: str) -> None:
    pool.run(of_dtype, dtype)


def controlled(world: a2a.Communicator) -> None:
    import jax
    import jax.numpy as jnp
    from a2a.jax import pmax, ppermute, psum

    whole = inputs()
    x, mean = whole[world.rank], np.mean(whole, 0)
    ring = [(rank, (rank + 1) % 4) for rank in range(4)]

    def scanned(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (ppermute(c, world, ring), psum(c, world).sum()), x, None, length=3)

    last, sums = jax.jit(scanned)(x)
    assert (last == whole[(world.rank - 3) % 4]).all()
    np.testing.assert_allclose(sums, [4 * mean.sum()] * 3, rtol=1e-5)
    slope = jax.jit(jax.grad(lambda x: (scanned(x)[0] ** 2).sum()))(x)
    np.testing.assert_allclose(slope, 2 * x, rtol=1e-6)

    looped = jax.jit(lambda x: jax.lax.while_loop(lambda x: x.sum() < 1e3, lambda x: psum(jnp.abs(x), world), x))
    looped = looped(mean * 0 + 0.5)
    assert (looped == 0.5 * 4**3).all()
    counted = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, x: psum(x, world) / 4, x))
    np.testing.assert_allclose(counted(x), mean, rtol=1e-5, atol=1e-6)

    branch = jax.jit(lambda x, p: jax.lax.cond(p, lambda x: psum(x, world), lambda x: pmax(x, world), x))
    np.testing.assert_allclose(branch(x, True), 4 * mean, rtol=1e-5, atol=1e-6)
    assert (branch(x, False) == whole.max(0)).all()


def test_control_flow(pool: Pool) -> None:
    pool.run(controlled)


def ordered(world: a2a.Communicator) -> None:
    """Nothing of what is computed orders these operations, and each rank comes to them at other times."""
    import time

    import jax
    import jax.numpy as jnp
    from a2a.jax import all_gather, barrier, psum, recv, send

    @jax.jit
    def independent(a: Any, b: Any, c: Any) -> Any:
        b = b @ b / 100
        barrier(world)
        return psum(a, world), all_gather(b[0], world), psum(c, world), psum(a * 2, world)

    a, b, c = jnp.ones(3), jnp.ones((100, 100)), jnp.ones((5, 2))
    in_flight = []
    for step in range(20):
        if step % 4 == world.rank:
            time.sleep(0.01)
        in_flight.append(independent(a * step, b, c))
        if step % 5 == 1:  # operations outside of programs come after those in flight
            total = np.ones(3, np.float32)
            assert (psum(total, world) == 4).all()
            world.allreduce(total)
            assert (total == 4).all()
        if step == 7 and world.rank == 1:
            with pytest.raises(a2a.InvalidArgumentError):
                world.allreduce(np.ones(3, np.float32), np.ones(2, np.float32))
        elif step == 7:
            with pytest.raises(a2a.MismatchError, match="rank 1"):
                world.allreduce(np.ones(3, np.float32))
    for step, results in enumerate(in_flight):
        assert (results[0] == 4 * step).all() and (results[3] == 8 * step).all()
        assert results[1].shape == (4, 100) and (results[1] == 1).all() and (results[2] == 4).all()

    donated = jax.jit(lambda x: psum(x, world) + 1, donate_argnums=0)
    assert (donated(jnp.arange(1000.0)) == 4 * np.arange(1000.0) + 1).all()

    @jax.jit
    def messages(x: Any) -> Any:
        if world.rank == 0:
            send(x, world, 1, tag=7)
            return recv(x, world, 1)
        if world.rank == 1:
            send(recv(x, world, 0, tag=7) * 2, world, 0)
        return x

    assert (messages(a) == (2 if world.rank == 0 else 1)).all()
    if world.rank == 2:
        send(a, world, 3)
    if world.rank == 3:
        assert (recv(a * 0, world) == 1).all()
    barrier(world)


def test_order_and_programs_in_flight(pool: Pool) -> None:
    pool.run(ordered)


def handed_on(world: a2a.Communicator) -> None:
    """JAX would copy the token of each program for the next one, in Python."""
    import jax
    import jax.numpy as jnp
    from a2a.jax import psum
    from a2a.jax._programs import effect
    from jax._src import dispatch

    call = jax.jit(lambda x: psum(x, world)).lower(jnp.ones(3)).compile()
    call(jnp.ones(3)).block_until_ready()
    inputs = call._executable.unsafe_call._add_tokens_to_inputs([1])
    assert inputs[0] is dispatch.runtime_tokens.current_tokens[effect]._buf and inputs[1:] == [1]


def test_a_token_is_not_copied(pool: Pool) -> None:
    pool.run(handed_on)


def trained(world: a2a.Communicator) -> None:
    """Data-parallel steps equal those of one process on all data."""
    import jax
    import jax.numpy as jnp
    from a2a.jax import pmean

    whole, weights = inputs((6, 3)), jnp.ones((3, 2))

    def loss(weights: Any, x: Any) -> Any:
        return (jnp.tanh(x @ weights) ** 2).mean()

    @jax.jit
    def step(weights: Any, x: Any) -> Any:
        return weights - pmean(jax.grad(loss)(weights, x), world)

    alone = weights
    for _ in range(3):
        weights = step(weights, whole[world.rank])
        alone = alone - jax.grad(loss)(alone, whole.reshape(-1, 3))
    np.testing.assert_allclose(weights, alone, rtol=1e-5)


def test_training(pool: Pool) -> None:
    pool.run(trained)


def random_call(rng: Any) -> tuple[str, dict[str, Any], tuple[int, ...], str]:
    """A call, its arguments, and the shape and dtype of x, for four ranks."""
    shape = [int(n) for n in rng.integers(1, 4, rng.integers(1, 4))]
    axis, other = (int(n) for n in rng.integers(0, len(shape), 2))
    tiled = bool(rng.integers(2))
    dtype = str(rng.choice(["float32", "int32", "bfloat16", "complex64", "uint8", "float16"]))
    name = str(rng.choice(["psum", "pmax", "all_gather", "psum_scatter", "ppermute", "all_to_all"]))
    how: dict[str, Any] = {}
    if name == "pmax" and dtype == "complex64":
        name = "psum"
    if name == "all_gather":
        how = dict(axis=axis, tiled=tiled)
    elif name == "ppermute":
        how = dict(perm=list(enumerate(int(n) for n in rng.permutation(4))))
    elif name in ("psum_scatter", "all_to_all"):
        shape[axis] = 4 * shape[axis] if tiled else 4
        sides = dict(scatter_dimension=axis) if name == "psum_scatter" else dict(split_axis=axis, concat_axis=other)
        how = dict(tiled=tiled, **sides)
    return name, how, tuple(shape), dtype


def drawn(world: a2a.Communicator, seeds: range) -> None:
    import jax
    import jax.numpy as jnp

    from a2a import jax as a2ajax

    for seed in seeds:
        name, how, shape, dtype = random_call(np.random.default_rng(seed))
        whole = jnp.asarray(np.random.default_rng(seed).integers(0, 9, (4, *shape))).astype(dtype)
        theirs = jax.vmap(lambda x: getattr(jax.lax, name)(x, "ranks", **how), axis_name="ranks")  # noqa: B023
        wanted = theirs(whole)[world.rank]
        ours = lambda x: getattr(a2ajax, name)(x, world, **how)  # noqa: B023, E731
        for call in (ours, jax.jit(ours)):
            got = call(whole[world.rank])
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), (seed, name, how, shape, dtype)
            assert (got == wanted).all(), (seed, name, how, shape, dtype)


@pytest.mark.parametrize("first", [0, *with_full(range(8, 80, 8))])
def test_drawn_at_random(pool: Pool, first: int) -> None:
    pool.run(drawn, range(first, first + 8))


def derived(world: a2a.Communicator, seeds: range) -> None:
    """Derivatives of first and second order, forwards and backwards, with and without jax.checkpoint, in loops."""
    import jax
    import jax.numpy as jnp

    from a2a import jax as a2ajax

    for seed in seeds:
        name, how, shape, dtype = random_call(np.random.default_rng(seed))
        name = "psum" if name == "pmax" else name
        dtype = dtype if dtype == "complex64" else "float32"
        rng = np.random.default_rng(seed)
        whole, tangents = (jnp.asarray(rng.integers(-3, 4, (2, 4, *shape))) / 4).astype(dtype)

        def ours(x: Any, name: str = name, how: Any = how) -> Any:
            return getattr(a2ajax, name)(x * x, world, **how)

        def theirs(x: Any, name: str = name, how: Any = how) -> Any:
            return getattr(jax.lax, name)(x * x, "ranks", **how)

        def loss(x: Any, ours: Any = ours) -> Any:
            return (abs(ours(x)) ** 2).sum()

        def repeated(x: Any, loss: Any = loss) -> Any:
            return jax.lax.scan(lambda total, _: (total + jax.checkpoint(loss)(x), None), 0.0, None, length=2)[0] / 2

        def total(whole: Any, theirs: Any = theirs) -> Any:
            return (abs(jax.vmap(theirs, axis_name="ranks")(whole)) ** 2).sum()

        x, tangent = whole[world.rank], tangents[world.rank]
        slope = jax.grad(total)(whole)[world.rank]
        bend = jax.jvp(jax.grad(total), (whole,), (tangents,))[1][world.rank]
        back = jax.grad(lambda w, total=total: (abs(jax.grad(total)(w)) ** 2).sum())(whole)[world.rank]
        gradient = jax.grad(loss)
        for got, wanted in (
            (jax.jit(gradient)(x), slope),
            (jax.jit(jax.vmap(jax.grad(repeated)))(jnp.stack([x, x]))[1], slope),
            (jax.jit(lambda x, t, g=gradient: jax.jvp(g, (x,), (t,))[1])(x, tangent), bend),
            (jax.jit(jax.grad(lambda x, g=gradient: (abs(g(x)) ** 2).sum()))(x), back),
        ):
            case = str((seed, name, how, shape, dtype))
            np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-4, err_msg=case)


@pytest.mark.parametrize("first", [100, *with_full(range(102, 130, 2))])
def test_derivatives_drawn_at_random(pool: Pool, first: int) -> None:
    pool.run(derived, range(first, first + 2))


def mapped(world: a2a.Communicator) -> None:
    """Derivatives of derivatives, vmap of them, jit within jit, and custom derivatives."""
    import jax
    from a2a.jax import all_gather, psum

    whole = inputs((3,))
    x = whole[world.rank]

    @jax.custom_vjp
    def doubled(x: Any) -> Any:
        return 2 * psum(x, world)

    doubled.defvjp(lambda x: (doubled(x), None), lambda _, cotangent: (psum(cotangent, world) * 3,))
    assert (jax.jit(jax.grad(lambda x: doubled(x).sum()))(x) == 12).all()

    inner = jax.jit(lambda x: psum(x**3, world))
    loss = lambda x: (inner(x) * all_gather(x, world)).sum()  # noqa: E731
    everyone = lambda whole: ((whole**3).sum(0) * whole[None]).sum()  # noqa: E731
    curvature = jax.jit(jax.jacfwd(jax.grad(loss)))(x)
    # One rank's tangent in each direction is every rank's: the sum over the ranks whose x moves.
    moved = jax.hessian(lambda whole: 4 * everyone(whole))(whole)[world.rank].sum(1)
    np.testing.assert_allclose(curvature, moved, rtol=1e-4, atol=1e-4)
    batch = jax.jit(jax.vmap(jax.grad(loss)))(np.stack([x, 2 * x]))
    np.testing.assert_allclose(batch[1], jax.grad(lambda w: 4 * everyone(w))(2 * whole)[world.rank], rtol=1e-4)


def test_nested_transforms(pool: Pool) -> None:
    pool.run(mapped)
