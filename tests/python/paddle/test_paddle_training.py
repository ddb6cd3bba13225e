"""Programs that call Paddle itself, after a2a.paddle.enable(): its collectives, paddle.DataParallel and fleet."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from rank_pool import Pool

paddle = pytest.importorskip("paddle")
import a2a.paddle as dist
from a2a.paddle._reducer import Reducer
from paddle.distributed import fleet
from paddle_enabled import enabled

import a2a

pytestmark = pytest.mark.timeout(110)
RANKS, ROWS = 2, 4


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Ranks of their own, because they make Paddle's environment and change Paddle."""
    with Pool(RANKS) as pool:
        yield pool


# ---- Paddle's functions ----------------------------------------------------------------------------------------------


def collectives(comm: a2a.Communicator) -> None:
    """Calls of paddle.distributed that Gloo cannot do, and one that it does."""
    theirs, rank = paddle.distributed, comm.rank
    total = paddle.full([2], rank + 1).astype("int16")
    theirs.all_reduce(total)
    average = paddle.full([2], float(rank))
    theirs.all_reduce(average, theirs.ReduceOp.AVG)
    assert total.tolist() == [3, 3] and average.tolist() == [0.5, 0.5]
    part, out = paddle.zeros([1]), paddle.zeros([2])
    theirs.reduce_scatter(part, [paddle.full([1], 10.0 * peer + rank) for peer in range(2)])
    theirs.alltoall_single(out, paddle.arange(2.0) + 2 * rank)
    assert part.tolist() == [20.0 * rank + 1] and out.tolist() == [rank, rank + 2]
    peer = 1 - rank
    ops = [theirs.P2POp(theirs.isend, average, peer), theirs.P2POp(theirs.irecv, out, peer)]
    assert all(task.wait() for task in theirs.batch_isend_irecv(ops))
    assert out.tolist() == [0.5, 0.5]
    tasks = theirs.isend(paddle.full([2], rank + 5.0), peer), theirs.irecv(out, peer)
    theirs.wait(out)
    assert all(task.is_completed() for task in tasks) and out.tolist() == [peer + 5.0] * 2
    objects: list[Any] = []
    theirs.all_gather_object(objects, rank)
    assert objects == [0, 1]
    groups = [theirs.new_group([0, 1]) for _ in range(3)]  # of the same ranks
    theirs.broadcast(part, 1, groups[2])
    theirs.barrier(groups[1])
    assert part.tolist() == [21.0]


def test_collectives(pool: Pool) -> None:
    pool.run(enabled, collectives)


def test_enable_and_disable() -> None:
    places = [
        (paddle.distributed, "all_reduce"),
        (paddle.distributed, "new_group"),
        (paddle.distributed.stream, "broadcast"),
        (paddle.distributed.utils.moe_utils, "global_scatter"),
        (paddle.DataParallel, "init_reducer"),
    ]
    before = [getattr(*place) for place in places]
    dist.enable()
    dist.enable()
    assert paddle.distributed.stream.broadcast is dist.stream.broadcast
    assert not any(getattr(*place) is function for place, function in zip(places, before, strict=True))
    dist.disable()
    dist.disable()
    assert all(getattr(*place) is function for place, function in zip(places, before, strict=True))


# ---- DataParallel ----------------------------------------------------------------------------------------------------


class Model(paddle.nn.Layer):  # type: ignore[misc, unused-ignore]
    """Layers that some, all or none of the ranks use, one that is used twice, and a gradient that comes transposed."""

    def __init__(self, recomputes: bool = False) -> None:
        super().__init__()
        self.first, self.middle, self.extra, self.last = (paddle.nn.Linear(4, 4) for _ in range(4))
        self.never = paddle.nn.Linear(4, 4)
        self.recomputes = recomputes

    def forward(self, x: Any, uses_extra: bool) -> Any:
        hidden = self.first(x)
        hidden = fleet.utils.recompute(self.middle, hidden) if self.recomputes else self.middle(hidden)
        hidden = self.middle(paddle.tanh(hidden))
        if uses_extra:
            hidden = hidden + self.extra(hidden)
        return (hidden.unsqueeze(1) * self.last.weight.T).sum(-1) + self.last.bias


