"""Reshardings against NumPy's slices, between processes, threads and hosts. The groups of cases have the names of those
of NCCL's M2N."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import a2a
from a2a.sharding import Partial, Replicate, Shard, Sharding, matrix

pytestmark = pytest.mark.timeout(100)

Array = np.ndarray[Any, Any]
HOSTS = {"one": "", "pairs": "a,a,b,b", "alternating": "a,b,a,b", "uneven": "a,b,b,b"}


def whole(shape: Sequence[int], dtype: Any = np.float32, seed: int = 0) -> Array:
    count = int(np.prod(shape))
    return (np.arange(count) % 251 + seed).astype(dtype).reshape(shape)


def box_of(sharding: Any, rank: int, shape: Sequence[int]) -> tuple[slice, ...] | None:
    if isinstance(sharding, Sharding):
        return sharding.box(rank, shape)
    box: tuple[slice, ...] | None = sharding.get(rank) if isinstance(sharding, dict) else sharding[rank]
    return box


def in_gaps(comm: a2a.Communicator, array: Array, chance: np.random.Generator) -> Array:
    """The same values in other memory: packed, in shared memory, transposed, or in a larger array."""
    kind = chance.integers(4)
    if kind == 1 and array.size:
        made: Array = np.asarray(comm.empty(array.shape, array.dtype))
    elif kind == 2:
        made = np.zeros(array.shape[::-1], array.dtype).T
    elif kind == 3 and array.ndim:
        made = np.zeros([2 * n + 1 for n in array.shape], array.dtype)[tuple(slice(1, None, 2) for _ in array.shape)]
    else:
        made = np.zeros(array.shape, array.dtype)
    made[...] = array
    return made


def reshard(comm: a2a.Communicator, full: Array, src: Any, dst: Any, chance: np.random.Generator) -> None:
    """Every rank knows the whole tensor, and compares what it gets with its slice."""
    before, after = box_of(src, comm.rank, full.shape), box_of(dst, comm.rank, full.shape)
    send = None if before is None else in_gaps(comm, full[before], chance)
    recv = None if after is None else in_gaps(comm, np.full_like(full[after], 77), chance)
    kept = None if send is None else send.copy()
    comm.reshard(send, recv, full.shape, src, dst)
    if recv is not None and after is not None:
        np.testing.assert_array_equal(recv, full[after], f"{full.shape}: {src} to {dst}")
    if send is not None and kept is not None:
        np.testing.assert_array_equal(send, kept, "the source")


def random_sharding(size: int, ndim: int, chance: np.random.Generator) -> Sharding:
    mesh: list[int] = []
    for _ in range(chance.integers(1, 4)):
        mesh.append(int(chance.integers(1, max(1, size // int(np.prod(mesh, dtype=int))) + 1)))
    ranks = chance.permutation(size)[: int(np.prod(mesh))].reshape(mesh)
    placements = [
        Shard(int(chance.integers(-ndim, ndim))) if ndim and chance.random() < 0.6 else Replicate() for _ in mesh
    ]
    return Sharding(ranks, placements)


def random_boxes(size: int, shape: Sequence[int], source: bool, chance: np.random.Generator) -> Any:
    def box() -> tuple[slice, ...]:
        ends = [sorted(chance.integers(0, n + 1, 2).tolist()) for n in shape]
        return tuple(slice(begin, end) for begin, end in ends)

    boxes: list[tuple[slice, ...] | None] = [box() if chance.random() < 0.7 else None for _ in range(size)]
    if source:
        boxes[int(chance.integers(size))] = tuple(slice(None) for _ in shape)
    return boxes if chance.random() < 0.5 else {rank: box for rank, box in enumerate(boxes) if box is not None}


def at_random(comm: a2a.Communicator, seed: int, rounds: int) -> None:
    shared, own = np.random.default_rng(seed), np.random.default_rng([seed, comm.rank])
    for _ in range(rounds):
        shape = [int(n) for n in shared.integers(0 if shared.random() < 0.1 else 1, 40, shared.integers(0, 4))]
        dtype = shared.choice(["uint8", "float16", "float32", "complex128"])
        src: Any = random_sharding(comm.size, len(shape), shared)
        dst: Any = random_sharding(comm.size, len(shape), shared)
        if shared.random() < 0.2:
            src = random_boxes(comm.size, shape, True, shared)
        if shared.random() < 0.2:
            dst = random_boxes(comm.size, shape, False, shared)
        reshard(comm, whole(shape, dtype), src, dst, own)


@pytest.mark.parametrize("threads", [False, True], ids=["processes", "threads"])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_random_layouts(run_ranks: Callable[..., Any], ranks: int, threads: bool) -> None:
    run_ranks(ranks, at_random, ranks, 60, threads=threads)


@pytest.mark.parametrize("hosts", ["pairs", "alternating", "uneven"])
def test_random_layouts_between_hosts(
    run_ranks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, hosts: str
) -> None:
    monkeypatch.setenv("A2A_HOSTS", HOSTS[hosts])
    run_ranks(4, at_random, 7, 60)


# ---- the groups of M2N's tests: (shape, source, destination) on 4 ranks ----

LINE, GRID = [0, 1, 2, 3], [[0, 1], [2, 3]]
GROUPS: dict[str, list[tuple[Sequence[int], Sharding, Sharding]]] = {
    "full_replication": [
        ((64, 32), Sharding([0, 1], Replicate()), Sharding([2, 3], Replicate())),
        ((64, 32), Sharding([0], Replicate()), Sharding([1, 2, 3], Replicate())),
        ((64, 32), Sharding(GRID, [Replicate(), Replicate()]), Sharding([3, 2], Replicate())),
    ],
    "full_sharding": [
        ((64, 32), Sharding([0, 1], Shard(0)), Sharding([2, 3], Shard(0))),
        ((64, 32), Sharding([0, 1], Shard(0)), Sharding([2, 3], Shard(1))),
        ((64, 32), Sharding(LINE, Shard(0)), Sharding(LINE, Shard(1))),
        ((64, 32), Sharding(LINE, Shard(1)), Sharding([3, 1], Shard(0))),
    ],
    "2d_placement": [
        ((64, 32), Sharding(GRID, [Shard(0), Replicate()]), Sharding(GRID, [Replicate(), Shard(1)])),
        ((64, 32), Sharding(GRID, [Shard(0), Shard(1)]), Sharding(GRID, [Shard(1), Shard(0)])),
        ((64, 32), Sharding(GRID, [Shard(0), Shard(0)]), Sharding([[3, 0]], [Replicate(), Shard(0)])),
        ((64, 32), Sharding(LINE, Shard(0)), Sharding(GRID, [Replicate(), Shard(0)])),
    ],
    "uneven_ratio": [
        ((65, 31), Sharding([0], Shard(0)), Sharding([1, 2, 3], Shard(0))),
        ((65, 31), Sharding([0, 1, 2], Shard(0)), Sharding([3], Shard(0))),
        ((7, 3), Sharding([0, 1, 2], Shard(0)), Sharding(LINE, Shard(0))),
        ((3, 2), Sharding(LINE, Shard(0)), Sharding([2, 1, 0], Shard(1))),
        ((5,), Sharding([1, 3], Replicate()), Sharding([0, 2, 3], Shard(0))),
    ],
    "nd_tensors": [
        ((), Sharding([0, 1], Replicate()), Sharding([2, 3], Replicate())),
        ((9,), Sharding(LINE, Shard(0)), Sharding([1, 0], Shard(0))),
        ((8, 6, 5), Sharding(GRID, [Shard(2), Shard(0)]), Sharding([0, 1, 2], Shard(1))),
        ((3, 4, 5, 6), Sharding(GRID, [Shard(3), Shard(1)]), Sharding(LINE, Shard(2))),
        ((2, 3, 2, 3, 2, 3, 2), Sharding(LINE, Shard(5)), Sharding(GRID, [Shard(1), Shard(-1)])),
        ((0, 4), Sharding([0, 1], Shard(1)), Sharding([2, 3], Shard(0))),
    ],
    "cross_dim_regression": [
        ((32, 48, 16), Sharding([0, 1], Shard(1)), Sharding([2, 3], Shard(2))),
        ((32, 48, 16), Sharding([0, 1, 2], Shard(2)), Sharding(LINE, Shard(0))),
        ((48, 17), Sharding(LINE, Shard(1)), Sharding([0, 1, 2], Shard(0))),
    ],
}


def every_layout(comm: a2a.Communicator, group: str) -> None:
    own = np.random.default_rng(comm.rank)
    for shape, src, dst in GROUPS[group]:
        for dtype in ("float32", "uint8"):
            reshard(comm, whole(shape, dtype), src, dst, own)


@pytest.mark.parametrize("hosts", ["one", "pairs"])
@pytest.mark.parametrize("group", GROUPS)
def test_group_of_m2n(run_ranks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, group: str, hosts: str) -> None:
    if HOSTS[hosts]:
        monkeypatch.setenv("A2A_HOSTS", HOSTS[hosts])
    run_ranks(4, every_layout, group)


# ---- partial sums ----


def folds(comm: a2a.Communicator, op: str, dtype: str) -> None:
    rank, shape = comm.rank, (37, 21)
    terms = [whole(shape, dtype, seed) for seed in (3, 5, 2, 7)]
    sums: dict[str, Callable[..., Array]] = {"sum": np.add, "max": np.maximum, "avg": np.add, "bxor": np.bitwise_xor}

    def fold(ranks: Sequence[int]) -> Array:
        result = terms[ranks[0]]
        for one in ranks[1:]:
            result = sums[op](result, terms[one])
        return (result / len(ranks)).astype(dtype) if op == "avg" else result

    for src, folded in (
        (Sharding([0, 1, 2, 3], Partial(op)), [[0, 1, 2, 3]]),
        (Sharding([0, 1, 2], Partial(op)), [[0, 1, 2]]),
        (Sharding(GRID, [Partial(op), Shard(0)]), [[0, 2], [1, 3]]),
        (Sharding(GRID, [Shard(1), Partial(op)]), [[0, 1], [2, 3]]),
    ):
        expected = np.empty(shape, dtype)
        for group in folded:
            box = src.box(group[0], shape)
            assert box is not None
            expected[box] = fold(group)[box]
        for dst in (
            Sharding(LINE, Shard(0)),
            Sharding(LINE, Replicate()),
            Sharding(GRID, [Shard(1), Replicate()]),
            Sharding([3, 0], Shard(0)),
        ):
            before, after = src.box(rank, shape), dst.box(rank, shape)
            send = None if before is None else terms[rank][before].T.copy().T
            recv = None if after is None else np.zeros_like(expected[after])
            comm.reshard(send, recv, shape, src, dst)
            if recv is not None and after is not None:
                np.testing.assert_array_equal(recv, expected[after], f"{src} to {dst}")


@pytest.mark.parametrize("hosts", ["one", "pairs", "uneven"])
@pytest.mark.parametrize(("op", "dtype"), [("sum", "float32"), ("max", "int64"), ("avg", "float64"), ("bxor", "uint8")])
def test_partial_sums(
    run_ranks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, op: str, dtype: str, hosts: str
) -> None:
    if HOSTS[hosts]:
        monkeypatch.setenv("A2A_HOSTS", HOSTS[hosts])
    run_ranks(4, folds, op, dtype)


# ---- plans ----


def model(chance: np.random.Generator) -> list[tuple[tuple[int, ...], Any, Any, str]]:
    tp = Sharding(LINE, Shard(0))
    columns = Sharding(LINE, Shard(1))
    both = Sharding(GRID, [Replicate(), Shard(0)])
    tensors: list[tuple[tuple[int, ...], Any, Any, str]] = []
    for i in range(40):
        shape = tuple(int(n) for n in chance.integers(1, 200, 2))
        dtype = ("float32", "float16", "int8")[i % 3]
        tensors.append((shape, tp if i % 2 else columns, both, dtype))
    return [*tensors, ((), Sharding([0], Replicate()), Sharding([3], Replicate()), "int64")]


def many(comm: a2a.Communicator, partial: bool) -> None:
    tensors = model(np.random.default_rng(1))
    if partial:
        tensors += [
            ((30, 4), Sharding(LINE, Partial()), both, dtype)
            for dtype in ("float32", "int32")
            for both in [tensors[0][2]]
        ]
    plan = comm.plan_reshard_all(tensors)
    assert plan.operations == (3 if partial else 1)
    own = np.random.default_rng(comm.rank)
    for turn in range(3):
        fulls = [whole(shape, dtype, turn) for shape, _, _, dtype in tensors]
        sends: list[Array | None] = []
        recvs: list[Array | None] = []
        for full, (shape, src, dst, _) in zip(fulls, tensors, strict=True):
            before, after = src.box(comm.rank, shape), dst.box(comm.rank, shape)
            sends.append(None if before is None else in_gaps(comm, full[before], own))
            recvs.append(None if after is None else in_gaps(comm, np.zeros_like(full[after]), own))
        if turn == 1:
            work = plan.start(sends, recvs)
            work.wait()
        else:
            plan.run(sends, recvs)
        for full, recv, (shape, src, dst, _) in zip(fulls, recvs, tensors, strict=True):
            if recv is not None:
                terms = 4 if isinstance(src.placements[0], Partial) else 1
                np.testing.assert_array_equal(recv, full[dst.box(comm.rank, shape)] * terms)


@pytest.mark.parametrize("hosts", ["one", "alternating"])
@pytest.mark.parametrize("partial", [False, True], ids=["copied", "partial"])
def test_many_tensors_at_once(
    run_ranks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, partial: bool, hosts: str
) -> None:
    if HOSTS[hosts]:
        monkeypatch.setenv("A2A_HOSTS", HOSTS[hosts])
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


# ---- bad input ----

BAD: dict[str, tuple[Callable[[a2a.Communicator], Any], str]] = {}


def bad(words: str) -> Callable[[Any], Any]:
    def note(call: Any) -> Any:
        BAD[call.__name__] = call, words
        return call

    return note


ROWS, COLUMNS = Sharding([0, 1, 2], Shard(0)), Sharding([0, 1, 2], Shard(1))


def call(
    comm: a2a.Communicator,
    send: Any = 0,
    recv: Any = 0,
    shape: Any = (6, 3),
    src: Any = ROWS,
    dst: Any = COLUMNS,
    **options: Any,
) -> Any:
    send = np.zeros((2, 3), np.float32) if isinstance(send, int) else send
    recv = np.zeros((6, 1), np.float32) if isinstance(recv, int) else recv
    return comm.reshard(send, recv, shape, src, dst, **options)


@bad("names rank 1 twice")
def rank_twice(comm: a2a.Communicator) -> None:
    call(comm, src=Sharding([0, 1, 1], Shard(0)))


@bad("src: the mesh names rank -1")
def negative_rank(comm: a2a.Communicator) -> None:
    call(comm, src=Sharding([0, 1, -1], Shard(0)))


@bad("dst: there are 2 placements for 1 axes")
def too_many_placements(comm: a2a.Communicator) -> None:
    call(comm, dst=Sharding([0, 1, 2], [Shard(0), Shard(1)]))


@bad("src: it names rank 5, but the group has 3 ranks")
def rank_out_of_range(comm: a2a.Communicator) -> None:
    call(comm, src=Sharding([0, 1, 5], Shard(0)))


@bad("send is of shape (3, 3), but rank 1 has a part of shape (2, 3)")
def wrong_part(comm: a2a.Communicator) -> None:
    call(comm, send=np.zeros((3, 3), np.float32))


@bad("recv is None, but rank 1 has a part of shape (6, 1)")
def no_output(comm: a2a.Communicator) -> None:
    call(comm, recv=None)


@bad("send is float64, but recv is float32")
def two_dtypes(comm: a2a.Communicator) -> None:
    call(comm, send=np.zeros((2, 3)))


@bad("src: it has 12 of the 18 elements")
def source_lacks_elements(comm: a2a.Communicator) -> None:
    call(comm, src={0: (slice(0, 2), slice(None)), 1: (slice(2, 4), slice(None))})


@bad("cannot be partial")
def partial_destination(comm: a2a.Communicator) -> None:
    call(comm, dst=Sharding([0, 1, 2], Partial()))


@bad("dimension 2 of a tensor of 2 dimensions")
def no_such_dimension(comm: a2a.Communicator) -> None:
    call(comm, src=Sharding([0, 1, 2], Shard(2)))


@bad("the box of rank 0")
def box_outside(comm: a2a.Communicator) -> None:
    call(comm, dst=[(slice(0, 7), slice(None)), None, None])


@bad("dst[0] is")
def no_slices(comm: a2a.Communicator) -> None:
    call(comm, dst=[(slice(None),), None, None])


@bad("slices without a step")
def steps(comm: a2a.Communicator) -> None:
    call(comm, dst=[(slice(0, 6, 2), slice(None)), None, None])


@bad("dst has 2 boxes")
def too_few_boxes(comm: a2a.Communicator) -> None:
    call(comm, dst=[None, None])


@bad("dst names rank 3")
def box_of_nobody(comm: a2a.Communicator) -> None:
    call(comm, dst={3: None})


@bad("src is 'rows'")
def no_sharding(comm: a2a.Communicator) -> None:
    call(comm, src="rows")


@bad("shape")
def no_shape(comm: a2a.Communicator) -> None:
    call(comm, shape=6)


@bad("a dimension of -6 entries")
def negative_shape(comm: a2a.Communicator) -> None:
    call(comm, shape=(-6, 3))


@bad("share memory")
def shared_memory(comm: a2a.Communicator) -> None:
    memory = np.zeros(12, np.float32)
    call(comm, send=memory[:6].reshape(2, 3), recv=memory[4:10].reshape(6, 1))


@bad("read-only")
def read_only(comm: a2a.Communicator) -> None:
    recv = np.zeros((6, 1), np.float32)
    recv.flags.writeable = False
    call(comm, recv=recv)


@bad("takes")
def too_few_arguments(comm: a2a.Communicator) -> None:
    comm.reshard(1)  # type: ignore[call-overload]


def refused(comm: a2a.Communicator, name: str) -> None:
    function, words = BAD[name]
    comm.timeout = 5
    if comm.rank == 1:
        wrong = TypeError if name == "too_few_arguments" else a2a.InvalidArgumentError
        with pytest.raises(wrong) as caught:
            function(comm)
        assert words in str(caught.value), caught.value
    else:
        with pytest.raises(a2a.MismatchError, match="rank 1"):
            call(comm)
    call(comm)  # the numbers are in step
    comm.barrier()


def all_refused(comm: a2a.Communicator) -> None:
    for name in BAD:
        refused(comm, name)


def test_bad_arguments_are_refused_here_and_a_mismatch_there(run_ranks: Callable[..., Any]) -> None:
    run_ranks(3, all_refused)


def bad_plans(comm: a2a.Communicator) -> None:
    for wrong, words in (
        (5, "tensors is 5"),
        ([((2,), ROWS, ROWS)], "tensors[0]"),
        ([((2,), ROWS, ROWS, "int8"), ((2,), ROWS, COLUMNS, "int8")], "tensors[1]: dst"),
        ([((2,), ROWS, ROWS, "int3")], "tensors[0]: dtype"),
    ):
        with pytest.raises(a2a.InvalidArgumentError) as caught:
            comm.plan_reshard_all(wrong)  # type: ignore[arg-type]
        assert words in str(caught.value), caught.value
    plan = comm.plan_reshard_all([((6, 3), ROWS, COLUMNS, "float32"), ((3,), ROWS, ROWS, "int8")])
    sends = [np.zeros((2, 3), np.float32), np.zeros(1, np.int8)]
    recvs = [np.zeros((6, 1), np.float32), np.zeros(1, np.int8)]
    for sent, received, words in (
        (sends[:1], recvs, "send has 1 tensors, but the plan has 2"),
        (sends[0], recvs, "send"),
        (None, recvs, "send is NoneType"),
        (sends[::-1], recvs, "send[0] is int8, but the plan is of float32"),
        (sends, [recvs[0], recvs[1].view(np.uint8)], "recv[1] is uint8"),
        ([sends[0], None], recvs, "send[1] is None"),
        (sends, [recvs[0], sends[1]], "share memory"),
    ):
        if comm.rank == 1:
            with pytest.raises(a2a.InvalidArgumentError) as caught:
                plan.run(sent, received)
            assert words in str(caught.value), caught.value
        else:
            with pytest.raises(a2a.MismatchError, match="rank 1"):
                plan.run(sends, recvs)
        plan.run(sends, recvs)
    if comm.rank == 2:
        with pytest.raises(TypeError):
            plan.run()  # type: ignore[call-arg]
    else:
        with pytest.raises(a2a.MismatchError, match=r"reshard.*rank 2"):
            plan.run(sends, recvs)
    plan.run(sends, recvs)


def test_bad_arguments_of_plans(run_ranks: Callable[..., Any]) -> None:
    run_ranks(3, bad_plans)


DIFFERENCES: dict[str, dict[str, Any]] = {
    "shape": {"shape": (3, 3), "send": np.zeros((1, 3), np.float32), "recv": np.zeros((3, 1), np.float32)},
    "source": {"src": Sharding([2, 1, 0], Shard(0))},
    "destination": {"dst": ROWS, "recv": np.zeros((2, 3), np.float32)},
    "dtype": {"send": np.zeros((2, 3), np.int32), "recv": np.zeros((6, 1), np.int32)},
    "partial": {"src": Sharding([0, 1, 2], Partial()), "send": np.zeros((6, 3), np.float32)},
}


def differ(comm: a2a.Communicator) -> None:
    for name, options in DIFFERENCES.items():
        with pytest.raises(a2a.MismatchError, match="rank 1") as caught:
            call(comm, **(options if comm.rank == 1 else {}))
        assert ("int32" in str(caught.value)) == (name == "dtype"), caught.value
        call(comm)
    # A rank without a part does not know the dtype, and so agrees with all.
    two, other = Sharding([0, 1], Shard(0)), Sharding([1, 0], Shard(0))
    part = None if comm.rank == 2 else np.full(3, comm.rank, np.int16)
    recv = None if comm.rank == 2 else np.zeros(3, np.int16)
    comm.reshard(part, recv, (6,), two, other)
    assert recv is None or (recv == 1 - comm.rank).all()
    if comm.rank == 0:
        part, recv = np.zeros(3, np.float16), np.zeros(3, np.float16)
    if comm.rank == 2:
        comm.reshard(part, recv, (6,), two, other)
    else:
        with pytest.raises(a2a.MismatchError, match=r"float16.*int16"):
            comm.reshard(part, recv, (6,), two, other)
    plan = comm.plan_reshard((6,), two, other, "int16" if comm.rank else "float16")
    with pytest.raises(a2a.MismatchError, match="rank 0"):
        plan.run(part, recv)
    tensors = [((6,), two, other, "int16"), ((6,), two, other, "int16" if comm.rank else "float16")]
    parts = (
        [None, None] if comm.rank == 2 else [np.zeros(3, np.int16), np.zeros(3, "int16" if comm.rank else "float16")]
    )
    outputs = [None if one is None else np.empty_like(one) for one in parts]
    with pytest.raises(a2a.MismatchError, match="rank 0"):
        comm.plan_reshard_all(tensors).run(parts, outputs)
    call(comm)


@pytest.mark.parametrize("hosts", ["one", "a,b,b"])
def test_ranks_that_differ(run_ranks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, hosts: str) -> None:
    if hosts != "one":
        monkeypatch.setenv("A2A_HOSTS", hosts)
    run_ranks(3, differ)


# ---- sizes and memory ----


def peak_of_resharding(comm: a2a.Communicator) -> None:
    import resource

    rows, columns = 4096, 4096  # 64 MiB in all, a quarter on each rank
    src, dst = Sharding(LINE, Shard(0)), Sharding(LINE, Shard(1))
    plan = comm.plan_reshard_all([((rows, columns), src, dst, "float32")] * 2)
    sends = [np.full((rows // 4, columns), comm.rank, np.float32) for _ in range(2)]
    recvs = [np.zeros((rows, columns // 4), np.float32) for _ in range(2)]
    plan.run(sends, recvs)  # maps what is shared once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plan.run(sends, recvs)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4 << 10, "KiB"
    for recv in recvs:
        assert (recv.reshape(4, -1) == np.arange(4)[:, None]).all()


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
    with pytest.raises(a2a.InvalidArgumentError, match="pass one of"):
        Partial("premul_sum")
    for mesh in ([0.5], "ab", [[0, 1], [2]], object()):
        with pytest.raises(a2a.InvalidArgumentError, match="mesh"):
            Sharding(mesh, [Replicate()])  # type: ignore[arg-type]
    for placements in (5, ["Shard(0)"]):
        with pytest.raises(a2a.InvalidArgumentError, match="placements"):
            Sharding([0], placements)  # type: ignore[arg-type]
