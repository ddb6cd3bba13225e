"""What ranks do with DTensors of random meshes and placements, in a world whose default group is a2a's."""

from __future__ import annotations

import functools
import itertools
from datetime import timedelta
from typing import Any

import numpy as np
from torch_worlds import meeting_point

import a2a

SECONDS = 30


@functools.cache
def start(comm: a2a.Communicator) -> None:
    """Collective over the pool, once."""
    import a2a.torch
    import torch

    torch.set_num_threads(1)
    a2a.torch.init_process_group(
        "a2a", store=meeting_point(comm), rank=comm.rank, world_size=comm.size, timeout=timedelta(seconds=SECONDS)
    )
    for axes in MESHES:
        mesh_of(axes)


@functools.cache
def mesh_of(axes: str) -> Any:
    """A mesh of these ranks, such as "01/23". Collective over the default group."""
    from torch.distributed.device_mesh import DeviceMesh

    rows = [[int(rank) for rank in row] for row in axes.split("/")]
    return DeviceMesh("cpu", rows if len(rows) > 1 else rows[0])


MESHES = ("0123", "01/23", "02/13", "3210", "01", "23", "012", "2", "31/20", "0/2/3", "1")


def placements_of(axes: int, dims: int, chance: np.random.Generator, partial: str = "") -> tuple[Any, ...]:
    from torch.distributed.tensor import Partial, Replicate, Shard

    kinds: list[Any] = [Replicate(), *[Shard(dim) for dim in range(dims)], *([Partial(partial)] if partial else [])]
    return tuple(kinds[int(chance.integers(len(kinds)))] for _ in range(axes))


def values(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    import torch

    chance = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2 if dtype is torch.bool else 50, shape, generator=chance).to(dtype)


def dtensor_of(full: Any, mesh: Any, placements: tuple[Any, ...]) -> Any:
    """The tensor as torch distributes it; along partial axes each rank has another term."""
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    given = [Replicate() if one.is_partial() else one for one in placements]
    x = distribute_tensor(full, mesh, given, src_data_rank=None)
    if not any(one.is_partial() for one in placements):
        return x
    places = mesh.get_coordinate() or ()
    term = x.to_local() + sum(3**at for at, one in zip(places, placements, strict=False) if one.is_partial())
    if not full.dim():
        term = term if mesh.get_coordinate() is not None else full
        return DTensor.from_local(term, mesh, placements, run_check=False)
    return DTensor.from_local(term, mesh, placements, run_check=False, shape=full.shape, stride=full.stride())


def check(y: Any, mesh: Any, placements: tuple[Any, ...], full: Any) -> None:
    """Compare with the parts that torch cuts, and with what torch gathers."""
    import torch
    from torch.distributed.tensor import distribute_tensor

    assert y.device_mesh == mesh and y.placements == placements and y.shape == full.shape and y.dtype == full.dtype
    if mesh.get_coordinate() is None:
        assert y.to_local().numel() == 0
        return
    due = distribute_tensor(full, mesh, placements, src_data_rank=None).to_local()
    assert torch.equal(y.to_local(), due), (y.to_local(), due)
    if ascending(mesh):
        assert torch.equal(y.full_tensor(), full)


def ascending(mesh: Any) -> bool:
    """Whether the ranks of each axis ascend. Otherwise torch gathers parts in another order than it cuts them."""
    return all(bool((mesh.mesh.diff(dim=axis) > 0).all()) for axis in range(mesh.ndim))


def at_random(comm: a2a.Communicator, seed: int, times: int) -> None:
    """Random layouts of one tensor, from and to meshes that are the same, overlap or have no rank in common."""
    import a2a.torch
    import torch

    start(comm)
    chance = np.random.default_rng(seed)
    dtypes = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
    for turn in range(times):
        dims = int(chance.integers(0, 4))
        shape = tuple(int(n) for n in chance.integers(0, 11, dims))
        dtype = dtypes[turn % len(dtypes)]
        src, dst = (mesh_of(MESHES[int(at)]) for at in chance.integers(0, len(MESHES), 2))
        partial = ("", "sum", "max", "avg")[turn % 4] if dtype is torch.float32 and ascending(src) else ""
        before, after = placements_of(src.ndim, dims, chance, partial), placements_of(dst.ndim, dims, chance)
        full = values(shape, dtype, turn)
        x = dtensor_of(full, src, before)
        if partial:
            full = whole(x, full)
        redistributed = turn % 3 == 0 and src != dst
        y = x.redistribute(dst, after) if redistributed else a2a.torch.reshard(x, dst, after)
        try:
            check(y, dst, after, full)
        except AssertionError as error:
            raise AssertionError(f"{shape} {dtype} from {src} {before} to {dst} {after}: {error}") from error


