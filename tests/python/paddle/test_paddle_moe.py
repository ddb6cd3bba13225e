"""Mixtures of experts with Paddle: its own MoELayer after enable(), and a2a.paddle.moe."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from rank_pool import Pool

paddle = pytest.importorskip("paddle")
import a2a.paddle as dist
import paddle_moe_ranks as ranks
from paddle.distributed.models.moe import utils as operators
from paddle_enabled import enabled

pytestmark = pytest.mark.timeout(110)
RANKS = 4


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Ranks of their own, because they make Paddle's environment and change Paddle."""
    with Pool(RANKS) as pool:
        yield pool


# ---- Paddle's own layer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, RANKS])
@pytest.mark.parametrize("kind", ["naive", "gshard", "switch"])
def test_incubate(pool: Pool, kind: str, n: int) -> None:
    dropped = sum(pool.run(enabled, ranks.incubate, kind, n, False))
    assert (dropped > 0) is (kind == "gshard" or (kind == "switch" and n > 1))


@pytest.mark.parametrize("kind", ["naive", "gshard", "switch"])
def test_incubate_trains(pool: Pool, kind: str) -> None:
    for losses in pool.run(enabled, ranks.incubate_trains, kind):
        assert losses[-1] < losses[0]


def test_incubate_recomputes(pool: Pool) -> None:
    pool.run(enabled, ranks.incubate, "naive", 2, True)


def test_incubate_without_rows(pool: Pool) -> None:
    pool.run(enabled, ranks.incubate_without_rows)


def test_incubate_model_parallel(pool: Pool) -> None:
    pool.run(enabled, ranks.incubate_model_parallel)


@pytest.fixture
def here() -> Iterator[None]:
    dist.enable()
    yield
    dist.disable()


@pytest.mark.usefixtures("here")
def test_operators() -> None:
    """The examples of Paddle's documentation, with the first tokens where it says nothing of their order."""
    tensor = paddle.to_tensor
    assert operators._number_count(tensor([[0, 2], [0, 2]]), 6).tolist() == [2, 0, 2, 0, 0, 0]
    assert operators._number_count(tensor([-1, 2, -1]), 3).tolist() == [0, 0, 1]
    assert operators._assign_pos(tensor([[0, 2], [0, 2]]), tensor([2, 2, 4, 4])).tolist() == [0, 2, 1, 3]
    assert operators._assign_pos(tensor([[-1], [0]]), tensor([1, 1])).tolist() == [1]
    limited = operators._limit_by_capacity(tensor([1, 2, 2, 8, 3, 6]), tensor([5, 5, 5]), 2)
    assert limited.tolist() == [1, 2, 2, 4, 3, 3]
    pruned = operators._prune_gate_by_capacity(tensor([1, 3, 3, 3, 3, 2, 1, 1]), tensor([0, 3, 1, 3, 0, 0, 0, 0]), 8, 1)
    assert pruned.tolist() == [1, 3, 3, 3, -1, 2, 1, 1]
    again = operators._prune_gate_by_capacity(tensor([[-1], [0], [1]]), tensor([1, 0]), 2, 1)
    assert again.tolist() == [[-1], [0], [-1]]
    chosen, values = tensor([[0, 2], [1, 0]]), tensor([[0.5, 0.1], [0.5, 0.4]])
    assert operators._random_routing(chosen, values, tensor([0.3, 0.3])).tolist() == [[0, -1], [1, 0]]
    assert chosen.tolist() == [[0, 2], [1, 0]]
    none = paddle.zeros([0, 2], "int64")
    assert operators._number_count(none, 2).tolist() == [0, 0]
    assert operators._assign_pos(none, tensor([0, 0])).shape == [0]
    assert operators._prune_gate_by_capacity(none, tensor([1, 1]), 2, 1).shape == [0, 2]
    with pytest.raises(RuntimeError, match="topk=2"):
        operators._random_routing(chosen, values, values, topk=3)


@pytest.mark.usefixtures("here")
def test_operators_at_random() -> None:
    """Against loops."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        experts, workers, tokens = (int(number) for number in rng.integers(1, 6, 3))
        numbers = rng.integers(-1, experts * workers, (tokens, 2))
        counts = np.array([(numbers == e).sum() for e in range(experts * workers)])
        room = rng.integers(0, 4, experts)
        left, limited = room.copy(), []
        for at, count in enumerate(counts):
            taken = min(count, left[at % experts])
            left[at % experts] -= taken
            limited.append(int(taken))
        given = paddle.to_tensor(counts)
        assert operators._number_count(paddle.to_tensor(numbers), len(counts)).tolist() == counts.tolist()
        assert operators._limit_by_capacity(given, paddle.to_tensor(room), workers).tolist() == limited
        wanted, left = numbers.copy(), np.array(limited)
        for at in np.ndindex(*numbers.shape):
            if numbers[at] >= 0:
                left[numbers[at]] -= 1
                wanted[at] = numbers[at] if left[numbers[at]] >= 0 else -1
        found = operators._prune_gate_by_capacity(
            paddle.to_tensor(numbers), paddle.to_tensor(limited), experts, workers
        )
        assert found.tolist() == wanted.tolist()


def test_enable_and_disable() -> None:
    from paddle.incubate.distributed.models.moe import moe_layer, utils

    places = [
        (moe_layer, "global_scatter"),
        (moe_layer, "MoEGather"),
        (utils, "_assign_pos"),
        (operators, "_assign_pos"),
    ]
    before = [getattr(*place) for place in places]
    dist.enable()
    assert utils._assign_pos is operators._assign_pos
    assert not any(getattr(*place) is function for place, function in zip(places, before, strict=True))
    dist.disable()
    assert all(getattr(*place) is function for place, function in zip(places, before, strict=True))


# ---- a2a.paddle.moe --------------------------------------------------------------------------------------------------


def test_dispatch_and_combine(pool: Pool) -> None:
    for seed in range(6):
        pool.run(ranks.dispatch_and_combine, seed)


def test_planned(pool: Pool) -> None:
    pool.run(ranks.planned)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_dtypes(pool: Pool, dtype: str) -> None:
    pool.run(ranks.narrow, dtype)


def test_second_order(pool: Pool) -> None:
    for text in pool.run(ranks.second_order):
        assert "topk_weights of dispatch() have no derivatives of second order" in text


def test_lost_weights(pool: Pool) -> None:
    pool.run(ranks.lost_weights)


@pytest.mark.parametrize("what", ["expert", "no tensor", "signature", "rows", "bias"])
def test_mistakes(pool: Pool, what: str) -> None:
    first, *others = pool.run(ranks.refused, what)
    assert first in ("InvalidArgumentError", "TypeError", "UnsupportedError")
    assert others == ["MismatchError"] * (RANKS - 1)


@pytest.mark.parametrize("needs", [True, False], ids=["x needs a gradient", "x needs none"])
@pytest.mark.parametrize("trains_gate", [True, False], ids=["gate trains", "gate is frozen"])
def test_layer(pool: Pool, needs: bool, trains_gate: bool) -> None:
    pool.run(ranks.layer, needs, trains_gate)


def test_replicas_masks_and_moves(pool: Pool) -> None:
    pool.run(ranks.moved)
