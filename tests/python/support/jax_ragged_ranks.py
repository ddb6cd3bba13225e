"""A program for the CPU that calls jax.lax.ragged_all_to_all in shard_map, as one for TPUs would: alone with four
devices, or as ranks of jax.distributed that have four together. It tries what JAX's own tests try on devices."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from a2a.jax import install
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# What two devices exchange. Device 0 keeps a row and sends two, device 1 sends one and keeps one.
ROWS = np.array([[5, 6, 7], [8, 9, 0]])
INDICES = [np.array(each, np.int32) for each in ([[0, 1]] * 2, [[1, 2], [1, 1]], [[0, 0], [1, 2]], [[1, 1], [2, 1]])]
RESULT = np.array([[5, 8, 0, 0], [6, 7, 9, 0]])


def placed(mesh: Mesh, spec: PartitionSpec, value: Any) -> Any:
    return jax.device_put(np.asarray(value), NamedSharding(mesh, spec))


def mapped(function: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """jax.shard_map, of any version."""
    if hasattr(jax, "shard_map"):
        shard_map, how = jax.shard_map, {"check_vma": False}
    else:
        shard_map = importlib.import_module("jax.experimental.shard_map").shard_map
        how = {"check_rep": False}
    made: Callable[..., Any] = shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **how)
    return made


def exchange(mesh: Mesh, axis: str, groups: Any = None, squeeze: bool = True) -> Callable[..., Any]:
    """ragged_all_to_all in shard_map: the first axis of the arguments is that of the devices."""
    spec = PartitionSpec(axis)

    def one(operand: Any, output: Any, *indices: Any) -> Any:
        rows = (operand[0], output[0]) if squeeze else (operand, output)
        y = jax.lax.ragged_all_to_all(*rows, *[each[0] for each in indices], axis_name=axis, axis_index_groups=groups)
        return y[None] if squeeze else y

    return mapped(one, mesh, (spec,) * 6, spec)


def require(got: Any, wanted: Any) -> None:
    """Each process looks at the parts that it has."""
    assert got.shape == np.shape(wanted), (got.shape, np.shape(wanted))
    for shard in got.addressable_shards:
        np.testing.assert_allclose(np.asarray(shard.data), np.asarray(wanted)[shard.index])


def arguments(mesh: Mesh, axis: str, rows: Any = ROWS, copies: int = 1, dtype: str = "int32") -> list[Any]:
    """Of a pair of devices, or of several pairs, whose rows differ."""
    operand = np.concatenate([rows * 10**i for i in range(copies)]).astype(dtype)
    indices = [np.concatenate([each] * copies) for each in INDICES]
    output = np.zeros((len(operand), 4), dtype)
    return [placed(mesh, PartitionSpec(axis), each) for each in (operand, output, *indices)]


def two_of_a_larger_mesh(mesh: Mesh) -> None:
    for axis in mesh.axis_names:
        require(jax.jit(exchange(mesh, axis))(*arguments(mesh, axis)), RESULT)


def derivatives(mesh: Mesh) -> None:
    call, given = exchange(mesh, "x"), arguments(mesh, "x", dtype="float32")
    weights = np.arange(8, dtype=np.float32).reshape(2, 4) + 1
    loss = lambda *given: (call(*given) * weights).sum()  # noqa: E731
    of_operand, of_output = jax.jit(jax.grad(loss, (0, 1)))(*given)
    require(of_operand, [[1, 5, 6], [2, 7, 0]])
    require(of_output, [[0, 0, 3, 4], [0, 0, 0, 8]])
    tangent = jax.jit(lambda x, *others: jax.jvp(lambda x: call(x, *others), (x,), (2 * x,))[1])
    require(tangent(*given), 2 * RESULT)


def groups(flat: Mesh) -> None:
    given = arguments(flat, "all", copies=2)
    require(jax.jit(exchange(flat, "all", ((0, 1), (2, 3))))(*given), np.concatenate([RESULT, RESULT * 10]))
    alone = tuple((device,) for device in range(4))
    indices = [placed(flat, PartitionSpec("all"), np.full((4, 1), n, np.int32)) for n in (0, 2, 1, 2)]
    y = jax.jit(exchange(flat, "all", alone))(*given[:2], *indices)
    require(y, [[0, 5, 6, 0], [0, 8, 9, 0], [0, 50, 60, 0], [0, 80, 90, 0]])


def batches(mesh: Mesh) -> None:
    """Batched along either axis, the other one being that of the devices, and along no axis of a mesh."""
    call, arrays = exchange(mesh, "x"), (ROWS, np.zeros((2, 4), int), *INDICES)
    for axis, spec in enumerate([PartitionSpec(None, "x"), PartitionSpec("x")]):
        both = [np.stack([each, each * (2 if i == 0 else 1)], axis) for i, each in enumerate(arrays)]
        whole = [placed(mesh, spec, each) for each in both]
        got = jax.jit(jax.vmap(call, in_axes=axis, out_axes=0))(*whole)
        require(got, np.stack([RESULT, 2 * RESULT]))
    try:
        jax.jit(jax.vmap(exchange(mesh, "x", [[0, 1]]), axis_name="b")).lower(*whole)
    except NotImplementedError:  # by JAX itself
        pass
    else:
        raise AssertionError("JAX has learnt it; compare the values")


def experts_in_pipelines(mesh: Mesh) -> None:
    """Rows of features over one axis of the mesh, a batch over the other one."""
    x = np.repeat(np.arange(8.0, dtype=np.float32)[:, None], 3, 1)
    indices = [np.array(each, np.int32) for each in ([[0, 2]] * 2, [[2, 2]] * 2, [[0, 0], [2, 2]], [[2, 2]] * 2)]
    wanted = x[[0, 1, 4, 5, 2, 3, 6, 7]]
    call = exchange(mesh, "x", squeeze=False)
    require(jax.jit(call)(*[placed(mesh, PartitionSpec("x"), each) for each in (x, x, *indices)]), wanted)
    if jax.__version_info__ < (0, 10):  # JAX's own rule for vmap is wrong for rows of several entries, as in 0.6
        return
    spec = PartitionSpec("y", "x")
    whole = [placed(mesh, spec, np.stack([each, each])) for each in (x, x, *indices)]
    require(jax.jit(jax.vmap(call))(*whole), np.stack([wanted, wanted]))


def refusals() -> None:
    """Those of JAX itself, which the rule leaves as they are."""
    x, good = jnp.arange(6.0), jnp.array([0, 1, 3])
    call = jax.jit(jax.lax.ragged_all_to_all, static_argnames="axis_name")
    for i in range(4):
        for bad, words in (
            (good.astype("float32"), "must be integer"),
            (good[None], "must be rank 1"),
            (good[:0], "must be rank 1"),
        ):
            indices = [bad if j == i else good for j in range(4)]
            try:
                call.lower(x, x, *indices, axis_name="x")
            except ValueError as error:
                assert words in str(error), error
            else:
                raise AssertionError((i, words))


def main() -> None:
    if "A2A_RANK" in os.environ:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize()
    install()
    devices = np.array(jax.devices())
    assert len(devices) == 4
    mesh, flat = Mesh(devices.reshape(2, 2), ("x", "y")), Mesh(devices, ("all",))
    two_of_a_larger_mesh(mesh)
    derivatives(mesh)
    groups(flat)
    batches(mesh)
    experts_in_pipelines(mesh)
    refusals()
    print("as wanted")


if __name__ == "__main__":
    main()