def whole(x: Any, full: Any) -> Any:
    """What torch gathers of a partial tensor, on all ranks."""
    import torch.distributed as dist

    member = x.device_mesh.get_coordinate() is not None
    known = x.full_tensor().contiguous() if member else full.clone()
    dist.broadcast(known, int(x.device_mesh.mesh.flatten()[0]))
    return known


def gradients(comm: a2a.Communicator) -> None:
    """Of losses whose gradients are sharded, replicated and local, between every two meshes, and twice."""
    import a2a.torch
    import torch
    from torch.distributed.tensor import Partial, Replicate, Shard

    start(comm)
    full = values((6, 5), torch.float64, 1) / 7
    layouts: list[tuple[str, tuple[Any, ...]]] = [
        ("0123", (Shard(0),)), ("01/23", (Shard(1), Replicate())), ("23", (Shard(1),)), ("012", (Shard(0),)),
    ]  # fmt: skip
    for (src, before), (dst, after) in itertools.product([*layouts, ("01", (Partial(),))], layouts):
        x = dtensor_of(full, mesh_of(src), before).detach().requires_grad_()
        value = full * 2 + 4 if before == (Partial(),) else full
        y = a2a.torch.reshard(x, mesh_of(dst), after)
        losses = (
            (lambda y: (y * y).sum(), 2 * value),
            (lambda y: y.sum(), torch.ones_like(full)),
            (lambda y: (y * y).redistribute(y.device_mesh, [Replicate()] * y.device_mesh.ndim).sum(), 2 * value),
        )
        for loss, due in losses:
            x.grad = None
            loss(y).backward(retain_graph=True)
            assert x.grad.device_mesh == x.device_mesh
            if mesh_of(src).get_coordinate() is not None:
                torch.testing.assert_close(x.grad.full_tensor(), due)
    x = dtensor_of(full, mesh_of("0123"), (Shard(0),)).detach().requires_grad_()
    y = a2a.torch.reshard(x, mesh_of("01/23"), (Replicate(), Shard(1)))
    (grad,) = torch.autograd.grad((y * y * y).sum(), x, create_graph=True)
    (grad * grad).sum().backward()
    torch.testing.assert_close(x.grad.full_tensor(), 36 * full**3)


def strided(comm: a2a.Communicator) -> None:
    """FSDP of a tensor-parallel model divides a dimension by the last axis of the mesh first."""
    import a2a.torch
    import pytest
    import torch
    from torch.distributed.tensor import DTensor, Replicate, Shard, _dtensor_spec
    from torch.distributed.tensor.placement_types import _StridedShard

    start(comm)
    mesh = mesh_of("01/23")
    dp, tp = mesh.get_coordinate()
    full = values((8, 3), torch.float32, 2)
    placements = (_StridedShard(0, split_factor=2), Shard(0))
    part = full.chunk(2)[tp].chunk(2)[dp]
    x = DTensor.from_local(part, mesh, placements, run_check=False, shape=full.shape, stride=full.stride())
    assert torch.equal(x.full_tensor(), full)
    y = a2a.torch.reshard(x, mesh_of("0123"), [Replicate()])
    assert torch.equal(y.to_local(), full)
    z = a2a.torch.reshard(y, mesh, placements)
    assert torch.equal(z.to_local(), part) and z.placements == placements
    if hasattr(x._spec, "shard_order"):  # the same in other words
        meta, order = x._spec.tensor_meta, ((0, (1, 0)),)
        entries = tuple(_dtensor_spec.ShardOrderEntry(*entry) for entry in order)
        spec = _dtensor_spec.DTensorSpec(mesh, (Shard(0), Shard(0)), meta, entries, False)
        ordered = DTensor(part, spec, requires_grad=False)
        for whole in (
            a2a.torch.reshard(ordered, mesh_of("0123"), [Replicate()]),
            ordered.redistribute(mesh, [Replicate()] * 2),
        ):
            assert torch.equal(whole.to_local(), full)
    odd = DTensor.from_local(values((7, 3), torch.float32, 2), mesh_of("0123"), [Replicate()], run_check=False)
    with pytest.raises(a2a.UnsupportedError, match="do not divide the 7 entries of dimension 0 evenly"):
        a2a.torch.reshard(odd, mesh, placements)


