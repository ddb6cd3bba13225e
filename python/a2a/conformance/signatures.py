"""The calls under test. A signature says for which cases it can be used and how it is called; several signatures that
mean the same exchange may meet in one operation, each rank in the words of its own framework."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .cases import Case

__all__ = ["SIGNATURES", "Call", "Signature", "of"]


@dataclass
class Call:
    """What a signature gets. Tensors are those of the rank's framework, by position as in Case.send_shapes()."""

    case: Case
    rank: int
    group: Any
    """An a2a communicator, or a peer's default group (None)."""
    module: Any
    """Where the adapter's functions are: a2a.torch, torch.distributed, ..."""
    sends: list[Any]
    recvs: list[Any]

    @property
    def send(self) -> Any:
        return self.sends[0]

    @property
    def recv(self) -> Any:
        return self.recvs[0]

    @property
    def send_counts(self) -> list[int]:
        return list(map(int, self.case.send_counts[self.rank]))

    @property
    def recv_counts(self) -> list[int]:
        return list(map(int, self.case.recv_counts[self.rank]))


Run = Callable[[Call], Any]
"""Exchanges. Returns None when the outputs were written in place, otherwise the list of tensors that came out."""


@dataclass(frozen=True)
class Signature:
    name: str
    framework: str
    """The only framework whose tensors it takes, or "" for any."""
    op: str
    fits: Callable[[Case], bool]
    run: Run
    out: bool = True
    """Whether it receives into given tensors."""
    dtypes: frozenset[str] | None = None
    """None: every dtype of the framework."""
    mixes: bool = False
    """Whether it is what ranks use when each lives in another framework."""


SIGNATURES: list[Signature] = []


def signature(
    name: str, op: str, fits: Callable[[Case], bool] = lambda case: True, **more: Any
) -> Callable[[Run], Run]:
    def add(run: Run) -> Run:
        framework = name.partition(".")[0]
        SIGNATURES.append(Signature(name, "" if framework == "core" else framework, op, fits, run, **more))
        return run

    return add


def of(name: str) -> Signature:
    return next(signature for signature in SIGNATURES if signature.name == name)


def packed(case: Case) -> bool:
    return case.packed


def equal(case: Case) -> bool:
    return case.equal


# ---- a2a.Communicator ------------------------------------------------------------------------------------------------


def _alltoallv(c: Call) -> tuple[Any, ...]:
    displs = (c.case.displs("send", c.rank), c.case.displs("recv", c.rank))
    return (c.send, c.send_counts, c.recv, c.recv_counts, *displs)


@signature("core.alltoallv", "alltoallv", mixes=True)
def _(c: Call) -> None:
    c.group.alltoallv(*_alltoallv(c))


@signature("core.alltoallv async", "alltoallv")
def _(c: Call) -> None:
    c.group.alltoallv(*_alltoallv(c), async_op=True).wait()


@signature("core.plan_alltoallv", "alltoallv")
def _(c: Call) -> None:
    there = c.group.plan_alltoallv(*_alltoallv(c))
    there.run(c.send, c.recv)


@signature("core.alltoall", "alltoallv", equal)
def _(c: Call) -> None:
    c.group.alltoall(c.send, c.recv)


@signature("core.exchange", "alltoallv", packed, out=False)
def _(c: Call) -> list[Any]:
    recv, counts = c.group.exchange(c.send, c.send_counts)
    if list(counts) != c.recv_counts:
        raise AssertionError(f"exchange gives the counts {list(counts)} instead of {c.recv_counts}")
    return [recv]


@signature("core.alltoall_list", "alltoall_list", mixes=True)
def _(c: Call) -> None:
    c.group.alltoall_list(c.sends, c.recvs)


@signature("core.allgather", "allgather", mixes=True)
def _(c: Call) -> None:
    c.group.allgather(c.send, c.recv)


@signature("core.plan_allgather", "allgather")
def _(c: Call) -> None:
    c.group.plan_allgather(c.send, c.recv).run(c.send, c.recv)


def _counts(c: Call) -> tuple[Any, Any]:
    return np.ascontiguousarray(c.case.local_counts[c.rank]), np.ascontiguousarray(c.case.global_counts[c.rank])


@signature("core.global_scatter", "global_scatter", out=False, mixes=True)
def _(c: Call) -> list[Any]:
    return [c.group.global_scatter(c.send, *_counts(c))]


@signature("core.global_scatter out", "global_scatter")
def _(c: Call) -> None:
    c.group.global_scatter(c.send, *_counts(c), out=c.recv)


@signature("core.global_gather", "global_gather", out=False, mixes=True)
def _(c: Call) -> list[Any]:
    return [c.group.global_gather(c.send, *_counts(c))]


@signature("core.plan_global_gather", "global_gather")
def _(c: Call) -> None:
    c.group.plan_global_gather(c.send, *_counts(c)).run(c.send, c.recv)


# ---- torch.distributed -----------------------------------------------------------------------------------------------


