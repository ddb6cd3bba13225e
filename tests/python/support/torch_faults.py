"""Every collective of a2a.torch, and faults that strike one rank inside of it before the operation has its number."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import a2a

Wrap = Callable[[Any], Any]  # of a tensor, on the rank that is struck
Call = Callable[[Wrap], object]


class Struck(Exception):
    """What a signal handler raises."""


class Hostile(torch.Tensor):
    """A tensor of which every question raises."""

    raises: Callable[[], Any]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls.raises()


def no_memory(*_: Any, **__: Any) -> Any:
    raise MemoryError("no memory left for this test")


def struck_by_signal(*_: Any, **__: Any) -> Any:
    def handler(*_: Any) -> None:
        raise Struck("a signal handler of this test")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def hostile(raises: Callable[[], Any]) -> Wrap:
    Hostile.raises = staticmethod(raises)  # type: ignore[assignment]
    return lambda tensor: tensor.as_subclass(Hostile)


@contextmanager
def without(*places: tuple[Any, str]) -> Iterator[None]:
    """Functions that allocate fail."""
    kept = [(owner, name, getattr(owner, name)) for owner, name in places]
    for owner, name in places:
        setattr(owner, name, no_memory)
    try:
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


ALLOCATIONS = [(torch.Tensor, name) for name in ("new_empty", "contiguous", "coalesce", "reshape", "clone")]
ALLOCATIONS += [(torch, name) for name in ("empty_like", "empty", "mul", "tensor")]


def x(*shape: int) -> Any:
    return torch.ones(shape or (4,))


def parts() -> list[Any]:
    return [x(2), x(2)]


def functions(dist: Any, at: Any, rank: int) -> dict[str, Call]:
    """The calls of two ranks. ``dist``: a2a.torch or torch.distributed."""
    half = torch.distributed._make_nccl_premul_sum(0.5)
    op = torch.distributed.ReduceOp
    only = rank == 0
    return {
        "all_to_all_single": lambda w: dist.all_to_all_single(x(), w(x()), group=at),
        "all_to_all_single into": lambda w: dist.all_to_all_single(w(x()), x(), group=at),
        "all_to_all": lambda w: dist.all_to_all(parts(), [x(2), w(x(2))], group=at),
        "all_to_all into": lambda w: dist.all_to_all([x(2), w(x(2))], parts(), group=at),
        "all_gather_into_tensor": lambda w: dist.all_gather_into_tensor(x(8), w(x()), group=at),
        "all_gather": lambda w: dist.all_gather(parts(), w(x(2)), group=at),
        "all_gather into": lambda w: dist.all_gather([x(2), w(x(2))], x(2), group=at),
        "all_reduce": lambda w: dist.all_reduce(w(x()), group=at),
        "all_reduce scaled": lambda w: dist.all_reduce(w(x()), half, group=at),
        "all_reduce with gaps": lambda w: dist.all_reduce(w(x(4, 2)[:, 0]), op.MAX, group=at),
        "reduce": lambda w: dist.reduce(w(x()), group_dst=0, group=at),
        "reduce scaled": lambda w: dist.reduce(w(x()), op=half, group_dst=1, group=at),
        "reduce_scatter": lambda w: dist.reduce_scatter(x(2), [x(2), w(x(2))], group=at),
        "reduce_scatter into": lambda w: dist.reduce_scatter(w(x(2)), parts(), group=at),
        "reduce_scatter_tensor": lambda w: dist.reduce_scatter_tensor(x(2), w(x()), group=at),
        "broadcast": lambda w: dist.broadcast(w(x()), group_src=0, group=at),
        "broadcast to": lambda w: dist.broadcast(w(x()), group_src=1, group=at),
        "gather": lambda w: dist.gather(w(x(2)), parts() if only else None, group_dst=0, group=at),
        "gather into": lambda w: dist.gather(x(2), [x(2), w(x(2))] if only else None, group_dst=0, group=at),
        "gather there": lambda w: dist.gather(w(x(2)), None if only else parts(), group_dst=1, group=at),
        "scatter": lambda w: dist.scatter(x(2), [x(2), w(x(2))] if only else None, group_src=0, group=at),
        "scatter to": lambda w: dist.scatter(w(x(2)), None if only else parts(), group_src=1, group=at),
    }


def sparse(dist: Any, at: Any) -> dict[str, Call]:
    def entries() -> Any:
        return torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (4,), check_invariants=True)

    return {"all_reduce of sparse ones": lambda w: dist.all_reduce(entries(), group=at)}


def messages(dist: Any, at: Any, rank: int) -> dict[str, Call]:
    """Rank 0 is the one that is struck, as the sender and as the receiver."""
    return {
        "send": lambda w: (
            dist.send(w(x()), group_dst=1, group=at) if rank == 0 else dist.recv(x(), group_src=0, group=at)
        ),
        "isend": lambda w: (
            dist.isend(w(x()), group_dst=1, group=at).wait() if rank == 0 else dist.recv(x(), group_src=0, group=at)
        ),
    }


def differentiable(at: a2a.Communicator) -> dict[str, Call]:
    from a2a.torch.nn import functional as f

    counts = [1, 1, 1, 1]
    return {
        "nn.all_to_all_single": lambda w: f.all_to_all_single(x(), w(x()), group=at),
        "nn.all_to_all_single into": lambda w: f.all_to_all_single(w(x()), x(), group=at),
        "nn.all_to_all": lambda w: f.all_to_all(parts(), [x(2), w(x(2))], at),
        "nn.all_to_all_axis": lambda w: f.all_to_all_axis(w(x(2, 2)), 0, 1, at),
        "nn.all_gather_into_tensor": lambda w: f.all_gather_into_tensor(x(8), w(x()), at),
        "nn.global_scatter": lambda w: f.global_scatter(w(x(4, 1)), counts, counts, at),
        "nn.global_gather": lambda w: f.global_gather(w(x(4, 1)), counts, counts, at),
    }


def experts(at: a2a.Communicator) -> dict[str, Call]:
    from a2a.torch.moe import ExpertParallel

    ep = ExpertParallel(at, 4)
    choices, weights = torch.tensor([[0], [1], [2], [3]]), torch.ones(4, 1)
    routed = ep.dispatch(x(4, 1), choices, weights)
    return {
        "moe dispatch": lambda w: ep.dispatch(w(x(4, 1)), choices, weights),
        "moe dispatch of weights": lambda w: ep.dispatch(x(4, 1), choices, w(weights)),
        "moe dispatch by choices": lambda w: ep.dispatch(x(4, 1), w(choices), weights),
        "moe combine": lambda w: ep.combine(w(x(4, 1)), routed),
        "moe combine with a bias": lambda w: ep.combine(x(4, 1), routed, bias=w(x(4, 1))),
    }


def quantized(at: a2a.Communicator) -> dict[str, Call]:
    return {
        "block_quantized_all_reduce": lambda w: a2a.block_quantized_all_reduce(at, w(x())),
        "quantized_all_reduce": lambda w: a2a.quantized_all_reduce(at, w(torch.ones(4, dtype=torch.int8)), 1.0),
    }