def model(turn: int) -> dict[str, tuple[Any, str, Any, str, Any]]:
    """By name: values, a mesh and placements before, those after."""
    import torch
    from torch.distributed.tensor import Partial, Replicate, Shard

    tensors: dict[str, tuple[Any, str, Any, str, Any]] = {}
    kinds = ((Shard(0),), (Shard(1),), (Replicate(),))
    grids = ((Shard(1), Replicate()), (Replicate(), Shard(0)), (Shard(0), Shard(0)))
    for at, (before, after) in enumerate(itertools.product(kinds, grids)):
        shape = (7 + at, 5 + 3 * at)
        dtype = (torch.float32, torch.bfloat16, torch.int8)[at % 3]
        full = values(shape, dtype, turn)
        tensors[f"tp to grid {at}"] = full, "0123", before, "01/23", after
        tensors[f"apart {at}"] = full, "01", before, "23", kinds[at % 3]
        tensors[f"overlapping {at}"] = full, "012", before, "23", kinds[(at + 1) % 3]
    tensors["scalar"] = values((), torch.int64, turn + 5), "01", (Replicate(),), "23", (Replicate(),)
    if turn == 1:
        tensors["partial"] = values((9, 4), torch.float32, 3), "01", (Partial(),), "23", (Shard(0),)
    return tensors


def state_dicts(comm: a2a.Communicator) -> None:
    """Whole models, in other orders of names on each rank, with plain tensors and tied weights."""
    import a2a.torch
    import torch
    from torch.distributed.tensor import Replicate, Shard

    start(comm)
    for turn in range(3):
        tensors = model(turn)
        src, dst = {}, {}
        for name in list(tensors)[comm.rank :] + list(tensors)[: comm.rank]:
            full, before, first, after, second = tensors[name]
            src[name] = dtensor_of(full, mesh_of(before), first)
            dst[name] = dtensor_of(torch.zeros_like(full), mesh_of(after), second)
        src["step"], dst["step"] = torch.tensor(41 + turn), torch.zeros((), dtype=torch.int64)
        weight = values((6, 4), torch.float32, turn)
        for name in ("head", "embedding"):
            src[name] = dtensor_of(weight, mesh_of("0123"), (Shard(0),))
            dst[name] = dst.get("head", torch.nn.Parameter(dtensor_of(weight * 0, mesh_of("01/23"), [Shard(1)] * 2)))
        kept = {name: one.data_ptr() if name == "step" else one.to_local().data_ptr() for name, one in dst.items()}
        assert a2a.torch.reshard_state_dict(src, dst) is None
        for name, (full, _, _, after, second) in tensors.items():
            check(dst[name], mesh_of(after), second, full * 2 + 4 if name == "partial" else full)
        check(dst["head"].detach(), mesh_of("01/23"), (Shard(1), Shard(1)), weight)
        assert dst["step"].item() == 41 + turn
        assert kept == {
            name: one.data_ptr() if name == "step" else one.to_local().data_ptr() for name, one in dst.items()
        }
    a2a.torch.reshard_state_dict({}, {})
    y = dtensor_of(weight, mesh_of("01"), (Replicate(),))
    z = a2a.torch.reshard(y, mesh_of("01"), (Replicate(),))
    assert y.to_local().data_ptr() != z.to_local().data_ptr() or mesh_of("01").get_coordinate() is None


def of_a_group(comm: a2a.Communicator) -> None:
    """Meshes name ranks of the world; a group that has not all of them has numbers of its own."""
    import a2a.torch
    import pytest
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import Shard

    start(comm)
    group = dist.new_group([1, 2, 3], timeout=timedelta(seconds=SECONDS))
    src, dst = mesh_of("23"), mesh_of("012")
    full = values((7, 4), torch.int32, 8)
    x = dtensor_of(full, src, (Shard(0),))
    one = mesh_of("1")
    if comm.rank == 0:
        with pytest.raises(a2a.InvalidArgumentError, match="no member"):
            a2a.torch.reshard(x, one, (Shard(0),), group)
        return
    check(a2a.torch.reshard(x, one, (Shard(1),), group), one, (Shard(1),), full)
    with pytest.raises(a2a.InvalidArgumentError, match="mesh names rank 0, which is not in the group of ranks"):
        a2a.torch.reshard(x, dst, (Shard(0),), group)