def loss(model: Any, rank: int, uses: list[bool], factor: float = 1.0) -> Any:
    rows = np.random.default_rng(rank).random((ROWS, 4), np.float32)
    return (model(paddle.to_tensor(rows) * factor, uses[rank]) ** 2).mean()


def gradients(model: Any) -> list[Any]:
    return [None if p.grad is None else p.grad.numpy() for p in model.parameters()]


def require_alike(found: list[Any], expected: list[Any]) -> None:
    assert [array is None for array in found] == [array is None for array in expected]
    for mine, wanted in zip(found, expected, strict=True):
        if mine is not None:
            np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-6)


def alone(model: Any, backward: Callable[[Any, int], None]) -> list[Any]:
    """Gradients of the whole batch in one process: the mean over the ranks of what each has."""
    copy = Model(model.recomputes)
    copy.set_state_dict(model.state_dict())
    for rank in range(RANKS):
        backward(copy, rank)
    return [None if array is None else array / RANKS for array in gradients(copy)]


def data_parallel(comm: a2a.Communicator, recomputes: bool, uses: list[bool]) -> None:
    paddle.seed(comm.rank)  # The ranks begin with different parameters, and DataParallel makes them alike.
    model = Model(recomputes)
    parallel = paddle.DataParallel(model, find_unused_parameters=True)

    def once(trained: Any, rank: int) -> None:
        loss(trained, rank, uses).backward()

    once(parallel, comm.rank)
    require_alike(gradients(model), alone(model, once))
    model.clear_gradients()

    def accumulated(trained: Any, rank: int) -> None:
        """Some passes within no_sync(), of other parameters than the last one has; then two passes of one forward."""
        for factor in (0.5, 2.0):
            if trained is parallel:
                with parallel.no_sync():
                    loss(trained, rank, [True, True], factor).backward()
            else:
                loss(trained, rank, [True, True], factor).backward()
        result = loss(trained, rank, uses)
        if not recomputes:  # of which Paddle dies in a second pass
            result.backward(retain_graph=True)
        result.backward()

    accumulated(parallel, comm.rank)
    require_alike(gradients(model), alone(model, accumulated))


@pytest.mark.parametrize("recomputes", [False, True], ids=["", "recomputes"])
@pytest.mark.parametrize("uses", [[False, False], [True, False], [True, True]], ids=["none", "one", "all"])
def test_data_parallel(pool: Pool, recomputes: bool, uses: list[bool]) -> None:
    pool.run(enabled, data_parallel, recomputes, uses)


def no_sync(comm: a2a.Communicator) -> None:
    parallel = paddle.DataParallel(Model())
    with parallel.no_sync():
        loss(parallel, comm.rank, [True, True]).backward()
    mine = gradients(parallel)
    copy = Model()
    copy.set_state_dict(parallel.state_dict())
    loss(copy, comm.rank, [True, True]).backward()
    require_alike(mine, gradients(copy))


def test_no_sync(pool: Pool) -> None:
    pool.run(enabled, no_sync)


class Scale(paddle.nn.Layer):  # type: ignore[misc, unused-ignore]
    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.weight = self.create_parameter([2], dtype=dtype)

    def forward(self, x: Any) -> Any:
        return x * self.weight.astype("float32")  # Paddle has few kernels for float16 on the CPU


def dtypes(comm: a2a.Communicator) -> None:
    for dtype in ("float16", "bfloat16", "float64"):
        layer = Scale(dtype)
        parallel = paddle.DataParallel(layer)
        parallel(paddle.full([1, 2], comm.rank + 1.0)).sum().backward()
        assert dtype in str(layer.weight.grad.dtype)
        assert layer.weight.grad.astype("float32").tolist() == [1.5, 1.5]


def test_dtypes(pool: Pool) -> None:
    pool.run(enabled, dtypes)


