"""Every operation of c10d, by each way to reach it, against the oracle: all dtypes, all folds, contiguous tensors and
others, at once and asynchronous."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folds import defined, dtype_of
from rank_pool import Pool
from torch_worlds import WAYS, calls, group, true_backends

import a2a
from a2a import testing

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)

SIZE = 3
SHAPE = (4, 3)
FOLDS = {"sum": "SUM", "avg": "AVG", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR",
         "bxor": "BXOR"}  # fmt: skip
DTYPES = ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16",
          "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"]  # fmt: skip
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda tensor: tensor.clone(),
    "every second column": lambda tensor: torch.stack([tensor, tensor], -1)[..., 0],
    "transposed": lambda tensor: tensor.transpose(0, -1).contiguous().transpose(0, -1),
    "wants a gradient": lambda tensor: (
        tensor.clone().requires_grad_() if tensor.is_floating_point() and tensor.itemsize > 1 else tensor.clone()
    ),
}


def values(rank: int, dtype: str = "float32", shape: tuple[int, ...] = SHAPE) -> Any:
    """Of a rank; small, so that products stay finite."""
    kind = getattr(torch, dtype)
    numbers = np.random.default_rng(rank).integers(0, 2 if dtype == "bool" else 4, shape)
    return torch.from_numpy(numbers).to(kind)


def array(tensor: Any) -> np.ndarray[Any, Any]:
    kind = dtype_of(str(tensor.dtype).removeprefix("torch."))
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)  # a tensor that is contiguous may have other strides
    flat.view(tensor.shape).copy_(tensor.detach())
    return flat.view(torch.uint8).numpy().view(kind).reshape(tensor.shape)


def check(actual: Any, expected: np.ndarray[Any, Any], *what: Any) -> None:
    assert testing.first_difference(array(actual), expected) is None, what


def end(work: Any, async_op: bool) -> None:
    assert (work is not None) == async_op, work
    if async_op:
        assert work.wait() is True and work.is_completed() and work.is_success()


def everyone(way: str) -> Callable[[a2a.Communicator], Any]:
    return lambda comm: group(comm, way, SIZE)


def all_reduces(comm: a2a.Communicator, way: str, dtype: str) -> None:
    at, dist = group(comm, way, SIZE), calls(way)
    if comm.rank >= SIZE:
        return
    inputs = [array(values(rank, dtype)) for rank in range(SIZE)]
    for (op, name), (layout, make), async_op in itertools.product(FOLDS.items(), LAYOUTS.items(), (False, True)):
        if not defined(op, dtype) or (dtype.startswith("complex") and op == "prod"):  # torch has no product of these
            continue
        tensor = make(values(comm.rank, dtype))
        end(dist.all_reduce(tensor, getattr(dist.ReduceOp, name), group=at, async_op=async_op), async_op)
        check(tensor, testing.fold(inputs, op), name, layout, async_op)


@pytest.mark.parametrize("way", WAYS)
def test_all_reduce(ranks: Pool, way: str) -> None:
    for dtype in DTYPES:
        ranks.run(all_reduces, way, dtype)


def other_reductions(comm: a2a.Communicator, way: str) -> None:
    at, dist, rank = group(comm, way, SIZE), calls(way), comm.rank
    if rank >= SIZE:
        return
    shape, counts = (SIZE * 2, 3), [2, 0, 5]
    inputs = [array(values(peer, shape=shape)) for peer in range(SIZE)]
    folded = testing.fold(inputs)
    uneven = [[values(10 * peer + to, shape=(count, 2)) for to, count in enumerate(counts)] for peer in range(SIZE)]
    for (layout, make), async_op in itertools.product(LAYOUTS.items(), (False, True)):
        options: dict[str, Any] = {"group": at, "async_op": async_op}
        tensor = make(values(rank, shape=shape))
        end(dist.reduce(tensor, group_dst=1, **options), async_op)
        check(tensor, folded if rank == 1 else inputs[rank], "reduce", layout)
        output = make(torch.zeros(2, 3))
        end(dist.reduce_scatter_tensor(output, make(values(rank, shape=shape)), **options), async_op)
        check(output, np.split(folded, SIZE)[rank], "reduce_scatter_tensor", layout)
        parts = [make(part) for part in values(rank, shape=shape).chunk(SIZE)]
        output = make(torch.zeros(2, 3))
        end(dist.reduce_scatter(output, parts, dist.ReduceOp.MAX, **options), async_op)
        check(output, np.split(testing.fold(inputs, "max"), SIZE)[rank], "reduce_scatter", layout)
        output = make(torch.zeros(counts[rank], 2))
        end(dist.reduce_scatter(output, [make(part) for part in uneven[rank]], **options), async_op)
        check(output, testing.fold([array(lists[rank]) for lists in uneven]), "uneven reduce_scatter", layout)
        factor = torch.distributed._make_nccl_premul_sum(0.5)
        tensor = make(values(rank))
        end(dist.all_reduce(tensor, factor, **options), async_op)
        check(tensor, testing.fold([array(values(peer) * 0.5) for peer in range(SIZE)]), "PREMUL_SUM", layout)
        output = make(torch.zeros(2, 3))
        end(dist.reduce_scatter_tensor(output, values(rank, shape=shape), factor, **options), async_op)
        check(output, np.split(folded * 0.5, SIZE)[rank].astype(np.float32), "PREMUL_SUM", layout)


def rooted(comm: a2a.Communicator, way: str, dtype: str) -> None:
    at, dist, rank = group(comm, way, SIZE), calls(way), comm.rank
    if rank >= SIZE:
        return
    inputs = [values(peer, dtype) for peer in range(SIZE)]
    for root, (layout, make), async_op in itertools.product(range(SIZE), LAYOUTS.items(), (False, True)):
        options: dict[str, Any] = {"group": at, "async_op": async_op}
        tensor = make(inputs[rank])
        end(dist.broadcast(tensor, group_src=root, **options), async_op)
        check(tensor, array(inputs[root]), "broadcast", layout)
        outputs = [make(torch.zeros_like(inputs[0])) for _ in range(SIZE)] if rank == root else None
        end(dist.gather(make(inputs[rank]), outputs, group_dst=root, **options), async_op)
        for output, expected in zip(outputs or [], inputs, strict=False):
            check(output, array(expected), "gather", layout)
        tensor = make(torch.zeros_like(inputs[0]))
        end(dist.scatter(tensor, [make(one) for one in inputs] if rank == root else None, group_src=root, **options),
            async_op)  # fmt: skip
        check(tensor, array(inputs[rank]), "scatter", layout)


def exchanges(comm: a2a.Communicator, way: str) -> None:
    at, dist, rank = group(comm, way, SIZE), calls(way), comm.rank
    if rank >= SIZE:
        return
    sends = [array(values(peer, shape=(SIZE * 2, 3))) for peer in range(SIZE)]
    arrived = testing.alltoall(sends)[rank]
    inputs = [values(peer, shape=(peer + 1, 3)) for peer in range(SIZE)]
    for (layout, make), async_op in itertools.product(LAYOUTS.items(), (False, True)):
        if layout == "wants a gradient":  # these refuse an output that does
            continue
        options: dict[str, Any] = {"group": at, "async_op": async_op}
        output = make(torch.zeros(SIZE * 2, 3))
        end(dist.all_to_all_single(output, make(values(rank, shape=(SIZE * 2, 3))), **options), async_op)
        check(output, arrived, "all_to_all_single", layout)
        outputs = [make(torch.zeros(2, 3)) for _ in range(SIZE)]
        parts = [make(part) for part in values(rank, shape=(SIZE * 2, 3)).chunk(SIZE)]
        end(dist.all_to_all(outputs, parts, **options), async_op)
        check(torch.cat(outputs), arrived, "all_to_all", layout)
        outputs = [make(torch.zeros_like(one)) for one in inputs]
        end(dist.all_gather(outputs, make(inputs[rank]), **options), async_op)
        check(torch.cat(outputs), array(torch.cat(inputs)), "all_gather", layout)
        output = make(torch.zeros(SIZE * SIZE * 2, 3))
        end(dist.all_gather_into_tensor(output, make(values(rank, shape=(SIZE * 2, 3))), **options), async_op)
        check(output, np.concatenate(sends), "all_gather_into_tensor", layout)


@pytest.mark.parametrize("way", WAYS)
def test_the_others(ranks: Pool, way: str) -> None:
    ranks.run(other_reductions, way)
    ranks.run(exchanges, way)
    for dtype in ("float32", "bool", "bfloat16", "complex64", "float8_e5m2"):
        ranks.run(rooted, way, dtype)


def sparse(comm: a2a.Communicator, way: str) -> None:
    at, dist, rank = group(comm, way, SIZE), calls(way), comm.rank
    if rank >= SIZE:
        return

    def made(peer: int) -> Any:
        """Rows that ranks have in common, one twice, and none on the last rank."""
        rows = torch.tensor([[peer, 1, 4, 1]]) if peer < SIZE - 1 else torch.empty(1, 0, dtype=torch.int64)
        return torch.sparse_coo_tensor(rows, values(peer, shape=(rows.shape[1], 3)), (6, 3))

    expected = testing.fold([array(made(peer).to_dense()) for peer in range(SIZE)])
    for async_op in (False, True):
        tensor = made(rank)
        end(dist.all_reduce(tensor, group=at, async_op=async_op), async_op)
        assert tensor.is_sparse and tensor.is_coalesced()
        check(tensor.to_dense(), expected)
    with pytest.raises(a2a.InvalidArgumentError, match="sparse tensors are added up"):
        dist.all_reduce(made(rank), dist.ReduceOp.MAX, group=at)
    with pytest.raises(a2a.MismatchError, match="sparse"):
        dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (rank + 2,)), group=at)
    dist.barrier(group=at)


def several_at_once(comm: a2a.Communicator) -> None:
    """What torch begins together, and what C++ callers and internals of torch ask of a group."""
    import torch.distributed as dist

    at, rank = group(comm, "backend", SIZE), comm.rank
    if rank >= SIZE:
        return
    expected = testing.fold([array(values(peer)) for peer in range(SIZE)])
    for async_ops, device in itertools.product((False, True), (None, torch.device("cpu"))):
        tensors = [values(rank), values(rank)]
        with dist._coalescing_manager(at, device, async_ops) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor, group=at)
        manager.wait()
        for tensor in tensors:
            check(tensor, expected)
    with dist._coalescing_manager(at, torch.device("cpu"), async_ops=True) as manager:
        broadcast = dist.broadcast(tensor := values(rank), group_src=1, group=at, async_op=True)
    manager.wait()
    assert broadcast.is_completed()
    check(tensor, array(values(1)))
    at = at._get_backend(torch.device("cpu"))  # in Torch 2.14 another object
    at._start_coalescing()  # of a block that raises, so that no _end_coalescing() follows
    at.allreduce(values(rank)).wait()
    at._start_coalescing()
    works = [at.allreduce(values(rank)), at.allreduce(values(rank))]
    assert at._end_coalescing()._works == works and "allreduce" not in vars(at)
    at = group(comm, "backend", SIZE)
    lists = [[torch.zeros(SHAPE), torch.zeros(2)] for _ in range(SIZE)]
    dist.all_gather_coalesced(lists, [values(rank), torch.full((2,), float(rank))], group=at)
    for peer, (first, second) in enumerate(lists):
        check(first, array(values(peer)))
        assert second.tolist() == [peer, peer]
    before = at._get_sequence_number_for_group()
    dist.barrier(at)
    assert at._get_sequence_number_for_group() == before + 1
    assert dist.distributed_c10d._get_object_coll_device(at) == "cpu"
    assert dist.distributed_c10d._device_capability(at)[-1] == "cpu"
    with pytest.raises(RuntimeError, match="No backend type associated with device type"):
        at._get_backend(torch.device("meta"))


@pytest.mark.parametrize("way", WAYS)
def test_sparse_tensors(ranks: Pool, way: str) -> None:
    ranks.run(sparse, way)


def test_several_operations_at_once(ranks: Pool) -> None:
    ranks.run(several_at_once)


def mistakes(comm: a2a.Communicator, way: str) -> None:
    """The same on every rank, or on one, of which the others hear."""
    at, dist, rank = group(comm, way, SIZE), calls(way), comm.rank
    if rank >= SIZE:
        return
    op, x = dist.ReduceOp, torch.ones(6)
    everywhere: list[tuple[str, Callable[[], Any]]] = [
        ("avg", lambda: dist.all_reduce(x.int(), op.AVG, group=at)),
        ("bor", lambda: dist.all_reduce(x.clone(), op.BOR, group=at)),
        ("bxor", lambda: dist.reduce_scatter_tensor(torch.ones(2), x, op.BXOR, group=at)),
        ("share memory", lambda: dist.all_reduce(torch.ones(1).expand(6), group=at)),
        ("has as many|bytes", lambda: dist.reduce_scatter_tensor(torch.ones(3), x, group=at)),
        ("not as many elements", lambda: dist.scatter(
            torch.ones(2), [torch.ones(3)] * SIZE if rank == 0 else None, group_src=0, group=at)),
    ]  # fmt: skip
    for words, call in everywhere:
        expected = a2a.InvalidArgumentError if words != "not as many elements" or rank == 0 else a2a.MismatchError
        with pytest.raises(expected, match=words):
            call()
    alone: list[tuple[str, Callable[[bool], Any]]] = [
        ("which expects 0", lambda bad: dist.broadcast(x.clone(), group_src=bad, group=at)),
        ("reduces with", lambda bad: dist.all_reduce(x.clone(), op.MAX if bad else op.SUM, group=at)),
        ("float", lambda bad: dist.all_reduce(x.double() if bad else x.clone(), group=at)),
        ("element|bytes", lambda bad: dist.all_reduce(torch.ones(7 if bad else 6), group=at)),
    ]
    for words, disagree in alone:
        with pytest.raises(a2a.MismatchError, match=words):
            disagree(rank == 1)
    dist.all_reduce(x, group=at)
    assert x.tolist() == [SIZE] * 6


@pytest.mark.parametrize("way", WAYS)
def test_mistakes(ranks: Pool, way: str) -> None:
    ranks.run(mistakes, way)


def threads() -> set[str]:
    return {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}


def alone(comm: a2a.Communicator) -> None:
    """In processes of their own, where nobody has made a Gloo group."""
    import a2a.torch
    import torch.distributed as dist
    from torch_worlds import meeting_point

    dist.init_process_group("a2a", store=meeting_point(comm), rank=comm.rank, world_size=comm.size)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    objects: list[Any] = [None] * comm.size
    dist.all_gather_object(objects, comm.rank)
    assert tensor.tolist() == [comm.size] * 2 and objects == list(range(comm.size))
    at = dist.group.WORLD
    backend = at._get_backend(torch.device("cpu"))
    assert not isinstance(at, dist.ProcessGroupGloo) and torch.device("cpu") in at._device_types
    if true_backends():
        assert isinstance(backend, a2a.torch.BackendA2A)
    else:
        assert backend is at
        with pytest.raises(RuntimeError, match="No backend type associated"):
            dist.ProcessGroup._get_backend(at, torch.device("cpu"))  # what the base class knows of
    assert not [name for name in threads() if "gloo" in name.lower() or "pt_gloo" in name], threads()
    dist.destroy_process_group()
    # As the check for threads is worth something: with Gloo there are some.
    dist.init_process_group("gloo", store=meeting_point(comm), rank=comm.rank, world_size=comm.size)
    assert [name for name in threads() if "gloo" in name.lower()], threads()
    dist.destroy_process_group()


def test_there_is_no_gloo() -> None:
    with Pool(2) as pool:
        pool.run(alone)


def too_late(comm: a2a.Communicator, seconds: float) -> str:
    import torch.distributed as dist

    at = group(comm, "backend", 2, "too late", seconds)
    if comm.rank == 0:
        with pytest.raises(a2a.TimeoutError, match=" timeout ") as caught:
            dist.all_reduce(torch.ones(2), group=at)
        return str(caught.value)
    return ""


def monitored(comm: a2a.Communicator) -> str:
    import a2a.torch as dist

    at = group(comm, "backend", SIZE)
    if comm.rank >= SIZE:
        return ""
    dist.monitored_barrier(at, timedelta(seconds=20))
    dist.monitored_barrier(at, timedelta(seconds=20), wait_all_ranks=True)
    if comm.rank == 0:
        with pytest.raises(RuntimeError) as caught:
            dist.monitored_barrier(at, timedelta(seconds=0.3), wait_all_ranks=True)
    dist.barrier(at)  # nothing is broken
    return str(caught.value) if comm.rank == 0 else ""


def test_the_words_of_errors(ranks: Pool) -> None:
    assert "rank 1" in ranks.run(too_late, 0.5)[0]
    assert ranks.run(monitored)[0] == "[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 300 ms"


def profiled(comm: a2a.Communicator, way: str) -> list[tuple[str, list[Any], Any]]:
    at, dist = group(comm, way, SIZE), calls(way)
    if comm.rank >= SIZE:
        return []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        dist.all_reduce(torch.ones(4, 3), group=at)
        dist.all_to_all_single(torch.ones(SIZE), torch.ones(SIZE), group=at)
        dist.all_to_all(list(torch.ones(SIZE, 2)), list(torch.ones(SIZE, 2)), group=at, async_op=True).wait()
        dist.barrier(group=at)
    return [(event.name, event.input_shapes, event.kwinputs.get("bytes"))
            for event in profile.events() if event.name.startswith("a2a:")]  # fmt: skip


@pytest.mark.parametrize("way", ["functions", "backend"])
def test_the_profiler_shows_operations_and_their_bytes(ranks: Pool, way: str) -> None:
    for events in ranks.run(profiled, way)[:SIZE]:
        assert events == [
            ("a2a:all_reduce", [[4, 3]], 48),
            ("a2a:all_to_all_single", [[SIZE]], 4 * SIZE),
            ("a2a:all_to_all", [[2]] * SIZE, 8 * SIZE),
            ("a2a:barrier", [], 0),
        ]


def abort(comm: a2a.Communicator) -> None:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    at = dist.new_group([0, 1], backend="a2a") if group(comm, "backend", 2) is not None else None
    if comm.rank == 0:
        c10d._abort_process_group(at)
    elif comm.rank == 1:
        with pytest.raises(a2a.AbortedError, match="was aborted"):
            dist.all_reduce(torch.ones(2), group=at)
            dist.all_reduce(torch.ones(2), group=at)
        dist.destroy_process_group(at)


def test_abort(ranks: Pool) -> None:
    ranks.run(abort)
