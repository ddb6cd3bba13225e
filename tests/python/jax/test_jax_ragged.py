"""a2a.jax.ragged_all_to_all between ranks, and with install() that of jax.lax on the devices of one process."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import environment, needs
from rank_pool import Pool

import a2a

needs("jax")

pytestmark = pytest.mark.timeout(110)


class Case:
    """Sizes by [from, to, slice], with offsets packed on both sides, rows of all ranks, and what is right."""

    def __init__(self, ranks: int, slices: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.sizes = rng.integers(0, 4, (ranks, ranks, slices))
        self.begins, self.places = np.zeros_like(self.sizes), np.zeros_like(self.sizes)
        for rank in range(ranks):
            self.begins[rank].flat = np.concatenate([[0], np.cumsum(self.sizes[rank])[:-1]])
            ends = np.cumsum(self.sizes[:, rank])
            self.places[:, rank] = np.concatenate([[0], ends[:-1]]).reshape(ranks, slices)
        rows = int(max(self.sizes.sum((1, 2)).max(), self.sizes.sum((0, 2)).max())) + 2
        self.operand = rng.normal(size=(ranks, rows, 3)).astype(np.float32)
        self.output = np.full((ranks, rows, 3), -1, np.float32)
        self.result, self.sent = self.output.copy(), np.zeros((ranks, rows, 1), bool)
        for at in np.ndindex(*self.sizes.shape):
            begin, place, size = self.begins[at], self.places[at], self.sizes[at]
            self.result[at[1], place : place + size] = self.operand[at[0], begin : begin + size]
            self.sent[at[0], begin : begin + size] = True

    def indices(self, rank: int) -> list[Any]:
        arrays = self.begins[rank], self.sizes[rank], self.places[rank], self.sizes[:, rank]
        return [each.reshape(-1).astype(np.int32) for each in arrays]


def compared(world: a2a.Communicator, slices: int) -> None:
    import jax
    import jax.numpy as jnp
    from a2a.jax import ragged_all_to_all

    case = Case(4, slices)
    rank = world.rank
    operand, output, indices = case.operand[rank], case.output[rank], case.indices(rank)

    def call(operand: Any, output: Any, *indices: Any) -> Any:
        return ragged_all_to_all(operand, output, *indices, axis_name=world)

    for run in (call, jax.jit(call)):
        assert (run(operand, output, *indices) == case.result[rank]).all()
    loss = lambda *given: (call(*given) ** 2).sum()  # noqa: E731
    for gradient in (jax.grad(loss, (0, 1)), jax.jit(jax.grad(loss, (0, 1)))):
        of_operand, of_output = gradient(operand, output, *indices)
        np.testing.assert_allclose(of_operand, np.where(case.sent[rank], 2 * operand, 0))
        np.testing.assert_allclose(of_output, np.where(case.result[rank] == -1, -2, 0))
    other = Case(4, slices, 1)
    other_indices = other.indices(rank)
    batch = [jnp.stack([jnp.asarray(a), jnp.asarray(b)]) for a, b in zip(indices, other_indices, strict=True)]
    both = jax.jit(jax.vmap(call, (None, None, 0, 0, 0, 0)))(np.ones((40, 2), np.float32), np.zeros((40, 2)), *batch)
    assert (both[0].sum(), both[1].sum()) == (2 * case.sizes[:, rank].sum(), 2 * other.sizes[:, rank].sum())


@pytest.mark.parametrize("slices", [1, 2])
def test_values_and_gradients(pool: Pool, slices: int) -> None:
    pool.run(compared, slices)


def grouped(world: a2a.Communicator) -> None:
    import jax
    from a2a.jax import ragged_all_to_all

    case = Case(2, 1)
    groups = [[2, 0], [1, 3]]
    place = next(group.index(world.rank) for group in groups if world.rank in group)
    call = jax.jit(lambda *given: ragged_all_to_all(*given, axis_name=world, axis_index_groups=groups))
    assert (call(case.operand[place], case.output[place], *case.indices(place)) == case.result[place]).all()


def test_groups(pool: Pool) -> None:
    pool.run(grouped)


def refused(world: a2a.Communicator) -> list[str]:
    import jax
    from a2a.jax import ragged_all_to_all

    comm = world.group(range(4))
    case = Case(4, 1)
    rank = world.rank
    indices = case.indices(rank)
    texts = []
    short = case.output[rank, :, :2] if rank == 1 else case.output[rank]
    with pytest.raises(a2a.Error) as caught:
        ragged_all_to_all(case.operand[rank], short, *indices, axis_name=world)
    texts.append(str(caught.value))
    if rank == 1:
        indices[0] = indices[0] + 100
    with pytest.raises(jax.errors.JaxRuntimeError) as failed:
        call = jax.jit(lambda *given: ragged_all_to_all(*given, axis_name=comm))
        call(case.operand[rank], case.output[rank], *indices).block_until_ready()
    texts.append(str(failed.value))
    world.barrier()
    return texts


def test_refusals(pool: Pool) -> None:
    """Of what is known when a program is traced, and of values that only the program has."""
    for shapes, values in pool.run(refused):
        assert "rank 1" in shapes and "pass arrays of one dtype that differ" in shapes
        assert "rank 1" in values and "leaves a buffer" in values


def shard_mapped() -> None:
    """In a process with four devices."""
    import jax
    import jax.numpy as jnp
    from a2a.jax import install
    from jax.sharding import Mesh, PartitionSpec

    install()
    install()
    mesh = Mesh(np.array(jax.devices()[:4]), ("ranks",))
    spec = PartitionSpec("ranks")
    shard_map: Any = getattr(jax, "shard_map", None)
    if shard_map is None:  # before JAX 0.7
        shard_map = partial(importlib.import_module("jax.experimental.shard_map").shard_map, check_rep=False)

    def flat(arrays: Any) -> Any:
        return jnp.concatenate([jnp.asarray(each) for each in arrays])

    def call(groups: Any, *given: Any) -> Any:
        def one(*own: Any) -> Any:
            return jax.lax.ragged_all_to_all(*own, axis_name="ranks", axis_index_groups=groups)

        return shard_map(one, mesh=mesh, in_specs=(spec,) * 6, out_specs=spec)(*given)

    for slices in (1, 2):
        case = Case(4, slices)
        indices = [flat(each) for each in zip(*[case.indices(rank) for rank in range(4)], strict=True)]
        given = (flat(case.operand), flat(case.output), *indices)
        got = jax.jit(lambda *given: call(None, *given))(*given)
        assert (np.asarray(got) == np.concatenate(case.result)).all()
        if slices == 1:  # the transpose of jax.lax is right for one slice for each device
            slope = jax.jit(jax.grad(lambda *given: (call(None, *given) ** 2).sum()))(*given)
            np.testing.assert_allclose(slope, np.where(np.concatenate(case.sent), 2 * given[0], 0))
    print("as wanted")


def test_jax_lax_on_the_devices_of_one_process() -> None:
    support = Path(__file__).parents[1] / "support"
    code = f"import sys; sys.path[:0] = {[str(Path(__file__).parent), str(support)]}; import test_jax_ragged as t; "
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-c", code + "t.shard_mapped()"],
        env=environment(XLA_FLAGS=flags, JAX_PLATFORMS="cpu"),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "as wanted" in done.stdout
