"""Reductions, rooted operations, messages and objects of a2a.paddle against the oracle: every dtype and operation, in
tensors and lists, waited for in every way."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from rank_pool import Pool

paddle = pytest.importorskip("paddle")
import a2a.paddle as dist
from paddle_ranks import ALSO, DTYPES, compare, numbers, part, tensor

import a2a
from a2a import testing

pytestmark = pytest.mark.timeout(110)
OPS = {name: name.lower() for name in ("SUM", "MAX", "MIN", "PROD", "AVG")}
WAYS: list[dict[str, Any]] = [{"sync_op": True}, {"sync_op": False}, {"use_calc_stream": True}]


def defined(op: str, dtype: str) -> bool:
    if op == "AVG":
        return "float" in dtype or "complex" in dtype
    return op in ("SUM", "PROD") or "complex" not in dtype


def on(world: a2a.Communicator, n: int, fn: Any, *args: Any) -> Any:
    comm = part(world, n)
    return None if comm is None else fn(comm, *args)


def inputs(comm: a2a.Communicator, shape: Any, dtype: str) -> list[Any]:
    return [numbers(len(shape), rank, shape, dtype) for rank in range(comm.size)]


def reductions(comm: a2a.Communicator, dtypes: list[str]) -> list[str]:
    n, me, problems = comm.size, comm.rank, []
    ways = itertools.cycle(WAYS)
    for dtype, op, shape in itertools.product(dtypes, OPS, ((), (5,), (0, 2), (n, 3))):
        if not defined(op, dtype):
            continue
        arrays, way = inputs(comm, shape, dtype), next(ways)
        kind, root, what = getattr(dist.ReduceOp, op), n - 1, f"{op} of {dtype} {shape}, {n} ranks, {way}"
        folded = testing.fold(arrays, OPS[op])

        x = tensor(arrays[me])
        dist.stream.all_reduce(x, kind, group=comm, **way).wait()
        problems += compare(f"all_reduce, {what}", x, folded)

        x = tensor(arrays[me])
        dist.stream.reduce(x, root, kind, group=comm, **way).wait()
        problems += compare(f"reduce, {what}", x, folded if me == root else arrays[me])

        # Rank r gives array (r + p) to rank p.
        given = [arrays[(me + peer) % n] for peer in range(n)]
        expected = testing.fold([arrays[(rank + me) % n] for rank in range(n)], OPS[op])
        x = tensor(arrays[me])
        dist.stream.reduce_scatter(x, [tensor(array) for array in given], kind, group=comm, **way).wait()
        problems += compare(f"reduce_scatter of a list, {what}", x, expected)

        x = tensor(arrays[me])
        dist.stream.reduce_scatter(x, tensor(np.stack(given)), kind, group=comm, **way).wait()
        problems += compare(f"reduce_scatter of a tensor, {what}", x, expected)
    return problems


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_reductions(paddle_pool: Pool, ranks: int) -> None:
    dtypes = DTYPES + ALSO if ranks < 8 else ["bfloat16", "int64"]
    for found in paddle_pool.run(on, ranks, reductions, dtypes)[:ranks]:
        assert not found, "\n".join(found[:10])


def rooted(comm: a2a.Communicator, dtypes: list[str]) -> list[str]:
    n, me, problems = comm.size, comm.rank, []
    for at, (dtype, shape) in enumerate(itertools.product(dtypes, ((), (5,), (0, 2), (2, 3)))):
        arrays, way, root = inputs(comm, shape, dtype), WAYS[at % 3], at % n
        what, expected = f"{dtype} {shape} of rank {root}, {n} ranks, {way}", np.stack(arrays)

        x = tensor(arrays[me])
        dist.stream.broadcast(x, root, group=comm, **way).wait()
        problems += compare(f"broadcast, {what}", x, arrays[root])

        for given in ([tensor(array) for array in arrays], tensor(expected)):
            x = tensor(testing.poison(np.empty_like(arrays[me])))
            dist.stream.scatter(x, given if me == root else None, root, group=comm, **way).wait()
            problems += compare(f"scatter of {type(given).__name__}, {what}", x, arrays[me])

        for outs in ([], [paddle.zeros(shape, dtype) for _ in range(n)]):
            dist.stream.gather(tensor(arrays[me]), outs if me == root else None, root, group=comm, **way).wait()
            if me == root:
                assert len(outs) == n
                for out, array in zip(outs, arrays, strict=True):
                    problems += compare(f"gather, {what}", out, array)
    return problems


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_rooted(paddle_pool: Pool, ranks: int) -> None:
    for found in paddle_pool.run(on, ranks, rooted, DTYPES + ALSO)[:ranks]:
        assert not found, "\n".join(found[:10])


def messages(comm: a2a.Communicator, dtypes: list[str]) -> list[str]:
    n, me, problems = comm.size, comm.rank, []
    right, left = (me + 1) % n, (me - 1) % n
    for dtype, shape in itertools.product(dtypes, ((), (0, 2), (70, 300))):
        arrays = inputs(comm, shape, dtype)
        given, outs = tensor(arrays[me]), [paddle.zeros(shape, dtype) for _ in range(4)]
        if me % 2 == 0:
            dist.send(given, right, group=comm)
            dist.recv(outs[0], left, group=comm)
        else:
            dist.stream.recv(outs[0], left, group=comm, use_calc_stream=True)
            dist.stream.send(given, right, group=comm, sync_op=False).wait()
        tasks = dist.irecv(outs[1], left, group=comm), dist.isend(given, right, group=comm)
        dist.wait(outs[1], group=comm)
        assert all(task.is_completed() for task in tasks)
        ops = [dist.P2POp(dist.isend, given, peer, comm) for peer in (right, left)]
        ops += [dist.P2POp(paddle.distributed.irecv, outs[2], left, comm), dist.P2POp(dist.irecv, outs[3], right, comm)]
        started = dist.batch_isend_irecv(ops)
        assert len(started) == 4 and all(task.wait() for task in started)
        for peer, out in zip((left, left, left, right), outs, strict=True):
            problems += compare(f"{dtype} {shape} from rank {peer}, {n} ranks", out, arrays[peer])
    return problems


@pytest.mark.parametrize("ranks", [2, 4])
def test_messages(paddle_pool: Pool, ranks: int) -> None:
    for found in paddle_pool.run(on, ranks, messages, DTYPES + ALSO)[:ranks]:
        assert not found, "\n".join(found[:10])


def objects(comm: a2a.Communicator) -> None:
    n, me, root = comm.size, comm.rank, comm.size - 1
    gathered: list[Any] = ["before"]
    dist.all_gather_object(gathered, {"rank": me, "long": "x" * 1000 * me}, group=comm)
    assert gathered == ["before", *({"rank": rank, "long": "x" * 1000 * rank} for rank in range(n))]
    entries: list[Any] = [me, ("text", me)]
    dist.broadcast_object_list(entries, root, group=comm)
    assert entries == [root, ("text", root)]
    out: list[Any] = ["gone", "too"]
    dist.scatter_object_list(out, [[rank] * rank for rank in range(n)] if me == root else None, root, group=comm)
    assert out == [[me] * me]
    with pytest.raises(a2a.InvalidArgumentError if me != root else AssertionError, match=r"has 1 entries|nothing"):
        dist.broadcast_object_list([0] if me != root else [0, 1], root, group=comm)
        raise AssertionError("nothing raised")
    with pytest.raises(a2a.MismatchError if me else AttributeError, match="pickle"):
        dist.all_gather_object([], me or (lambda: 0), group=comm)
    comm.barrier()


@pytest.mark.parametrize("ranks", [1, 3])
def test_objects(paddle_pool: Pool, ranks: int) -> None:
    paddle_pool.run(on, ranks, objects)


def without_gradient(comm: a2a.Communicator) -> None:
    """Leaves and results that require a gradient are written, and stay what they are; what was saved of them before is
    known to be stale."""
    leaf, other = paddle.ones([2]), paddle.full([2], 3.0)
    leaf.stop_gradient = False
    result = leaf * other
    dist.all_reduce(leaf, group=comm)
    dist.broadcast(result, 0, group=comm)
    assert not leaf.stop_gradient and leaf.is_leaf and leaf.tolist() == [2.0, 2.0]
    assert not result.stop_gradient and not result.is_leaf
    saved = leaf * leaf
    dist.all_reduce(leaf, group=comm)
    with pytest.raises(RuntimeError, match="inplace"):
        saved.sum().backward()
    filled: list[Any] = []
    dist.gather(leaf, filled if comm.rank == 0 else None, 0, group=comm)
    assert all(out.stop_gradient for out in filled)


def slices(comm: a2a.Communicator) -> None:
    """Parts of tensors, which are tensors at an offset."""
    whole = paddle.arange(12.0)
    dist.all_reduce(whole[4:8], group=comm)
    assert whole.tolist() == [0, 1, 2, 3, 8, 10, 12, 14, 8, 9, 10, 11]
    dist.broadcast(whole[:2] if comm.rank else whole[10:], 0, group=comm)
    assert comm.rank == 0 or whole.tolist()[:3] == [10, 11, 2]
    halves = paddle.arange(4.0) + comm.rank
    dist.stream.reduce_scatter(halves[2 * comm.rank : 2 * comm.rank + 2], halves, group=comm)
    assert halves.tolist() == ([1, 3, 2, 3] if comm.rank == 0 else [1, 2, 5, 7])
    dist.stream.scatter(
        halves[:2] if comm.rank == 0 else halves[1:3], halves if comm.rank == 0 else None, 0, group=comm
    )
    assert halves.tolist() == ([1, 3, 2, 3] if comm.rank == 0 else [1, 2, 3, 7])
    listed = [whole[:2], whole[2:4]] if comm.rank == 1 else None
    dist.gather(halves[:2], listed, 1, group=comm)
    assert listed is None or whole.tolist()[:4] == [1, 3, 1, 2]


def test_slices(paddle_pool: Pool) -> None:
    paddle_pool.run(on, 2, slices)


def test_without_gradient(paddle_pool: Pool) -> None:
    paddle_pool.run(on, 2, without_gradient)
