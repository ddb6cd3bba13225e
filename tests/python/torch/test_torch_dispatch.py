"""What looks at torch's operators sees those of a process group, and tensors that have their values in others."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from rank_pool import Pool
from torch_worlds import group

import a2a

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)

SIZE = 2


def all_calls(at: Any, rank: int) -> dict[str, Any]:
    """Each operation of torch.distributed, once, and what it leaves on this rank."""
    import torch.distributed as dist

    x, root = torch.full((2,), rank + 1.0), dist.get_global_rank(at, 0)

    def several() -> list[Any]:
        return [torch.zeros(2) for _ in range(SIZE)]

    def parts() -> list[Any]:
        return [x + 10 * peer for peer in range(SIZE)]

    results: dict[str, Any] = {}
    results["allreduce_"] = x.clone()
    dist.all_reduce(results["allreduce_"], group=at)
    results["broadcast_"] = x.clone()
    dist.broadcast(results["broadcast_"], root, group=at)
    reduced = x.clone()
    dist.reduce(reduced, root, group=at)
    results["reduce_"] = reduced if rank == 0 else x
    results["allgather_"] = several()
    dist.all_gather(results["allgather_"], x, group=at)
    results["_allgather_base_"] = torch.zeros(2 * SIZE)
    dist.all_gather_single(results["_allgather_base_"], x, group=at)
    results["gather_"] = several() if rank == 0 else None
    dist.gather(x, results["gather_"], root, group=at)
    results["scatter_"] = torch.zeros(2)
    dist.scatter(results["scatter_"], parts() if rank == 0 else None, root, group=at)
    results["reduce_scatter_"] = torch.zeros(2)
    dist.reduce_scatter(results["reduce_scatter_"], parts(), group=at)
    results["_reduce_scatter_base_"] = torch.zeros(2)
    dist.reduce_scatter_single(results["_reduce_scatter_base_"], torch.cat(parts()), group=at)
    results["alltoall_"] = several()
    dist.all_to_all(results["alltoall_"], parts(), group=at)
    results["alltoall_base_"] = torch.zeros(2 * SIZE)
    dist.all_to_all_single(results["alltoall_base_"], torch.cat(parts()), group=at)
    results["recv_"] = torch.zeros(2)
    sent = dist.isend(x, group=at, group_dst=1 - rank)
    work = dist.irecv(results["recv_"], group=at, group_src=1 - rank)
    assert sent is not None and work is not None
    work.wait()
    sent.wait()
    results["send"] = x
    dist.barrier(group=at)
    results["barrier"] = torch.zeros(0)
    work = dist.all_reduce(x, group=at, async_op=True)
    assert work is not None and work.wait()
    results["async"] = x
    return results


def as_lists(results: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [one.tolist() for one in found] if isinstance(found, list) else None if found is None else found.tolist()
        for name, found in results.items()
    }


def look(comm: a2a.Communicator, backend: str) -> Any:
    """What a mode sees, and the results with and without it."""
    at = group(comm, backend, SIZE)
    if comm.rank >= SIZE:
        return None
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if op.namespace == "c10d":
                self.names.append(op._schema.name.partition("::")[2])
            return op(*args, **(kwargs or {}))

    plain = as_lists(all_calls(at, comm.rank))
    with Seen() as seen:
        results = as_lists(all_calls(at, comm.rank))
    assert results == plain
    with CommDebugMode() as counted:
        assert as_lists(all_calls(at, comm.rank)) == plain
    assert as_lists(all_calls(at, comm.rank)) == plain
    assert "_dispatch.py" not in torch._C._dispatch_dump("c10d::allreduce_")  # Gloo has its own kernels again
    return plain, sorted(seen.names), counted.get_total_counts()


def test_modes_see_operators(ranks: Pool) -> None:
    """As on Gloo."""
    ours, gloo = (ranks.run(look, backend)[:SIZE] for backend in ("backend", "functions"))
    assert ours == gloo
    plain, names, counted = ours[0]
    assert set(names) == {*plain} - {"async"} and counted >= 12


def run_fake(comm: a2a.Communicator) -> None:
    from torch._subclasses import FakeTensorMode

    at = group(comm, "backend", SIZE)
    if comm.rank >= SIZE:
        return
    with FakeTensorMode():
        results = all_calls(at, comm.rank)
    assert type(results["async"]).__name__ == "FakeTensor" and results["_allgather_base_"].shape == (2 * SIZE,)
    if comm.rank == 0:  # nobody takes part
        with FakeTensorMode():
            at.allreduce(torch.ones(2)).wait()
    x = torch.ones(2)
    at.allreduce(x).wait()
    assert x.tolist() == [SIZE] * 2


def test_fake_tensors(ranks: Pool) -> None:
    ranks.run(run_fake)


def refuse_under_mode(comm: a2a.Communicator) -> None:
    """An error comes out of the operator, and the mode after it works."""
    from torch.distributed.tensor.debug import CommDebugMode

    at = group(comm, "backend", SIZE)
    if comm.rank >= SIZE:
        return
    with CommDebugMode():
        with pytest.raises(a2a.MismatchError):
            at.allreduce(torch.ones(2 + comm.rank)).wait()
        x = torch.ones(2)
        at.allreduce(x).wait()
        sparse = torch.eye(2).to_sparse()
        at.allreduce([sparse]).wait()
    assert x.tolist() == [2, 2] and sparse.to_dense().tolist() == [[2, 0], [0, 2]]


def test_errors_under_modes(ranks: Pool) -> None:
    ranks.run(refuse_under_mode)


# ---- tensors of functional collectives, which have not been waited for -----------------------------------------------


def give_async_tensors(comm: a2a.Communicator) -> None:
    import a2a.torch
    import a2a.torch.moe
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    warnings.simplefilter("ignore", FutureWarning)
    at, sub = group(comm, "backend", SIZE), group(comm, "communicator", SIZE)
    if comm.rank >= SIZE:
        return
    total = SIZE * (SIZE + 1) / 2

    def late() -> Any:
        found = functional.all_reduce(torch.full((4,), comm.rank + 1.0), "sum", at)
        assert type(found).__name__ == "AsyncCollectiveTensor"
        return found

    for module, where in ((dist, at), (a2a.torch, at), (a2a.torch, sub)):
        x = late()
        module.all_reduce(x, group=where)
        assert x.tolist() == [SIZE * total] * 4
        outputs = [torch.zeros(4) for _ in range(SIZE)]
        module.all_gather(outputs, late(), group=where)
        assert torch.stack(outputs).eq(total).all()
        module.all_to_all(outputs, [late() + 1, late()], group=where)
        module.all_to_all(outputs, [late(), late()], group=where)
        assert torch.stack(outputs).eq(total).all()
        output = late()  # received into
        module.all_to_all_single(output, late()[:2].repeat(2), group=where)
        assert output.tolist() == [total] * 4
        module.broadcast(late(), group=where, group_src=0)
        module.reduce_scatter(outputs[0], [late(), late()], group=where)
        assert outputs[0].tolist() == [SIZE * total] * 4
    sub.allreduce(x := late())
    assert x.tolist() == [SIZE * total] * 4
    ep = a2a.torch.moe.ExpertParallel(at, SIZE)
    tokens = functional.all_reduce(torch.ones(3, 4), "sum", at)
    routed = ep.dispatch(tokens, torch.tensor([[0], [1], [1]]))
    assert torch.equal(ep.combine(routed.x, routed), torch.full((3, 4), float(SIZE)))


def test_async_collective_tensors(ranks: Pool) -> None:
    ranks.run(give_async_tensors)