@signature("torch.all_to_all_single", "alltoallv", packed, mixes=True)
def _(c: Call) -> None:
    c.module.all_to_all_single(c.recv, c.send, c.recv_counts, c.send_counts, group=c.group)


@signature("torch.all_to_all_single equal", "alltoallv", equal)
def _(c: Call) -> None:
    c.module.all_to_all_single(c.recv, c.send, group=c.group)


@signature("torch.all_to_all_single async", "alltoallv", packed)
def _(c: Call) -> None:
    c.module.all_to_all_single(c.recv, c.send, c.recv_counts, c.send_counts, group=c.group, async_op=True).wait()


@signature("torch.all_to_all of views", "alltoallv", packed)
def _(c: Call) -> None:
    c.module.all_to_all(list(c.recv.split(c.recv_counts)), list(c.send.split(c.send_counts)), group=c.group)


@signature("torch.all_to_all", "alltoall_list", mixes=True)
def _(c: Call) -> None:
    c.module.all_to_all(c.recvs, c.sends, group=c.group)


@signature("torch.all_gather_into_tensor", "allgather", mixes=True)
def _(c: Call) -> None:
    c.module.all_gather_into_tensor(c.recv, c.send, group=c.group)


@signature("torch.all_gather_into_tensor stacked", "allgather")
def _(c: Call) -> None:
    c.module.all_gather_into_tensor(c.recv.view(c.case.ranks, *c.send.shape), c.send, group=c.group)


@signature("torch.all_gather", "allgather")
def _(c: Call) -> None:
    c.module.all_gather(list(c.recv.chunk(c.case.ranks)), c.send, group=c.group)


# ---- paddle.distributed ----------------------------------------------------------------------------------------------


@signature("paddle.stream.alltoall_single", "alltoallv", packed, mixes=True)
def _(c: Call) -> None:
    c.module.stream.alltoall_single(c.recv, c.send, c.recv_counts, c.send_counts, group=c.group)


@signature("paddle.stream.alltoall_single async", "alltoallv", packed)
def _(c: Call) -> None:
    task = c.module.stream.alltoall_single(c.recv, c.send, c.recv_counts, c.send_counts, group=c.group, sync_op=False)
    task.wait()


@signature("paddle.alltoall_single", "alltoallv", packed)
def _(c: Call) -> None:
    c.module.alltoall_single(
        out_tensor=c.recv,
        in_tensor=c.send,
        in_split_sizes=c.send_counts,
        out_split_sizes=c.recv_counts,
        group=c.group,
    )


@signature("paddle.stream.alltoall", "alltoallv", equal)
def _(c: Call) -> None:
    c.module.stream.alltoall(c.recv, c.send, group=c.group)


@signature("paddle.alltoall", "alltoall_list", mixes=True)
def _(c: Call) -> None:
    c.module.alltoall(out_tensor_list=c.recvs, in_tensor_list=c.sends, group=c.group)


@signature("paddle.all_gather", "allgather", out=False, mixes=True)
def _(c: Call) -> list[Any]:
    parts: list[Any] = []
    c.module.all_gather(parts, c.send, group=c.group)
    return [importlib.import_module("paddle").concat(parts)]


@signature("paddle.utils.global_scatter", "global_scatter", out=False, mixes=True)
def _(c: Call) -> list[Any]:
    return [_moe_utils(c).global_scatter(c.send, *_paddle_counts(c), group=c.group)]


@signature("paddle.utils.global_gather", "global_gather", out=False, mixes=True)
def _(c: Call) -> list[Any]:
    return [_moe_utils(c).global_gather(c.send, *_paddle_counts(c), group=c.group)]


def _moe_utils(c: Call) -> Any:
    """Where Paddle has them; its documents say ``utils``, which a2a.paddle has, too."""
    return importlib.import_module(f"{c.module.__name__}.utils.moe_utils")


def _paddle_counts(c: Call) -> list[Any]:
    to_tensor = importlib.import_module("paddle").to_tensor
    return [to_tensor(counts, dtype="int64") for counts in _counts(c)]


# ---- mpi4py, a peer --------------------------------------------------------------------------------------------------


@signature("mpi4py.Alltoallv", "alltoallv")
def _(c: Call) -> None:
    mpi = importlib.import_module("mpi4py.MPI")
    row = mpi.BYTE.Create_contiguous(max(1, c.send.dtype.itemsize * int(np.prod(c.send.shape[1:])))).Commit()
    sides = []
    for tensor, counts, side in ((c.send, c.send_counts, "send"), (c.recv, c.recv_counts, "recv")):
        displs = c.case.displs(side, c.rank)
        packed_displs = (np.cumsum(counts) - counts).tolist()
        sides.append([tensor.view(np.uint8), counts, packed_displs if displs is None else displs, row])
    c.group.Alltoallv(*sides)


@signature("mpi4py.Allgather", "allgather")
def _(c: Call) -> None:
    mpi = importlib.import_module("mpi4py.MPI")
    c.group.Allgather([c.send.view(np.uint8), mpi.BYTE], [c.recv.view(np.uint8), mpi.BYTE])
