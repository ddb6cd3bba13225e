"""The low-latency calls with ``enable_shrink``: ranks that die, or do not come in time, are masked, and the call goes
on without them.

All ranks that a mask leaves are one generation of endpoints. Before each call they tell each other that they have come.
Whom somebody has not heard of within the timeout is masked by all, and the others meet in the next generation."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

import a2a
from a2a import _core

from .._experts.placement import Placement, placement_of
from ._ranks import Ranks

__all__ = ["Masks"]

_T = TypeVar("_T")
_TAG = 7001  # of the messages that say who has come


class _Survivors(Ranks):
    """The ranks that no mask hides. Experts and ranks have the numbers that they have among all ranks."""

    def __init__(self, comm: a2a.Communicator, members: Sequence[int], size: int) -> None:
        super().__init__(comm)
        self.members, self.size, self.shrinks = tuple(members), size, True

    def experts(self, num_experts: Any) -> Placement:
        found = self._placements.get(num_experts) if isinstance(num_experts, int) else None
        if found is None:
            fits = isinstance(num_experts, int) and num_experts > 0 and num_experts % self.size == 0
            self.require(fits, f"num_experts is {num_experts!r}; pass a multiple of the {self.size} ranks")
            each = num_experts // self.size
            at = {member: rank for rank, member in enumerate(self.members)}
            homes = [[at[e // each]] if e // each in at else [] for e in range(num_experts)]
            found = self._placements[num_experts] = placement_of(self.comm, homes, range(self.comm.size))
        return found


class Masks:
    """The mask of one rank. Collective: all ranks make theirs.

    Attributes:
        masked: whether each rank is masked.
        timeout: seconds for which a call waits for a rank to come.
    """

    def __init__(self, comm: a2a.Communicator, timeout: float) -> None:
        self.rank, self.size, self.timeout = comm.rank, comm.size, timeout
        self.masked = [False] * comm.size
        self._default = comm.timeout
        self._several_hosts = len(set(_core.host_of_ranks(comm))) > 1
        self._endpoint = a2a.Endpoint()
        self._handles = [one.decode() for one in comm.allgather_bytes(self._endpoint.handle.encode())]
        self._ranks = self._connect(list(range(comm.size)), 0, comm.timeout)

    def mark(self, rank: int, masked: bool) -> None:
        """Mask a rank, or take its mask off. Raises InvalidArgumentError for this rank, and for one that is none."""
        if not 0 <= rank < self.size or (masked and rank == self.rank):
            raise a2a.InvalidArgumentError(f"rank_to_mask is {rank}; pass another rank than {self.rank} of {self.size}")
        self.masked[rank] = masked

    def run(self, call: Callable[[Ranks], _T]) -> _T:
        """Make a call of all ranks that no mask hides. Whoever dies within it is masked, and the call made again."""
        while True:
            try:
                return call(self.present())
            except (a2a.PeerLostError, a2a.AbortedError):
                if not self._ranks.comm.broken:
                    raise
                self._survive()

    def present(self) -> Ranks:
        """Wait until all have come, or have been masked. Returns those who are there."""
        while True:
            members = [rank for rank in range(self.size) if not self.masked[rank]]
            if tuple(members) != self._ranks.members and not self._change(members):
                continue
            absent = self._absent()
            if not absent:
                return self._ranks
            for rank in absent:
                self.masked[rank] = True
            members = [rank for rank in members if rank not in absent]
            self._ranks = self._connect(members, (self._endpoint.generation or 0) + 1, self.timeout)

    def _connect(self, members: Sequence[int], generation: int, timeout: float) -> _Survivors:
        handles = [self._handles[rank] for rank in members]
        comm = self._endpoint.connect(handles, generation, timeout=timeout)
        comm.timeout = self._default
        return _Survivors(comm, members, self.size)

    def _change(self, members: Sequence[int]) -> bool:
        """Go on with these ranks. False: some whose mask was taken off have not come, and are masked again."""
        try:
            last = self._last_generation(members)
        except a2a.TimeoutError:
            new = set(members) - set(self._ranks.members)
            if not new:
                raise
            for rank in new:
                self.masked[rank] = True
            return False
        self._ranks = self._connect(members, last + 1, self.timeout)
        return True

    def _last_generation(self, members: Sequence[int]) -> int:
        """Return the last one that any of these ranks was in: whose mask is taken off has missed some."""
        mine = self._endpoint.generation or 0
        if self._several_hosts:
            if set(members) - set(self._ranks.members):
                raise a2a.UnsupportedError("masks are taken off on one host only; make new Buffers")
            return mine
        name = hashlib.sha256(self._handles[0].encode()).hexdigest()[:16]
        job = f"masks {name} {'.'.join(map(str, members))}"
        meeting = _core.job_bootstrap(members.index(self.rank), len(members), job, timeout=self.timeout)
        return max(int(one) for one in meeting.allgather(str(mine).encode(), timeout=self.timeout))

    def _absent(self) -> set[int]:
        """Return who is to be masked, as all that are here agree. Raises PeerLostError when a rank dies meanwhile."""
        members = self._ranks.members
        others = {rank: at for at, rank in enumerate(members) if rank != self.rank}
        absent: set[int] = set()
        while True:
            try:
                told = self._tell({rank: at for rank, at in others.items() if rank not in absent}, absent)
            except a2a.AbortedError:
                if not absent:
                    raise
                return absent  # a rank to which all have told the same has gone on already
            found = absent.union(*told.values(), [rank for rank in others if rank not in told])
            found.discard(self.rank)
            if found == absent and all(one == absent for one in told.values()):
                return absent
            absent = found

    def _tell(self, to: dict[int, int], absent: set[int]) -> dict[int, set[int]]:
        """Tell these ranks who is absent. Returns what they tell, of those who do in time."""
        comm, deadline = self._ranks.comm, time.monotonic() + self.timeout
        mine = torch.zeros(self.size, dtype=torch.uint8)
        mine[list(absent)] = 1
        for at in to.values():
            comm.send(mine, at, _TAG, async_op=True)
        rooms = {rank: torch.empty(self.size, dtype=torch.uint8) for rank in to}
        works = {rank: comm.recv(rooms[rank], at, _TAG, async_op=True) for rank, at in to.items()}
        told = {}
        for rank, work in works.items():
            try:
                work.wait(max(0.0, deadline - time.monotonic()))
            except a2a.TimeoutError:
                continue
            told[rank] = set(rooms[rank].nonzero().flatten().tolist())
        return told

    def _survive(self) -> None:
        """Go on with those who are left after a death. Raises AbortedError where the others have masked this rank."""
        comm, members = self._ranks.comm, list[int]()
        while not members:
            comm = comm.shrink(self.timeout)
            try:
                members = [int(one) for one in comm.allgather_bytes(str(self.rank).encode())]
            except a2a.PeerLostError:  # one more
                continue
        for rank in self._ranks.members:
            self.masked[rank] = self.masked[rank] or rank not in members
        self._ranks = _Survivors(comm, members, self.size)


def without(topk_idx: Tensor, ranks: Ranks, num_experts: int) -> Tensor:
    """Return the choices, with -1 for experts of masked ranks."""
    if not ranks.shrinks:
        return topk_idx
    each = num_experts // ranks.size
    live = torch.isin(topk_idx // each, torch.tensor(ranks.members))
    return torch.where(live, topk_idx, -1)
