"""a2a.jax.all_to_all against jax.lax's own, which runs here on a mesh of as many devices of one process as there are
ranks, by vmap with a named axis."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import interrupts
import numpy as np
import pytest
import sample
from commands import command, environment, needs
from rank_pool import Pool
from sample import with_full

import a2a

needs("jax")

pytestmark = pytest.mark.timeout(110)


def own(world: a2a.Communicator, n: int, groups: dict[int, Any] = {}) -> a2a.Communicator | None:  # noqa: B006
    """The communicator of the first n ranks, made once."""
    if n not in groups:
        groups[n] = world.group(range(n))
    found: a2a.Communicator | None = groups[n]
    return found


def inputs(n: int, shape: tuple[int, ...], dtype: str) -> Any:
    import jax.numpy as jnp

    rng = np.random.default_rng(len(shape) * 100 + n)
    return jnp.asarray(rng.integers(-99, 99, (n, *shape)), dtype)


def theirs(whole: Any, split: int, concat: int, **options: Any) -> Any:
    import jax

    return jax.vmap(lambda x: jax.lax.all_to_all(x, "ranks", split, concat, **options), axis_name="ranks")(whole)


def compared(world: a2a.Communicator, n: int, tiled: bool, dtype: str, most_dims: int) -> int:
    import jax
    from a2a.jax import all_to_all

    jax.config.update("jax_platforms", "cpu")
    comm = own(world, n)
    count = 0
    if comm is None:
        return count
    for dims in range(1, most_dims + 1):
        for split in range(dims):
            for concat in range(-dims, dims):
                shape = [2, 3, 4][:dims]
                shape[split] = 2 * n if tiled else n
                whole = inputs(n, tuple(shape), dtype)
                wanted = theirs(whole, split, concat % dims, tiled=tiled)[comm.rank]
                got = all_to_all(whole[comm.rank], comm, split - dims, concat, tiled=tiled)
                assert got.shape == wanted.shape and got.dtype == wanted.dtype, (shape, split, concat)
                assert (got == wanted).all(), (shape, split, concat)
                assert isinstance(got, jax.Array)
                count += 1
    return count


# JAX compiles for each shape, which takes long.
@pytest.mark.parametrize("n", [2, *with_full([1, 3, 4])])
@pytest.mark.parametrize("tiled", [True, *with_full([False])])
@pytest.mark.parametrize("dtype", ["float32", *with_full(["bfloat16", "bool"])])
def test_as_lax(pool: Pool, n: int, tiled: bool, dtype: str) -> None:
    most_dims, cases = (3, 28) if sample.full else (2, 10)
    assert pool.run(compared, n, tiled, dtype, most_dims)[0] == cases


def grouped(world: a2a.Communicator) -> None:
    from a2a.jax import all_to_all

    groups = [[2, 0], [1, 3]]
    whole = inputs(4, (4, 2, 3), "float32")
    for split, concat in ((0, 1), (1, 0), (0, 0), (0, 2)):
        for tiled in (True, False) if split == 1 else (True,):
            got = all_to_all(whole[world.rank], world, split, concat, axis_index_groups=groups, tiled=tiled)
            members = next(group for group in groups if world.rank in group)
            wanted = theirs(whole[np.array(members)], split, concat, tiled=tiled)[members.index(world.rank)]
            assert got.shape == wanted.shape and (got == wanted).all()


def test_groups(pool: Pool) -> None:
    pool.run(grouped)


def of_a_tree(world: a2a.Communicator) -> None:
    import jax.numpy as jnp
    from a2a.jax import all_to_all

    tree = {"a": jnp.arange(8).reshape(4, 2), "b": [np.arange(4.0)]}
    got = all_to_all(tree, world, 0, 0)
    assert got["a"].tolist() == [[2 * world.rank, 2 * world.rank + 1]] * 4
    assert got["b"][0].tolist() == [float(world.rank)] * 4
    strided = all_to_all(np.arange(24.0, dtype=np.float32).reshape(3, 8)[::-1, ::2].T, world, 0, 1, tiled=True)
    assert strided.shape == (1, 12)


def test_trees_and_arrays_of_numpy(pool: Pool) -> None:
    pool.run(of_a_tree)


def derivatives(world: a2a.Communicator, tiled: bool) -> None:
    import jax
    from a2a.jax import all_to_all

    def loss(call: Any) -> Callable[[Any], Any]:
        def of(x: Any) -> Any:
            y = call(x * x)
            return (y * y * y).sum()

        return of

    shape = (8, 3) if tiled else (4, 3)
    whole = inputs(4, shape, "float32") / 99

    def everyone(x: Any) -> Any:
        return loss(lambda y: theirs(y, 0, 1, tiled=tiled))(x)

    ours = loss(lambda x: all_to_all(x, world, 0, 1, tiled=tiled))
    x = whole[world.rank]
    np.testing.assert_allclose(jax.grad(ours)(x), jax.grad(everyone)(whole)[world.rank], rtol=1e-5)
    value, tangent = jax.jvp(lambda x: all_to_all(x, world, 0, 1, tiled=tiled), (x,), (2 * x,))
    np.testing.assert_allclose(tangent, 2 * value, rtol=1e-6)

    def steep(call: Any) -> Callable[[Any], Any]:
        return lambda x: (jax.grad(loss(call))(x) ** 2).sum()

    ours = steep(lambda x: all_to_all(x, world, 0, 1, tiled=tiled))
    wanted = jax.grad(steep(lambda y: theirs(y, 0, 1, tiled=tiled)))(whole)[world.rank]
    np.testing.assert_allclose(jax.grad(ours)(x), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tiled", [True, *with_full([False])])
def test_derivatives(pool: Pool, tiled: bool) -> None:
    pool.run(derivatives, tiled)


def transformed(world: a2a.Communicator, what: str) -> None:
    """Against permutations of the world's tensor in one process, with the same entry of a basis on every rank."""
    import jax
    import jax.numpy as jnp
    from a2a.jax import all_to_all

    whole, tangents = inputs(4, (4, 2), "float32") / 99, inputs(4, (4, 2), "float32")[::-1] / 7
    x, t = whole[world.rank], tangents[world.rank]

    def ours(x: Any) -> Any:
        return all_to_all(x * x, world, 0, -1) ** 2

    def everyone(whole: Any) -> Any:
        return theirs(whole * whole, 0, 1) ** 2

    def both(call: Callable[[Any], Any], axis: int = 0) -> Any:
        return jnp.stack([call(one)[world.rank] for one in (whole, tangents)], axis)

    def columns() -> Any:
        return [jax.jvp(everyone, (whole,), (jnp.stack([one] * 4),))[1][world.rank] for one in basis]

    def rows() -> Any:
        back = jax.vjp(everyone, whole)[1]
        return [back(jnp.stack([one.reshape(2, 4)] * 4))[0][world.rank] for one in basis]

    basis = np.eye(8, dtype=np.float32).reshape(8, 4, 2)
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "vmap": (lambda: jax.vmap(ours, -1)(jnp.stack([x, t], -1)), lambda: both(everyone)),
        "linearize": (
            lambda: jax.linearize(ours, x)[1](t),
            lambda: jax.jvp(everyone, (whole,), (tangents,))[1][world.rank],
        ),
        "jacfwd": (lambda: jax.jacfwd(ours)(x), lambda: jnp.stack(columns(), -1).reshape(2, 4, 4, 2)),
        "jacrev": (lambda: jax.jacrev(ours)(x), lambda: jnp.stack(rows()).reshape(2, 4, 4, 2)),
        "vmap of grad": (
            lambda: jax.vmap(jax.grad(lambda x: ours(x).sum()))(jnp.stack([x, t])),
            lambda: both(jax.grad(lambda x: everyone(x).sum())),
        ),
    }
    got, wanted = pairs[what]
    np.testing.assert_allclose(got(), wanted(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("what", ["vmap", *with_full(["linearize", "jacfwd", "jacrev", "vmap of grad"])])
def test_transforms(pool: Pool, what: str) -> None:
    pool.run(transformed, what)


def contradicted(world: a2a.Communicator) -> str:
    """The same ranks in another order."""
    from a2a.jax import all_to_all

    x = np.ones((2, 3), np.float32)
    groups = [[0, 1], [2, 3]] if world.rank else [[1, 0], [2, 3]]
    with pytest.raises(a2a.MismatchError) as caught:
        all_to_all(x, world, 0, 0, axis_index_groups=groups)
    all_to_all(x, world, 0, 0, axis_index_groups=[[2, 3], [0, 1]])
    return str(caught.value)


def test_groups_that_differ(pool: Pool) -> None:
    for text in pool.run(contradicted):
        assert "axis_index_groups: rank" in text and "(1, 0)" in text


def without_memory(world: a2a.Communicator, name: str) -> str:
    import jax
    from a2a.jax import _collectives, _primitive, all_to_all

    def no_memory(*_: Any) -> Any:
        raise MemoryError("none left for this test")

    x = np.ones((4, 3), np.float32)
    module = _primitive if name == "new_array" else _collectives
    kept = getattr(module, name)
    try:
        if world.rank == 0 and name != "new_array":
            setattr(module, name, no_memory)
        _, back = jax.vjp(lambda x: all_to_all(x, world, 0, 1), x)
        if world.rank == 0:
            setattr(module, name, no_memory)
        back(np.ones((3, 4), np.float32))
    except (MemoryError, a2a.MismatchError) as error:
        return type(error).__name__
    finally:
        setattr(module, name, kept)
        all_to_all(x, world, 0, 1)
    return "nothing"


@pytest.mark.parametrize("name", ["new_array", "axis_of"])
def test_peers_hear_of_want_of_memory(pool: Pool, name: str) -> None:
    """Of the backward pass, and of the call itself."""
    assert pool.run(without_memory, name) == ["MemoryError", *["MismatchError"] * 3]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "axis": (dict(split_axis=2), "split_axis is 2, but x (4, 3) has 2 axes"),
    "no axis": (dict(concat_axis=None), "concat_axis is None; pass the number of an axis"),
    "entries": (dict(split_axis=1), "has 3 entries along split_axis 1, but there are 4 ranks"),
    "indivisible": (dict(split_axis=1, tiled=True), "has 3 entries along split_axis 1, which 4 ranks cannot share"),
    "groups": (dict(axis_index_groups=[[0, 1], [2]]), "axis_index_groups is [(0, 1), (2,)]; pass lists"),
}


def refused(world: a2a.Communicator, name: str) -> tuple[str, str]:
    from a2a.jax import all_to_all

    given: dict[str, Any] = dict(x=np.ones((4, 3), np.float32), axis_name=world, split_axis=0, concat_axis=1)
    with pytest.raises(a2a.Error) as caught:
        all_to_all(**(given | REFUSED[name][0] if world.rank == 0 else given))
    assert all_to_all(**given).shape == (3, 4)
    return type(caught.value).__name__, str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(pool: Pool, name: str) -> None:
    words = REFUSED[name][1]
    first, *others = pool.run(refused, name)
    assert first[0] == "InvalidArgumentError" and words in first[1]
    for kind, text in others:
        assert kind == "MismatchError" and words[:20] in text


def other_axis(world: a2a.Communicator) -> None:
    from a2a.jax import all_to_all

    with pytest.raises(a2a.InvalidArgumentError, match="axis_name is 'ranks'; pass an a2a"):
        all_to_all(np.ones(4), "ranks", 0, 0)
    world.barrier()


def test_what_it_does_not_take(pool: Pool) -> None:
    pool.run(other_axis)


def interrupted(world: a2a.Communicator) -> int:
    import jax.numpy as jnp
    from a2a.jax import _collectives

    tree = [jnp.ones((4, 2)), {"b": jnp.ones((8, 3))}]
    call = lambda: _collectives.each_leaf(world, tree, _collectives._all_to_all, None, 0, 0, True)  # noqa: E731
    call()
    return interrupts.at_every_step(world, call)


def test_a_tree_interrupted_at_every_step(pool: Pool) -> None:
    assert pool.run(interrupted)[1] > 10


def test_importing_a2a_imports_no_jax() -> None:
    code = "import a2a, sys; assert 'jax' not in sys.modules; import a2a.jax; assert 'jax' in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True, timeout=100)


@pytest.mark.smoke
def test_the_ranks_of_the_launcher(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import jax.numpy as jnp\n"
        "from a2a.jax import all_to_all\n"
        "print(all_to_all(jnp.arange(2), None, 0, 0).tolist())\n"
    )
    done = subprocess.run(
        command("run", "-n", "2", str(program)), env=environment(), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "[0, 0]" in done.stdout and "[1, 1]" in done.stdout