def let_go(comm: a2a.Communicator) -> None:
    """The model, and what averages its gradients, end with the last reference; layers that live on go on alone."""
    layer = paddle.nn.Linear(2, 1)
    parallel = paddle.DataParallel(layer)
    parallel(paddle.ones([1, 2])).sum().backward()
    assert isinstance(parallel._reducer, Reducer)
    ended = weakref.ref(parallel._reducer)
    del parallel
    gc.collect()
    assert ended() is None
    layer.clear_gradients()
    layer(paddle.full([1, 2], comm.rank + 1.0)).sum().backward()
    assert layer.weight.grad.tolist() == [[comm.rank + 1.0]] * 2


def test_let_go(pool: Pool) -> None:
    pool.run(enabled, let_go)


def out_of_step(comm: a2a.Communicator) -> tuple[str, str]:
    """Rank 0 runs a backward pass more than rank 1, which then meets rank 1's next one."""
    parallel = paddle.DataParallel(paddle.nn.Linear(2, 1))
    result = parallel(paddle.ones([1, 2])).sum()
    result.backward(retain_graph=True)
    if comm.rank == 1:
        result = parallel(paddle.ones([1, 2])).sum()
    with pytest.raises(SystemError) as error:
        result.backward()
    comm.barrier()
    return type(error.value.__cause__).__name__, str(error.value.__cause__)


def sparse_gradient(comm: a2a.Communicator) -> tuple[str, str]:
    """On rank 0 only, and not the last gradient."""
    layers = paddle.nn.Embedding(4, 2, sparse=comm.rank == 0), paddle.nn.Linear(2, 2), paddle.nn.Linear(2, 2)
    parallel = paddle.DataParallel(paddle.nn.Sequential(*layers))
    with pytest.raises(SystemError) as error:
        parallel(paddle.to_tensor([1])).sum().backward()
    total = paddle.ones([1])
    dist.all_reduce(total)  # The ranks are in step.
    assert total.tolist() == [2.0]
    return type(error.value.__cause__).__name__, str(error.value.__cause__)


def test_errors(pool: Pool) -> None:
    """Come out of backward() as the cause of what Paddle makes of them, on every rank."""
    for kind, text in pool.run(enabled, out_of_step):
        assert kind == "MismatchError" and "average gradients of different steps" in text
    for kind, text in pool.run(enabled, sparse_gradient):
        assert kind in ("InvalidArgumentError", "MismatchError") and "is not a dense tensor" in text


# ---- fleet -----------------------------------------------------------------------------------------------------------


def steps(model: Any, optimizer: Any, backward: Callable[[Any], None]) -> list[Any]:
    for _ in range(3):
        backward(model)
        optimizer.step()
        optimizer.clear_grad()
    return [p.numpy() for p in model.parameters()]


def adam(model: Any) -> Any:
    clip = paddle.nn.ClipGradByGlobalNorm(0.1)
    return paddle.optimizer.AdamW(0.05, parameters=model.parameters(), grad_clip=clip)


def fleet_trains(comm: a2a.Communicator) -> None:
    """fleet's data parallelism ends with the parameters of one process that has the whole batch."""
    fleet.init(is_collective=True)
    uses = [True, True]
    paddle.seed(comm.rank)
    model = Model()
    parallel, optimizer = fleet.distributed_model(model), fleet.distributed_optimizer(adam(model))
    assert isinstance(parallel._reducer, Reducer)
    copy = Model()
    copy.set_state_dict(model.state_dict())
    found = steps(parallel, optimizer, lambda trained: loss(trained, comm.rank, uses).backward())
    expected = steps(
        copy, adam(copy), lambda trained: sum(loss(trained, rank, uses) / RANKS for rank in range(RANKS)).backward()
    )
    for mine, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-5)


def fused_gradients(comm: a2a.Communicator) -> None:
    """What fleet does for models that average their gradients themselves, one of which comes transposed."""
    paddle.seed(3)
    model = Model()

    def backward(trained: Any, rank: int) -> None:
        loss(trained, rank, [True, True]).backward()

    expected = alone(model, backward)
    backward(model, comm.rank)
    assert not model.last.weight.grad.is_contiguous()
    fleet.utils.hybrid_parallel_util.fused_allreduce_gradients(list(model.parameters()), None)
    require_alike(gradients(model), expected)


def test_fleet(pool: Pool) -> None:
    pool.run(enabled, fleet_trains)
    pool.run(enabled, fused_gradients)
