"""The operations of the primitive: what each sends and receives, its transpose, and how jax.vmap changes it.

``start`` gets a communicator, which runs the operation, or its CompiledCalls, which keep it for a program."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._primitive import Operation, bind

__all__ = ["AllGather", "AllToAll", "Barrier", "Broadcast", "Permute", "Recv", "Reduce", "ReduceScatter", "Send"]

Groups = tuple[tuple[int, ...], ...]


def _members(calls: Any, groups: Groups | None) -> tuple[int, ...]:
    if groups is None:
        return tuple(range(calls.size))
    return next(group for group in groups if calls.rank in group)


def _by_rank(size: int, members: tuple[int, ...], count: int, step: int) -> tuple[list[int], list[int]]:
    """Return counts and displacements by rank: ``count`` for each member, one every ``step``."""
    counts, displs = [0] * size, [0] * size
    for at, rank in enumerate(members):
        counts[rank], displs[rank] = count, at * step
    return counts, displs


@dataclass(frozen=True)
class AllToAll(Operation):
    """Slices along ``split`` go to the ranks; what arrives stands along ``concat``."""

    split: int
    concat: int
    tiled: bool
    groups: Groups | None = None

    def shape(self, comm: Any, given: tuple[int, ...]) -> tuple[int, ...]:
        ranks = len(_members(comm, self.groups))
        result = list(given)
        if self.tiled:
            result[self.split] //= ranks
            result[self.concat] *= ranks
        else:
            del result[self.split]
            result.insert(self.concat, ranks)
        return tuple(result)

    def start(self, calls: Any, send: Any, recv: Any) -> Any:
        """Without copies: an axis that only one side has is one of length 1 on the other."""
        split, concat = self.split, self.concat
        if not self.tiled and split < concat:
            concat += 1
            send, recv = np.expand_dims(send, concat), np.expand_dims(recv, split)
        elif not self.tiled and split > concat:
            split += 1
            send, recv = np.expand_dims(send, concat), np.expand_dims(recv, split)
        members = _members(calls, self.groups)
        sent, received = send.shape[split] // len(members), recv.shape[concat] // len(members)
        to, to_displs = _by_rank(calls.size, members, sent, sent)
        from_, from_displs = _by_rank(calls.size, members, received, received)
        how: dict[str, Any] = dict(split_axis=split, concat_axis=concat)
        return calls.alltoallv(send, to, recv, from_, to_displs, from_displs, **how, **self.compared(calls, send))

    def back(self, comm: Any, cotangent: Any) -> Any:
        return bind(cotangent, comm, replace(self, split=self.concat, concat=self.split))

    def batched(self) -> tuple[Operation, int, int]:
        return replace(self, split=self.split + 1, concat=self.concat + 1), 0, 0


@dataclass(frozen=True)
class Reduce(Operation):
    """Every rank gets the fold of all."""

    op: Any = "sum"

    @property
    def linear(self) -> bool:
        return bool(self.op == "sum")

    def start(self, calls: Any, send: Any, recv: Any) -> Any:
        return calls.allreduce(send, recv, self.op)

    def back(self, comm: Any, cotangent: Any) -> Any:
        return bind(cotangent, comm, self)


@dataclass(frozen=True)
class AllGather(Operation):
    """The ranks' arrays, stacked along a new first axis."""

    groups: Groups | None = None

    def shape(self, comm: Any, given: tuple[int, ...]) -> tuple[int, ...]:
        return (len(_members(comm, self.groups)), *given)

    def start(self, calls: Any, send: Any, recv: Any) -> Any:
        if self.groups is None:
            return calls.allgather(send, recv)
        members = _members(calls, self.groups)
        to, to_displs = _by_rank(calls.size, members, 1, 0)
        from_, from_displs = _by_rank(calls.size, members, 1, 1)
        return calls.alltoallv(send[None], to, recv, from_, to_displs, from_displs, **self.compared(calls, send))

    def back(self, comm: Any, cotangent: Any) -> Any:
        if self.groups is None:
            return bind(cotangent, comm, ReduceScatter())
        return bind(cotangent, comm, AllToAll(0, 0, False, self.groups)).sum(0)

    def batched(self) -> tuple[Operation, int, int]:
        return self, 0, 1


@dataclass(frozen=True)
class ReduceScatter(Operation):
    """Entry p of the first axis, summed over all ranks, goes to rank p."""

    def shape(self, comm: Any, given: tuple[int, ...]) -> tuple[int, ...]:
        return given[1:]

    def start(self, calls: Any, send: Any, recv: Any) -> Any:
        return calls.reduce_scatter(send, recv, "sum")

    def back(self, comm: Any, cotangent: Any) -> Any:
        return bind(cotangent, comm, AllGather())

    def batched(self) -> tuple[Operation, int, int]:
        return self, 1, 0


@dataclass(frozen=True)
class Permute(Operation):
    """The array of ``pairs[i][0]`` goes to rank ``pairs[i][1]``; a rank to which none goes gets zeros."""

    pairs: tuple[tuple[int, int], ...]
    uniform = False

    def start(self, calls: Any, send: Any, recv: Any) -> Any:
        to, from_ = [0] * calls.size, [0] * calls.size
        for source, destination in self.pairs:
            if source == calls.rank:
                to[destination] = 1
            if destination == calls.rank:
                from_[source] = 1
        if isinstance(recv, np.ndarray) and not any(from_):
            recv[...] = np.zeros((), recv.dtype)
        nothing = [0] * calls.size
        return calls.alltoallv(send[None], to, recv[None], from_, nothing, nothing, **self.compared(calls, send))

    def back(self, comm: Any, cotangent: Any) -> Any:
        return bind(cotangent, comm, Permute(tuple(sorted((to, source) for source, to in self.pairs))))


@dataclass(frozen=True)
class Broadcast(Operation):
    """Every rank gets the array of ``root``."""

    root: int
    in_place = True

    def start(self, calls: Any, send: Any, recv: Any) -> Any:
        return calls.broadcast(recv, self.root)

    def back(self, comm: Any, cotangent: Any) -> Any:
        total = bind(cotangent, comm, Reduce())
        return total if comm.rank == self.root else jnp.zeros_like(total)


@dataclass(frozen=True)
class Send(Operation):
    """A message to another rank. The result is empty."""

    peer: int
    tag: int
    linear = False
    messages = True

    def shape(self, comm: Any, given: tuple[int, ...]) -> tuple[int, ...]:
        return (0,)

    def start(self, calls: Any, send: Any, recv: Any) -> Any:
        return calls.send(send, self.peer, self.tag)

    def batched(self) -> tuple[Operation, int, int]:
        return self, 0, 0


@dataclass(frozen=True)
class Recv(Operation):
    """A message of another rank, in a result like the operand."""

    peer: int | None
    tag: int
    linear = False
    messages = True

    def start(self, calls: Any, send: Any, recv: Any) -> Any:
        return calls.recv(recv, self.peer, self.tag)


@dataclass(frozen=True)
class Barrier(Operation):
    """Wait for all ranks."""

    linear = False

    def start(self, calls: Any, send: Any, recv: Any) -> Any:
        return calls.barrier()
