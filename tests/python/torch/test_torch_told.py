"""Whatever one rank's call raises before its operation has a number, such as for want of memory or in a signal handler,
the peers raise MismatchError at once, and the next call works on all."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from rank_pool import Pool
from torch_worlds import calls, group

import a2a

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)

SIZE = 2
SOON = 8  # seconds; the deadline is later


def all_calls(way: str, at: Any, rank: int) -> dict[str, Any]:
    import torch_faults as faults

    dist = calls(way)
    made = faults.functions(dist, at, rank)
    if way != "backend":
        made |= faults.sparse(dist, at)
    if way == "communicator":
        made |= faults.differentiable(at) | faults.experts(at) | faults.quantized(at) | faults.messages(dist, at, rank)
    return made


def outcome(call: Callable[[], object]) -> str:
    began = time.monotonic()
    try:
        call()
        said = "returned"
    except BaseException as error:
        said = type(error).__name__
    return said if time.monotonic() - began < SOON else f"{said} late"


def strike(comm: a2a.Communicator, way: str, fault: str) -> dict[str, str] | None:
    """Name of the call -> what became of it on this rank."""
    import torch_faults as faults

    at = group(comm, way, SIZE, seconds=20)
    if comm.rank >= SIZE:
        return None
    struck, said = comm.rank == 0, {}
    raises = {"memory": faults.no_memory, "signal": faults.struck_by_signal}
    for name, call in all_calls(way, at, comm.rank).items():
        wrap = {"none": lambda _: None}.get(fault, lambda tensor: tensor) if struck else lambda tensor: tensor
        if struck and fault in raises:
            wrap = faults.hostile(raises[fault])
        with faults.without(*faults.ALLOCATIONS) if struck and fault == "allocation" else nullcontext():
            said[name] = outcome(lambda call=call, wrap=wrap: call(wrap))  # type: ignore[misc]
        whole = torch.full((SIZE,), float(comm.rank))
        calls(way).all_reduce(whole, group=at)
        assert whole.tolist() == [1.0] * SIZE, f"after {name}"
    return said


def judge(ranks: Pool, way: str, fault: str, expected: str) -> None:
    struck, peer = ranks.run(strike, way, fault)[:SIZE]
    for name, said in struck.items():
        wanted = "returned" if said == "returned" else "MismatchError"
        assert peer[name] == wanted, f"{name}: rank 0 {said}, rank 1 {peer[name]}"
    assert expected in struck.values()


@pytest.mark.parametrize(
    ("fault", "expected"), [("memory", "MemoryError"), ("signal", "Struck"), ("none", "ArgumentTypeError")]
)
@pytest.mark.parametrize("way", ["functions", "communicator"])
def test_bad_tensor(ranks: Pool, way: str, fault: str, expected: str) -> None:
    judge(ranks, way, fault, expected)


@pytest.mark.parametrize("way", ["functions", "communicator", "backend"])
def test_no_memory(ranks: Pool, way: str) -> None:
    judge(ranks, way, "allocation", "MemoryError")


def strike_outputs(comm: a2a.Communicator) -> list[str] | None:
    """Outputs of rank 0 that torch does not copy into."""
    import a2a.torch as dist
    from a2a.torch import moe

    at = group(comm, "communicator", SIZE, seconds=20)
    if comm.rank >= SIZE:
        return None
    struck, own = comm.rank == 0, torch.ones(2)
    shared, inference = torch.empty(1).expand(2), torch.inference_mode()(lambda: torch.ones(2).to_sparse())()
    outs = [torch.empty(2), shared] if struck else None
    said = [
        outcome(lambda: dist.gather(own, outs, 0, group=at)),
        outcome(lambda: dist.all_reduce(inference if struck else own.to_sparse(), group=at)),
        outcome(lambda: dist.reduce_scatter(own.clone(), [own, own], group=at)),
    ]

    class Raising(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            raise MemoryError

    said.append(outcome(lambda: (moe.ExpertParallel(at, 2, Raising([0, 1]) if struck else [0, 1]), dist.barrier(at))))
    said.append(outcome(lambda: dist.barrier(at)))
    return said


def test_outputs_that_cannot_be_written(ranks: Pool) -> None:
    struck, peer = ranks.run(strike_outputs)[:SIZE]
    assert struck == ["InvalidArgumentError", "TensorError", "returned", "MemoryError", "returned"]
    assert peer == ["MismatchError"] * 2 + ["returned", "MismatchError", "returned"]


def strike_lists(comm: a2a.Communicator) -> list[str] | None:
    """The second of three operations that begin together."""
    import torch_faults as faults

    at = group(comm, "backend", SIZE, seconds=20)
    if comm.rank >= SIZE:
        return None
    struck = faults.hostile(faults.no_memory) if comm.rank == 0 else lambda tensor: tensor
    said = []
    for tensors in ([torch.ones(2), struck(torch.ones(2)), torch.ones(2)], [torch.ones(2)] * 3):
        said.append(outcome(lambda tensors=tensors: at.allreduce_coalesced(tensors).wait()))  # type: ignore[misc]
        outs = [torch.empty(4) for _ in tensors]
        said.append(outcome(lambda: at.all_gather_single_coalesced(outs, tensors).wait()))  # noqa: B023
        said.append(outcome(lambda: at.all_gather_single_coalesced(outs[: 3 - comm.rank], tensors).wait()))  # noqa: B023
    return said


def test_the_rest_of_a_list(ranks: Pool) -> None:
    mine, theirs = ranks.run(strike_lists)[:SIZE]
    assert mine == ["MemoryError"] * 3 + ["returned"] * 2 + ["MismatchError"]
    assert theirs == ["MismatchError"] * 2 + ["InvalidArgumentError"] + ["returned"] * 2 + ["InvalidArgumentError"]


def strike_messages(comm: a2a.Communicator, way: str) -> list[str] | None:
    import a2a.torch as dist
    import torch_faults as faults

    at = group(comm, way, SIZE, seconds=20)
    if comm.rank >= SIZE:
        return None
    begin, struck = (dist.isend, faults.hostile(faults.no_memory)) if comm.rank == 0 else (dist.irecv, lambda x: x)
    messages = [
        dist.P2POp(begin, wrap(torch.ones(2)), group=at, group_peer=1 - comm.rank)
        for wrap in (lambda x: x, struck, lambda x: x)
    ]
    try:
        return [outcome(work.wait) for work in dist.batch_isend_irecv(messages)]
    except MemoryError:
        return ["MemoryError"]
    finally:
        dist.barrier(group=at)


@pytest.mark.parametrize("way", ["functions", "communicator"])
def test_the_rest_of_a_batch_of_messages(ranks: Pool, way: str) -> None:
    assert ranks.run(strike_messages, way)[:SIZE] == [["MemoryError"], ["returned", "MismatchError", "MismatchError"]]
