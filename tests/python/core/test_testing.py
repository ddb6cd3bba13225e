"""The oracle against brute force in other words, the random generators, and the routing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from a2a import testing
from a2a.sharding import Partial, Shard, Sharding
from a2a.workloads import Workload

SEEDS = range(40)


def labelled(rank: int, rows: int) -> testing.Array:
    """Rows that say where they come from."""
    return np.array([[rank, row] for row in range(rows)], dtype=np.int64).reshape(rows, 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_alltoallv_moves_exactly_the_given_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(1, 6))
    case = testing.random_case(rng, ranks, max_rows=12)
    sends = [labelled(rank, case.send_rows[rank]) for rank in range(ranks)]
    before = [np.full((rows, 2), -1, np.int64) for rows in case.recv_rows]
    results = testing.alltoallv(sends, case.send_counts, before, case.send_displs, case.recv_displs)
    written = [np.zeros(rows, bool) for rows in case.recv_rows]
    for target, result in enumerate(results):
        for source in range(ranks):
            at, count = case.recv_displs[target, source], case.recv_counts[target, source]
            first = case.send_displs[source, target]
            assert result[at : at + count].tolist() == [[source, first + k] for k in range(count)]
            assert not written[target][at : at + count].any()
            written[target][at : at + count] = True
        assert (result[~written[target]] == -1).all()
    assert all((array == -1).all() for array in before)


@pytest.mark.parametrize("seed", SEEDS)
def test_alltoallv_packs_without_displacements(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(1, 6))
    counts = testing.random_counts(rng, ranks, 9)
    sends = [labelled(rank, int(counts[rank].sum())) for rank in range(ranks)]
    recvs = [np.empty((int(counts[:, rank].sum()), 2), np.int64) for rank in range(ranks)]
    for target, result in enumerate(testing.alltoallv(sends, counts, recvs)):
        expected = [
            row.tolist()
            for source in range(ranks)
            for row in sends[source][counts[source, :target].sum() :][: counts[source, target]]
        ]
        assert result.tolist() == expected


@pytest.mark.parametrize(("split_axis", "concat_axis"), [(0, 0), (0, 2), (1, 0), (-1, 1), (1, -2), (2, -1)])
def test_axes_divide_blocks(split_axis: int, concat_axis: int) -> None:
    """Element by element: where the indices of every one go."""
    split, concat = split_axis % 3, concat_axis % 3
    shape = [2, 3, 4]
    shape[split] *= 3
    sends = [rank * 1000 + np.arange(72).reshape(shape) for rank in range(3)]
    results = testing.alltoall(sends, split_axis, concat_axis)
    counts = np.full((3, 3), shape[split] // 3)
    assert np.array_equal(
        results, testing.alltoallv(sends, counts, results, split_axis=split_axis, concat_axis=concat_axis)
    )
    for target, result in enumerate(results):
        assert result.size == 72
        for at in np.ndindex(*result.shape):
            origin = list(at)
            source, origin[concat] = divmod(at[concat], result.shape[concat] // 3)
            origin[split] += shape[split] // 3 * target
            assert result[at] == sends[source][tuple(origin)]


def test_equal_forms_agree_with_alltoallv() -> None:
    sends = [labelled(rank, 6) for rank in range(3)]
    counts = np.full((3, 3), 2)
    packed = testing.alltoallv(sends, counts, [np.empty_like(send) for send in sends])
    listed = testing.alltoall_list([np.split(send, 3) for send in sends])
    for rank, equal in enumerate(testing.alltoall(sends)):
        assert np.array_equal(equal, packed[rank])
        assert np.array_equal(np.concatenate(listed[rank]), packed[rank])
    gathered = testing.allgather(sends)
    assert all(np.array_equal(result, np.concatenate(sends)) for result in gathered)


@pytest.mark.parametrize("seed", SEEDS)
def test_global_scatter_sorts_rows_by_expert_and_source(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks, experts = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    local = rng.integers(0, 4, (ranks, ranks * experts))
    tagged = [
        np.array([[rank, cell, k] for cell in range(ranks * experts) for k in range(local[rank, cell])]).reshape(-1, 3)
        for rank in range(ranks)
    ]
    scattered = testing.global_scatter(tagged, local)
    for rank, rows in enumerate(scattered):
        keys = [(cell, source, k) for source, cell, k in rows.tolist()]
        assert keys == sorted(keys)
        assert all(cell // experts == rank for cell, _, _ in keys)
        counts = testing.global_counts(local)[rank]
        for source in range(ranks):
            for expert in range(experts):
                arrived = sum(key[:2] == (rank * experts + expert, source) for key in keys)
                assert arrived == counts[source * experts + expert]
    assert sum(map(len, scattered)) == local.sum()
    for back, sent in zip(testing.global_gather(scattered, local), tagged, strict=True):
        assert np.array_equal(back, sent)


def test_first_difference_sees_one_bit_and_is_not_fooled_by_nan() -> None:
    left = np.array([1.0, np.nan, -0.0])
    right = left.copy()
    assert testing.first_difference(left, right) is None
    assert testing.first_difference(np.array([0.0]), np.array([-0.0])) is not None
    right.view(np.uint8)[9] ^= 0x10
    assert testing.first_difference(left, right) == "byte 9 is 0x00 instead of 0x10; 1 of 24 bytes differ"
    assert testing.first_difference(left, left[:2]) == "24 bytes instead of 16"


def test_random_array_has_any_bits_but_only_valid_bools() -> None:
    rng = np.random.default_rng(0)
    array = testing.random_array(rng, (1000, 8), np.float32)
    assert array.shape == (1000, 8) and np.isnan(array).any()
    assert set(np.unique(testing.random_array(rng, 1000, np.bool_).view(np.uint8))) == {0, 1}
    assert testing.random_array(rng, (0, 3), np.complex128).shape == (0, 3)


def test_poison_fills_every_byte() -> None:
    assert set(testing.as_bytes(testing.poison(np.zeros((3, 5), np.complex64)))) == {testing.POISON}


def test_as_bytes_of_plain_buffers() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert testing.as_bytes(array.T).tobytes() == array.T.tobytes()
    assert testing.as_bytes(b"abc").tobytes() == b"abc"
    assert testing.as_bytes(memoryview(bytearray(b"xy"))).tobytes() == b"xy"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "uint8", "bool", "float8_e4m3fn"])
@pytest.mark.parametrize("name", ["torch", "paddle", "jax"])
def test_as_bytes_of_frameworks(name: str, dtype: str) -> None:
    pytest.importorskip(name, exc_type=ImportError)
    expected = {
        "bfloat16": np.array([0x3F80, 0xC000, 0], np.uint16),
        "float32": np.array([1, -2, 0], np.float32),
        "uint8": np.array([1, 254, 0], np.uint8),
        "bool": np.array([1, 0, 1], np.uint8),
        "float8_e4m3fn": np.array([0x38, 0xC0, 0], np.uint8),
    }[dtype]
    values = [1, 254, 0] if dtype == "uint8" else [1, 0, 1] if dtype == "bool" else [1.0, -2.0, 0.0]
    assert testing.as_bytes(_tensor(name, values, dtype)).tobytes() == expected.tobytes()
    assert testing.as_bytes(_tensor(name, values, dtype)[:0]).size == 0


def _tensor(name: str, values: list[Any], dtype: str) -> Any:
    if name == "torch":
        import torch

        return torch.tensor(values, requires_grad=dtype == "float32").to(getattr(torch, dtype))
    if name == "paddle":
        import paddle

        return paddle.to_tensor(values).astype(dtype)
    import jax.numpy as jnp

    return jnp.asarray(values, dtype=dtype)


LAYER = Workload("test", hidden=8, experts=32, top_k=4, tokens=500, groups=4, group_limit=2)


@pytest.mark.parametrize("routing", ["uniform", "zipf", "log-normal", "k_hot", "hot_rank"])
def test_every_token_gets_distinct_experts_drawn_from_the_seed_alone(routing: str) -> None:
    first = testing.route(LAYER, 4, routing=routing, seed=3, step=1)
    assert first.shape == (4, 500, 4) and first.dtype == np.int64
    assert ((first >= 0) & (first < 32)).all()
    assert all(len(set(token)) == 4 for token in first.reshape(-1, 4).tolist())
    assert np.array_equal(first, testing.route(LAYER, 4, routing=routing, seed=3, step=1))
    assert not np.array_equal(first, testing.route(LAYER, 4, routing=routing, seed=3, step=2))
    assert not np.array_equal(first, testing.route(LAYER, 4, routing=routing, seed=4, step=1))


def loads(routing: str, **parameters: Any) -> testing.IntArray:
    """Rows for each expert, over all ranks."""
    choice = testing.route(LAYER, 4, routing=routing, **parameters).reshape(-1, 4)
    return testing.expert_counts(choice, 32)


def test_routings_are_as_skewed_as_they_say() -> None:
    def imbalance(counts: testing.IntArray) -> float:
        return float(counts.max() / counts.mean())

    assert imbalance(loads("uniform")) < 1.2
    assert imbalance(loads("zipf", alpha=1.2)) > 3
    unshuffled = loads("zipf", alpha=1.2, shuffle=False)
    assert unshuffled[:8].sum() > 0.6 * unshuffled.sum()
    assert imbalance(loads("log-normal", sigma=0.5)) < imbalance(loads("log-normal", sigma=1.5))
    hot = loads("hot_rank", ratio=4.0).reshape(4, 8).sum(axis=1)
    assert 2.5 < hot[0] / hot[1:].mean() < 5
    top = np.sort(loads("k_hot", hot=4, hot_fraction=0.9))
    assert top[-4:].sum() > 0.85 * top.sum()
    few = np.sort(loads("k_hot", hot=2, hot_fraction=1.0))
    assert (few[-2:] == 2000).all() and few.sum() == 8000


def test_popular_experts_stay_popular_from_step_to_step() -> None:
    assert loads("zipf", step=0).argmax() == loads("zipf", step=1).argmax()


def test_masked_and_group_limited() -> None:
    masked = testing.route(LAYER, 4, masked=0.25)
    assert 0.2 < (masked == -1).mean() < 0.3
    assert (
        testing.expert_counts(masked[0], 32).sum() == (masked[0] >= 0).sum() == len(testing.dispatch_order(masked[0]))
    )
    limited = testing.route(LAYER, 4, group_limited=True).reshape(-1, 4) // 8
    assert max(len(set(token)) for token in limited.tolist()) == 2


def test_explicit_loads() -> None:
    weights = [0.0] * 28 + [1.0] * 4
    assert loads("loads", loads=weights).tolist() == [0] * 28 + [2000] * 4
    with pytest.raises(ValueError, match="loads has 2 weights for 32 experts"):
        loads("loads", loads=[1.0, 2.0])
    with pytest.raises(ValueError, match="unknown routing 'zip'"):
        loads("zip")


def test_dispatch_order_packs_by_expert() -> None:
    choice = testing.route(LAYER, 1, routing="zipf")[0]
    packed = choice.reshape(-1)[testing.dispatch_order(choice)]
    assert packed.tolist() == sorted(choice.reshape(-1).tolist())
    assert np.array_equal(np.bincount(packed, minlength=32), testing.expert_counts(choice, 32))


def test_workload_ids() -> None:
    assert testing.workload("dsv3-train").bytes_per_rank == 448 << 20
    small = testing.workload("mixtral-train/16")
    assert (small.id, small.tokens, small.hidden) == ("mixtral-train/16", 256, 4096)
    for wrong in ("dsv4", "dsv3-train/", "dsv3-train/x", "dsv3-train/0"):
        with pytest.raises(ValueError, match="unknown workload"):
            testing.workload(wrong)


def test_as_bytes_of_a_part_of_a_paddle_tensor() -> None:
    paddle = pytest.importorskip("paddle")
    part = paddle.arange(10, dtype="int32")[5:]
    assert testing.as_bytes(part).tobytes() == np.arange(5, 10, dtype=np.int32).tobytes()


def test_reshard_folds_terms_and_cuts_parts() -> None:
    src = Sharding([[0, 1], [2, 3]], [Partial(), Shard(0)])
    sends = [np.full((2, 3), rank + 1) for rank in range(4)]
    rows = np.repeat([[4], [6]], 2, axis=0) * np.ones(3, int)  # ranks 0 and 2, and ranks 1 and 3
    received = testing.reshard(sends, (4, 3), src, Sharding([3, 0], Shard(1)))
    assert received[1] is None and received[2] is None
    np.testing.assert_array_equal(received[3], rows[:, :2])
    np.testing.assert_array_equal(received[0], rows[:, 2:])
