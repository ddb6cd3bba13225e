"""What ranks do in test_reshard.py and test_reshard_hosts.py."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import a2a
from a2a import testing
from a2a.sharding import Partial, Replicate, Shard, Sharding

Array = np.ndarray[Any, Any]


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


def terms_at_random(comm: a2a.Communicator, seed: int, rounds: int) -> None:
    """Partial sums whose terms have copies, in whole numbers that every dtype holds."""
    shared, own = np.random.default_rng(seed), np.random.default_rng([seed, comm.rank])
    for _ in range(rounds):
        shape = [int(n) for n in shared.integers(1, 40, shared.integers(0, 4))]
        dtype = shared.choice(["int16", "float16", "float64"])
        some, dst = (random_sharding(comm.size, len(shape), shared) for _ in range(2))
        src = Sharding(some.mesh, [Partial() if shared.random() < 0.5 else one for one in some.placements])
        # Ranks with the same term have the same values.
        folded = [isinstance(one, Partial) for one in src.placements]
        term = {int(rank): hash(tuple(np.where(folded, at, 0).tolist())) % 7 for at, rank in np.ndenumerate(src.mesh)}
        boxes = [src.box(rank, shape) for rank in range(comm.size)]
        sends = [None if box is None else whole(shape, dtype, term[rank])[box] for rank, box in enumerate(boxes)]
        expected, mine = testing.reshard(sends, shape, src, dst)[comm.rank], sends[comm.rank]
        recv = None if expected is None else in_gaps(comm, np.full_like(expected, 77), own)
        comm.reshard(None if mine is None else in_gaps(comm, mine, own), recv, shape, src, dst)
        if recv is not None:
            np.testing.assert_array_equal(recv, expected, f"{shape}: {src} to {dst}")


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


# ---- partial sums ----


FOLDS = [("sum", "float32"), ("max", "int64"), ("avg", "float64"), ("bxor", "uint8")]


def folds(comm: a2a.Communicator, op: str, dtype: str) -> None:
    rank, shape = comm.rank, (37, 21)
    terms = [whole(shape, dtype, seed) for seed in (3, 5, 2, 7, 1, 9)][: comm.size]
    for src, dst in itertools.product(
        (
            Sharding(LINE, Partial(op)),
            Sharding([0, 1, 2], Partial(op)),
            Sharding(GRID, [Partial(op), Shard(0)]),
            Sharding(GRID, [Shard(1), Partial(op)]),
            Sharding([[0], [1], [3]], [Partial(op), Shard(0)]),
        ),
        (
            Sharding(LINE, Shard(0)),
            Sharding(LINE, Replicate()),
            Sharding(GRID, [Shard(1), Replicate()]),
            Sharding([3, 0], Shard(0)),
        ),
    ):
        boxes = [src.box(one, shape) for one in range(comm.size)]
        sends = [None if box is None else term[box] for term, box in zip(terms, boxes, strict=True)]
        expected, mine = testing.reshard(sends, shape, src, dst)[rank], sends[rank]
        send = None if mine is None else mine.T.copy().T
        recv = None if expected is None else np.zeros_like(expected)
        comm.reshard(send, recv, shape, src, dst)
        if recv is not None:
            np.testing.assert_array_equal(recv, expected, f"{src} to {dst}")


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


# ---- ranks that differ ----


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
    if isinstance(send, int):
        send = np.zeros((2, 3), np.float32) if comm.rank < 3 else None
    if isinstance(recv, int):
        recv = np.zeros((6, 1), np.float32) if comm.rank < 3 else None
    return comm.reshard(send, recv, shape, src, dst, **options)


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
    # One rank has a second operation, which none begins.
    mine = [((6,), Sharding([0, 1], Partial()), two, "int16")] if comm.rank == 0 else [((6,), two, two, "int16")]
    first = None if comm.rank == 2 else np.zeros(3, np.int16)
    second = first if comm.rank else np.zeros(6, np.int16)
    outputs = [None if first is None else np.zeros(3, np.int16) for _ in range(2)]
    plan = comm.plan_reshard_all([((6,), two, other, "int16"), *mine])
    assert plan.operations == (2 if comm.rank == 0 else 1)
    with pytest.raises(a2a.MismatchError, match="rank 0"):
        plan.run([first, second], outputs)
    call(comm)


def bystanders(comm: a2a.Communicator) -> None:
    """Ranks with a part have different dtypes. Others agree with all; nobody waits."""
    assert comm.size >= 4
    everything = Replicate()
    for src, dst, odd in (
        (Sharding([0, 1], Partial()), Sharding([0, 1], everything), 1),
        (Sharding([0], everything), Sharding([1, 2], everything), 2),
        (Sharding([0], everything), Sharding([2, 1], everything), 1),
        (Sharding([3], everything), Sharding([2, 1], everything), 1),
    ):
        boxes = [one.box(comm.rank, (64,)) for one in (src, dst)]
        for other in ("float32", "int32"):
            dtype = other if comm.rank == odd else "float32"
            send, recv = (None if box is None else np.ones(64, dtype) for box in boxes)
            disagrees = other == "int32" and not (send is None and recv is None)
            with pytest.raises(a2a.MismatchError, match=f"rank {odd}") if disagrees else nullcontext():
                comm.reshard(send, recv, (64,), src, dst, timeout=20)
            call(comm)