def of_gloo(comm: a2a.Communicator) -> None:
    """The default group is Gloo's: the functions run on a2a, and torch's redistribute is as it was."""
    import a2a.torch
    import pytest
    import torch
    import torch_worlds
    from torch.distributed.tensor import Shard

    torch_worlds.start(comm)
    full = values((11, 4), torch.float32, 8)
    x = dtensor_of(full, mesh_of("01234"), (Shard(0),))
    check(a2a.torch.reshard(x, mesh_of("567"), (Shard(1),)), mesh_of("567"), (Shard(1),), full)
    if comm.rank < 5:
        with pytest.raises(NotImplementedError):
            x.redistribute(mesh_of("567"), (Shard(1),))


def checkpoint(comm: a2a.Communicator) -> None:
    """The chunks that a planner would save are boxes: of four ranks, for three."""
    import a2a.torch
    import torch
    from torch.distributed.checkpoint import DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
    from torch.distributed.tensor import Shard

    start(comm)
    full = values((10, 6), torch.float32, 4)
    x = dtensor_of(full, mesh_of("01/23"), (Shard(1), Shard(0)))
    planner = DefaultSavePlanner()
    planner.set_up_planner({"w": x}, is_coordinator=comm.rank == 0)
    (item,) = planner.create_local_plan().items
    mine = [*item.tensor_data.chunk.offsets, *item.tensor_data.chunk.sizes]
    rows = np.zeros((comm.size, 4), np.int64)
    comm.allgather(np.array(mine), rows)
    chunks = [ChunkStorageMetadata(torch.Size(row[:2]), torch.Size(row[2:])) for row in rows.tolist()]
    loaded = {rank: ChunkStorageMetadata((2 * rank, 0), (4, 6)) for rank in range(3)} | {3: None}  # they overlap
    boxes = a2a.torch.chunk_boxes(loaded)
    recv = None if comm.rank == 3 else torch.zeros(4, 6)
    comm.reshard(
        x.to_local(), recv, tuple(full.shape), a2a.torch.chunk_boxes(chunks), {**boxes, 0: (slice(0, 4), slice(None))}
    )
    assert recv is None or torch.equal(recv, full[2 * comm.rank : 2 * comm.rank + 4])


def refused(comm: a2a.Communicator) -> None:
    """InvalidArgumentError on rank 1, MismatchError that names it on the others; then all are in step."""
    import a2a.torch
    import pytest
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    start(comm)
    line, grid = mesh_of("0123"), mesh_of("01/23")
    x = dtensor_of(values((8, 4), torch.float32, 1), line, (Shard(0),))
    other = DTensor.from_local(torch.zeros(3, 4), line, [Shard(0)], run_check=False, shape=x.shape, stride=x.stride())
    foreign = DeviceMesh("cpu", [0, 5], _init_backend=False)
    sparse = torch.zeros(2, 2).to_sparse()
    reshard, move = a2a.torch.reshard, a2a.torch.reshard_state_dict

    def good() -> None:
        check(reshard(x, grid, [Shard(1), Shard(0)]), grid, (Shard(1), Shard(0)), x.full_tensor())

    def good_move() -> None:
        move({"w": x}, {"w": reshard_into})

    reshard_into = dtensor_of(torch.zeros(8, 4), grid, (Shard(1), Replicate()))
    twin = dtensor_of(torch.zeros(8, 4, dtype=torch.int32), grid, (Shard(1), Replicate()))
    small = dtensor_of(torch.zeros(8, 5), grid, (Shard(1), Replicate()))
    cases: list[tuple[Any, Any, str]] = [
        (lambda: reshard(torch.zeros(2), grid, [Shard(1), Shard(0)]), good, "dtensor is Tensor"),
        (lambda: reshard(x, [0, 1], [Shard(1)]), good, "mesh is list"),
        (lambda: reshard(x, grid, [Shard(1)]), good, "1 placements for the 2 axes of mesh"),
        (lambda: reshard(x, grid, Shard(1)), good, "pass a list of placements"),
        (lambda: reshard(x, grid, [Shard(1), "rows"]), good, "placements has 'rows'"),
        (lambda: reshard(x, grid, [Shard(2), Shard(0)]), good, "dimension 2 of a tensor of 2 dimensions"),
        (lambda: reshard(x, grid, [Partial(), Shard(0)]), good, "cannot be partial"),
        (lambda: reshard(other, grid, [Shard(1), Shard(0)]), good, "send is of shape (3, 4)"),
        (lambda: reshard(x, foreign, [Shard(0)]), good, "mesh names rank 5, which is not in the group of ranks"),
        (lambda: reshard(x), good, "missing"),
        (lambda: move({"w": x}, 3), good_move, "dst is int"),
        (lambda: move({"w": x}, {"v": reshard_into}), good_move, "dst has no tensor of the name 'w'"),
        (lambda: move({"w": x, "v": x}, {"w": reshard_into}), good_move, "dst has no tensor of the name 'v'"),
        (lambda: move({"w": x}, {"w": 3}), good_move, "dst['w'] is int, not torch.Tensor"),
        (lambda: move({3: x}, {3: x}), good_move, "src has the name 3"),
        (lambda: move({"w": x}, {"w": twin}), good_move, "the dtype torch.float32, but dst['w'] torch.int32"),
        (lambda: move({"w": x}, {"w": small}), good_move, "the shape (8, 4), but dst['w'] (8, 5)"),
        (lambda: move({"w": other}, {"w": reshard_into}), good_move, "send[0] is of shape (3, 4)"),
        (lambda: move({"w": sparse}, {"w": sparse}), good_move, "sparse"),
        (lambda: move({"w": x}, {"w": x}), good_move, "share memory"),
    ]
    for bad, fine, words in cases:
        if comm.rank == 1:
            with pytest.raises((a2a.InvalidArgumentError, TypeError)) as caught:
                bad()
            assert words in str(caught.value), caught.value
        else:
            with pytest.raises(a2a.MismatchError, match="rank 1"):
                fine()
        good()
        good_move()


