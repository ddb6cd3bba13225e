"""Reshardings against NumPy's slices, between processes and threads. The groups of cases have the names of those of
NCCL's M2N."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from reshard_ranks import (
    FOLDS,
    GRID,
    GROUPS,
    LINE,
    at_random,
    every_layout,
    folds,
    many,
    random_sharding,
    terms_at_random,
    whole,
)

import a2a
from a2a.sharding import Partial, Replicate, Shard, Sharding, matrix

pytestmark = pytest.mark.timeout(100)


@pytest.mark.parametrize("threads", [False, True], ids=["processes", "threads"])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_random_layouts(run_ranks: Callable[..., Any], ranks: int, threads: bool) -> None:
    run_ranks(ranks, at_random, ranks, 60, threads=threads)


@pytest.mark.parametrize("threads", [False, True], ids=["processes", "threads"])
@pytest.mark.parametrize("ranks", [3, 6])
def test_random_partial_sums(run_ranks: Callable[..., Any], ranks: int, threads: bool) -> None:
    run_ranks(ranks, terms_at_random, ranks, 40, threads=threads)


@pytest.mark.parametrize("group", GROUPS)
def test_group_of_m2n(run_ranks: Callable[..., Any], group: str) -> None:
    run_ranks(4, every_layout, group)


@pytest.mark.parametrize("threads", [False, True], ids=["processes", "threads"])
@pytest.mark.parametrize(("op", "dtype"), FOLDS)
def test_partial_sums(run_ranks: Callable[..., Any], op: str, dtype: str, threads: bool) -> None:
    run_ranks(4, folds, op, dtype, threads=threads)


@pytest.mark.parametrize("partial", [False, True], ids=["copied", "partial"])
def test_many_tensors_at_once(run_ranks: Callable[..., Any], partial: bool) -> None:
    run_ranks(4, many, partial)


def test_bytes_are_the_lower_bound() -> None:
    """What each rank lacks comes to it, and nothing else."""
    chance = np.random.default_rng(3)
    for _ in range(300):
        size = int(chance.integers(1, 17))
        shape = [int(n) for n in chance.integers(1, 300, chance.integers(1, 4))]
        src, dst = (random_sharding(size, len(shape), chance) for _ in range(2))
        sent = matrix([(shape, src, dst, "float32")], size)
        lacking = []
        for rank in range(size):
            before, after = src.box(rank, shape), dst.box(rank, shape)
            wanted = np.zeros(shape, bool)
            if after is not None:
                wanted[after] = True
            if before is not None:
                wanted[before] = False
            lacking.append(4 * int(wanted.sum()))
        np.fill_diagonal(sent, 0)
        assert sent.sum(0).tolist() == lacking, (shape, src, dst)


def test_hosts_get_each_byte_once() -> None:
    hosts = [0, 0, 0, 0, 1, 1, 1, 1]
    sent = matrix([((64, 1024), Sharding([0, 1], Shard(0)), Sharding(range(8), Replicate()), "float32")], 8, hosts)
    between = sent[:4, 4:]
    assert between.sum() == 64 * 1024 * 4
    assert between.sum(1).tolist()[:2] == [64 * 1024 * 2] * 2 and not sent[4:, :4].any()
    assert between.sum(0).max() <= 64 * 1024 + 4096 * 4, "all ranks of the host receive a part of it"


@pytest.mark.parametrize("kind", ["shard", "replicas", "replicate"])
def test_plan_of_a_model_takes_little_time(kind: str) -> None:
    """1000 tensors on 64 ranks, for one rank: half a second on a quiet machine."""
    square = np.arange(64).reshape(8, 8)
    src, dst = {
        "shard": (Sharding(range(64), Shard(0)), Sharding(range(64), Shard(1))),
        "replicas": (Sharding(square, [Replicate(), Shard(0)]), Sharding(square, [Shard(0), Shard(1)])),
        "replicate": (Sharding(range(64), Shard(0)), Sharding(range(64), Replicate())),
    }[kind]
    tensors = [((64 + i, 1000), src, dst, "float32") for i in range(100)]
    began = time.perf_counter()
    matrix(tensors, 64)
    assert (time.perf_counter() - began) * 1000 / 100 / 64 < 2.0


# ---- DTensor as the oracle ----


def test_parts_are_those_of_dtensor() -> None:
    pytest.importorskip("torch")
    from torch.distributed.tensor import Replicate as TorchReplicate
    from torch.distributed.tensor import Shard as TorchShard
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset as compute

    chance = np.random.default_rng(5)
    for _ in range(300):
        mesh = [int(n) for n in chance.integers(1, 5, chance.integers(1, 4))]
        shape = [int(n) for n in chance.integers(0, 13, chance.integers(1, 4))]
        dims = [None if chance.random() < 0.3 else int(chance.integers(len(shape))) for _ in mesh]
        ours = Sharding(np.arange(np.prod(mesh)).reshape(mesh), [Replicate() if d is None else Shard(d) for d in dims])
        theirs = [TorchReplicate() if d is None else TorchShard(d) for d in dims]
        for rank, place in enumerate(np.ndindex(*mesh)):
            box = ours.box(rank, shape)
            local, offset = compute(shape, mesh, lambda axis, at=place: at[axis], theirs)
            assert box is not None
            assert tuple(one.stop - one.start for one in box) == tuple(local)
            if 0 not in local:
                assert tuple(one.start for one in box) == tuple(offset)


# ---- tensors of frameworks, and in flight ----


def in_frameworks(comm: a2a.Communicator) -> None:
    import torch

    full = whole((40, 24))
    src, dst = Sharding([0, 1], Shard(0)), Sharding([2, 3], Shard(1))
    before, after = src.box(comm.rank, full.shape), dst.box(comm.rank, full.shape)
    send = None if before is None else torch.from_numpy(full[before].copy()).to(torch.bfloat16)
    recv = None if after is None else torch.zeros(full[after].shape, dtype=torch.bfloat16)
    works = [comm.reshard(send, recv, full.shape, src, dst, async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    if recv is not None and after is not None:
        assert (recv.float().numpy() == full[after]).all() and recv._version == 3
    # To NumPy and back in one step: the frameworks of the two sides are their own affair.
    out = None if after is None else np.zeros(full[after].shape, np.float32)
    comm.reshard(None if before is None else torch.from_numpy(full[before].copy()), out, full.shape, src, dst)
    if out is not None and after is not None:
        np.testing.assert_array_equal(out, full[after])


def test_tensors_of_torch_and_in_flight(run_ranks: Callable[..., Any]) -> None:
    pytest.importorskip("torch")
    run_ranks(4, in_frameworks)


# ---- sizes and memory ----


def peak_of_resharding(comm: a2a.Communicator) -> None:
    """Tensors to send and to receive alternate in memory. One kind moves between ranks, one stays."""
    import resource

    rows, columns = 4096, 2048  # 32 MiB
    dst = Sharding(LINE, Shard(1))
    tensors = [
        ((rows, columns), src, dst, "float32") for src in [Sharding(LINE, Shard(0)), Sharding(LINE, Replicate())] * 4
    ]
    plan = comm.plan_reshard_all(tensors)
    full = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    sends, recvs = [], []
    for shape, src, _, _ in tensors:
        sends.append(full[src.box(comm.rank, shape)].copy())
        recvs.append(np.ones((rows, columns // 4), np.float32))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plan.run(sends, recvs)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    for recv in recvs:
        np.testing.assert_array_equal(recv, full[dst.box(comm.rank, full.shape)])
    assert grown < 16 << 10, f"{grown} KiB"  # the chunks of all ranks


def test_staging_is_bounded(run_ranks: Callable[..., Any]) -> None:
    run_ranks(4, peak_of_resharding)


def more_than_2_gib(comm: a2a.Communicator) -> None:
    rows, columns = 3, (1 << 30) - 8
    src, dst = Sharding([0], Replicate()), Sharding([1], Shard(1))
    send = recv = None
    if comm.rank == 0:
        send = np.zeros((rows, columns), np.uint8)
        send[:, ::4097] = np.arange(rows, dtype=np.uint8)[:, None] + 1
    else:
        recv = np.zeros((rows, columns), np.uint8)
    comm.reshard(send, recv, (rows, columns), src, dst)
    if recv is not None:
        assert (recv[:, ::4097] == np.arange(rows)[:, None] + 1).all() and not recv[:, 1::4097].any()


@pytest.mark.full
def test_more_than_2_gib(run_ranks: Callable[..., Any]) -> None:
    run_ranks(2, more_than_2_gib)


def test_shardings_are_values() -> None:
    grid = Sharding(GRID, [Shard(0), Replicate()])
    assert grid == Sharding(np.array(GRID), (Shard(0), Replicate())) and hash(grid) == hash(
        Sharding(GRID, grid.placements)
    )
    assert grid != Sharding(GRID, [Shard(1), Replicate()]) and grid != 5
    assert repr(grid) == "Sharding([[0, 1], [2, 3]], [Shard(0), Replicate()])"
    assert repr(Partial("max")) == "Partial('max')" and Partial() == Partial("sum") != Shard(0)
    assert grid.box(3, (5, 2)) == (slice(3, 5), slice(0, 2)) and grid.box(4, (5, 2)) is None
    assert not grid.mesh.flags.writeable
    for one in (grid, Sharding([0], Partial("max")), Sharding([[1]], [Replicate(), Shard(1)])):
        assert pickle.loads(pickle.dumps(one)) == one == copy.deepcopy(one)
    with pytest.raises(a2a.InvalidArgumentError, match="pass one of"):
        Partial("premul_sum")
    for mesh in ([0.5], "ab", [[0, 1], [2]], object()):
        with pytest.raises(a2a.InvalidArgumentError, match="mesh"):
            Sharding(mesh, [Replicate()])  # type: ignore[arg-type]
    for placements in (5, ["Shard(0)"]):
        with pytest.raises(a2a.InvalidArgumentError, match="placements"):
            Sharding([0], placements)  # type: ignore[arg-type]
