"""Which ranks have which experts, how experts move, and how they go on with other ranks: what ExpertParallel of every
framework has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import numpy as np

from . import _core
from ._balance import with_replicas
from ._core import (
    BackendError,
    Communicator,
    ExpertPlacement,
    InvalidArgumentError,
    MismatchError,
    Work,
    collective,
    everywhere,
    takes,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ExpertHomes", "Homes", "Move", "Replicas", "place_on"]

Homes: TypeAlias = Sequence[int | Sequence[int]]
Replicas: TypeAlias = int | Sequence[int]
Load: TypeAlias = Callable[[int], Sequence[Any]]
Boxes: TypeAlias = dict[int, tuple[slice, ...] | slice | None]


def place_on(
    comm: Communicator,
    num_experts: int,
    expert_to_rank: Homes | None,
    replicas: Replicas | None = None,
    active: Iterable[int] | None = None,
    may_lack: bool = False,
) -> ExpertPlacement:
    """Return the placement of experts on these ranks. Raises InvalidArgumentError for one that is none."""
    hosts = _core.host_of_ranks(comm)
    if replicas is not None:
        if expert_to_rank is not None:
            raise InvalidArgumentError("both expert_to_rank and replicas are given; lists of ranks are replicas, too")
        expert_to_rank = with_replicas(num_experts, hosts, replicas)
    return ExpertPlacement(comm.size, num_experts, expert_to_rank, hosts, active, may_lack)


class ExpertHomes:
    """The part of ExpertParallel that knows the ranks of the experts.

    Attributes:
        comm: the ranks.
        num_experts: of all ranks.
        num_local_experts: of this rank.
    """

    comm: Communicator
    num_experts: int
    num_local_experts: int
    _active: tuple[int, ...]

    def _placement(self) -> ExpertPlacement:
        """Return the current placement."""
        raise NotImplementedError

    def _settle(self, group: Any, homes: Homes, active: Sequence[int]) -> None:
        """Take this placement from the next dispatch on. ``group``: what the constructor takes. The experts of some
        lists may be nowhere."""
        raise NotImplementedError

    @staticmethod
    def _communicator(group: Any) -> Communicator:
        """Return the communicator of what the constructor takes."""
        made: Communicator = group
        return made

    def _group(self) -> Any:
        return self.comm

    @property
    def expert_to_rank(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each expert, those included that take no part. Empty: no rank has it."""
        return self._placement().homes

    @property
    def local_experts(self) -> list[int]:
        """The experts of this rank, in the order of their numbers here."""
        return [expert for expert, ranks in enumerate(self.expert_to_rank) if self.comm.rank in ranks]

    @property
    def active(self) -> tuple[int, ...]:
        """The ranks that take part, by default all. A rank that takes no part still makes the calls. It gets no tokens,
        and its own count as -1. Set it to other ranks between two steps, the same on all ranks. Of what is no list of
        ranks InvalidArgumentError is raised; the peers get MismatchError in their next call."""
        return self._active

    @active.setter
    @collective
    def active(self, ranks: Iterable[int]) -> None:
        chosen = sorted({*ranks})
        ExpertPlacement(self.comm.size, 0, None, None, chosen)  # checks them
        self._settle(self._group(), self.expert_to_rank, chosen)

    @overload
    def place(
        self,
        expert_to_rank: Homes,
        weights: Sequence[Any] = (),
        *,
        load: Load | None = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> list[Any]: ...
    @overload
    def place(
        self,
        expert_to_rank: Homes,
        weights: Sequence[Any] = (),
        *,
        load: Load | None = None,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Move: ...
    @collective
    def place(
        self,
        expert_to_rank: Homes,
        weights: Sequence[Any] = (),
        *,
        load: Load | None = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> list[Any] | Move:
        """Collective. Put the experts on these ranks, and move their weights.

        Args:
            expert_to_rank: of each expert its rank, or a list of ranks, the same on all ranks.
            weights: tensors [num_local_experts, ...] of this rank's experts, on the host, contiguous, and detached
                from gradients. All ranks have as many, of the same dtypes and sizes; a rank without experts has empty
                ones. Each byte goes once to each rank that lacks it, from a rank that takes part.
            load: called for each new expert of this rank that no active rank has: expert -> its tensors, one for each
                of ``weights``. Without it such an expert is refused.
            async_op: return a Move, while the weights are on their way: dispatches go on with the former placement.

        Returns: new tensors like ``weights``, of this rank's new experts. Raises InvalidArgumentError for a placement
        that is none, and for weights that do not fit; the peers then get MismatchError, as do all where lists differ.
        """
        takes(2 if weights else 1)
        new = ExpertPlacement(self.comm.size, self.num_experts, expert_to_rank).homes
        old = [tuple(rank for rank in ranks if rank in self._active) for ranks in self.expert_to_rank]
        facts = [_facts(at, weight, self.num_local_experts) for at, weight in enumerate(weights)]
        lost = [expert for expert, ranks in enumerate(old) if not ranks]
        if lost and weights and load is None:
            raise InvalidArgumentError(f"no active rank has expert {lost[0]}: pass load, which gets it from elsewhere")
        local = [expert for expert, ranks in enumerate(new) if self.comm.rank in ranks]
        move = Move(self, new, weights, [_core.rows_like(weight, len(local)) for weight in weights])
        parts = self._parts(local, weights, load if lost else None)
        targets = [_core.rows_of(made, f"weights[{at}]", True) for at, made in enumerate(move.made)]
        self._compare({"expert_to_rank": new, "weights": facts, "the former expert_to_rank": old}, timeout)
        if weights:
            plan: list[tuple[Sequence[int], Boxes, Boxes, str]] = []
            send, recv = [], []
            for at, (shape, dtype) in enumerate(facts):
                whole = tuple(slice(0, length) for length in shape)
                for expert, ranks in enumerate(new):
                    sources = old[expert] or ranks  # who has it, or has loaded it
                    plan.append((shape, _boxes(sources, whole), _boxes(ranks, whole), dtype))
                    send.append(parts[expert][at] if self.comm.rank in sources else None)
                    recv.append(targets[at][local.index(expert)] if self.comm.rank in ranks else None)
            move.work = _core.reshard_all(self.comm, plan, send, recv, async_op=async_op, timeout=timeout)
        return move if async_op else move.finish()

    def _parts(self, local: Sequence[int], weights: Sequence[Any], load: Load | None) -> dict[int, Sequence[Any]]:
        """Return the tensors of each expert that this rank has, or has to load because no active rank has it."""
        rows = [_core.rows_of(weight, f"weights[{at}]") for at, weight in enumerate(weights)]
        parts: dict[int, Sequence[Any]] = {e: [one[at] for one in rows] for at, e in enumerate(self.local_experts)}
        if load is not None:
            homes = self.expert_to_rank
            for expert in local:
                if not any(rank in self._active for rank in homes[expert]):
                    parts[expert] = loaded = load(expert)
                    if len(loaded) != len(weights):
                        text = f"load({expert}) gave {len(loaded)} tensors; pass one for each of {len(weights)} weights"
                        raise InvalidArgumentError(text)
        return parts

    def _compare(self, facts: dict[str, Any], timeout: float | None) -> None:
        """Collective. Raise MismatchError on all ranks where they differ."""
        texts = [json.dumps(value).encode() for value in facts.values()]
        mine = np.array([int.from_bytes(hashlib.sha256(text).digest()[:8], "little", signed=True) for text in texts])
        told = np.empty((self.comm.size, len(mine)), np.int64)
        self.comm.allgather(mine, told, timeout=timeout)
        for at, name in enumerate(facts):
            if len(set(told[:, at].tolist())) > 1:
                other = next(rank for rank, one in enumerate(told[:, at]) if one != told[0, at])
                raise everywhere(MismatchError(f"place: {name} of rank {other} is not that of rank 0"))

    def connect(self, group: Any, *, timeout: float | None = None) -> None:
        """Collective over ``group``: go on with these ranks, after shrink(), recover() or Endpoint.connect(). Every
        rank keeps the experts that it has. Experts that none of them has are nowhere until place(): their tokens are
        dropped. Ranks without an ExpertParallel call join().

        Args:
            group: what the constructor takes."""
        self._meet(group, self.local_experts, self.num_experts, self.comm.rank in self._active, timeout)

    @classmethod
    def join(cls, group: Any, *, timeout: float | None = None) -> Self:
        """Collective over ``group``, of which other ranks call connect(): an ExpertParallel like theirs on a rank that
        is new. It has no experts until place()."""
        made = cls.__new__(cls)
        made._meet(group, [], None, True, timeout)
        return made

    def _meet(
        self, group: Any, local: Sequence[int], num_experts: int | None, active: bool, timeout: float | None
    ) -> None:
        comm = self._communicator(group)
        homes, taking = _met(comm, local, num_experts, active, timeout)
        self._settle(group, homes, taking)


@collective
def _met(
    comm: Communicator, local: Sequence[int], num_experts: int | None, active: bool, timeout: float | None
) -> tuple[list[list[int]], list[int]]:
    """Return the ranks of each expert, and the active ranks, from what each rank has."""
    takes(2)
    mine = np.array([len(local), -1 if num_experts is None else num_experts, active], np.int64)
    told = np.empty((comm.size, 3), np.int64)
    comm.allgather(mine, told, timeout=timeout)
    numbers = {rank: number for rank, number in enumerate(told[:, 1].tolist()) if number >= 0}
    if not numbers:
        raise everywhere(InvalidArgumentError("join: every rank joins; one at least has to call connect()"))
    first = min(numbers)
    for rank, number in numbers.items():
        if number != numbers[first]:
            text = f"connect: rank {first} has {numbers[first]} experts in all, rank {rank} has {number}"
            raise everywhere(MismatchError(text))
    counts = told[:, 0].tolist()
    if not all(0 <= count <= numbers[first] for count in counts):
        raise everywhere(BackendError(f"connect: ranks have {counts} of {numbers[first]} experts"))
    each = np.empty(sum(counts), np.int64)
    comm.allgatherv(np.array(local, np.int64), each, counts, timeout=timeout)
    homes: list[list[int]] = [[] for _ in range(numbers[first])]
    for rank, own in enumerate(np.split(each, np.cumsum(counts)[:-1])):
        for expert in own.tolist():
            if not 0 <= expert < len(homes) or rank in homes[expert]:
                raise BackendError(f"connect: rank {rank} has expert {expert} of {len(homes)}")
            homes[expert].append(rank)
    return homes, [rank for rank, one in enumerate(told[:, 2]) if one]


class Move:
    """Weights on their way to other ranks, of place().

    Attributes:
        work: the Work, None where it is over.
    """

    work: Work | None

    def __init__(
        self, experts: ExpertHomes, homes: Sequence[tuple[int, ...]], weights: Sequence[Any], made: Sequence[Any]
    ) -> None:
        self.comm, self.work, self.made = experts.comm, None, made
        self._experts, self._homes, self._weights, self._finished = experts, homes, weights, False

    def done(self) -> bool:
        """Whether the weights have arrived here."""
        return self.work is None or self.work.done()

    def finish(self, timeout: float | None = None) -> list[Any]:
        """Wait for the weights. From the next dispatch on the new placement holds. All ranks call it between the same
        two dispatches. Returns the tensors of this rank's new experts."""
        if self._finished or self.comm is not self._experts.comm:
            why = "was finished before" if self._finished else "was of other ranks; place the experts again"
            raise InvalidArgumentError(f"finish: this move {why}")
        if self.work is not None:
            self.work.wait(timeout)
        self._finished = True
        self._experts._settle(self._experts._group(), self._homes, self._experts.active)
        return [_core.convert_result(one, made, None) for one, made in zip(self._weights, self.made, strict=True)]


def _facts(at: int, weight: Any, experts: int) -> tuple[list[int], str]:
    """Return the shape of an expert's part, and the dtype."""
    described = _core.describe_tensor(weight)
    shape = [int(length) for length in described["shape"]]
    if not shape or shape[0] != experts:
        raise InvalidArgumentError(f"weights[{at}] has shape {tuple(shape)}; this rank has {experts} experts")
    return shape[1:], str(described["dtype"])


def _boxes(ranks: Iterable[int], whole: tuple[slice, ...]) -> Boxes:
    return {rank: whole for rank in ranks}