def differ(comm: a2a.Communicator) -> None:
    """Ranks with other meshes, placements or names are told, all of them."""
    import a2a.torch
    import pytest
    import torch
    from torch.distributed.tensor import Replicate, Shard

    start(comm)
    odd = comm.rank == 2
    x = dtensor_of(values((8, 4), torch.float32, 1), mesh_of("0123"), (Shard(0),))
    for mesh, placements in (("3210", (Shard(1),)), ("0123", (Replicate(),))):
        with pytest.raises(a2a.MismatchError, match="rank 2"):
            a2a.torch.reshard(x, mesh_of(mesh if odd else "0123"), placements if odd else (Shard(1),))
    into = dtensor_of(torch.zeros(8, 4), mesh_of("0123"), (Shard(1),))
    with pytest.raises(a2a.MismatchError, match="ranks 0 and 2 have different names"):
        a2a.torch.reshard_state_dict({"v" if odd else "w": x}, {"v" if odd else "w": into})
    a2a.torch.reshard_state_dict({"w": x}, {"w": into})
    assert torch.equal(into.full_tensor(), x.full_tensor())


def several_axes(comm: a2a.Communicator) -> None:
    """A change of several axes of one mesh is one exchange; torch takes steps on every other backend."""
    import torch
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.debug import CommDebugMode

    start(comm)
    mesh = mesh_of("01/23")
    some = (Replicate(), Shard(0), Shard(1))
    layouts = list(itertools.product(some, some))
    full = values((7, 5), torch.float32, 1)
    for before, after in itertools.product(layouts, layouts):
        x = dtensor_of(full, mesh, before).detach().requires_grad_()
        with CommDebugMode() as mode:
            y = x.redistribute(mesh, after)
        if before != after and all(one != other for one, other in zip(before, after, strict=True)):
            assert mode.get_total_counts() == 0, (before, after, mode.get_comm_counts())
        check(y.detach(), mesh, after, full)
        (y * y).sum().backward()
        torch.testing.assert_close(x.grad.full_tensor(), 2 * full)


def compiled(comm: a2a.Communicator) -> None:
    """torch.compile traces redistribute() as before."""
    import torch
    from torch.distributed.tensor import Replicate, Shard

    start(comm)
    mesh = mesh_of("01/23")
    full = values((8, 4), torch.float32, 1)
    x = dtensor_of(full, mesh, (Shard(0), Shard(1)))
    call = torch.compile(lambda x: x.redistribute(mesh, [Replicate(), Shard(0)]) * 2, backend="eager", fullgraph=True)
    check(call(x), mesh, (Replicate(), Shard(0)), 2 * full)
