"""Placements of experts on ranks: replicas by a fixed rule, and a placement balanced for measured loads."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._core import InvalidArgumentError

__all__ = ["balanced_placement", "busiest", "with_replicas"]

_STARTS = 6
_KICKS, _WORK = 60, 4000
_NEAR = 1.01  # of the mean load is as good as can be
_LEAST_GAIN = 1e-9  # of the largest load; smaller ones are rounding errors


def with_replicas(num_experts: int, hosts: Sequence[int], replicas: int | Sequence[int]) -> list[list[int]]:
    """Return the ranks of each expert: as many as ``replicas`` says, a number or one for each expert. ``hosts``: of
    each rank the number of its host. The first ones are in blocks. Further ones go where no copy is: to a host without
    one, then to the rank with the fewest experts. Raises InvalidArgumentError for numbers that do not fit."""
    size = len(hosts)
    counts = [replicas] * num_experts if isinstance(replicas, (int, np.integer)) else list(replicas)
    if len(counts) != num_experts:
        raise InvalidArgumentError(f"replicas has {len(counts)} entries for {num_experts} experts")
    for expert, count in enumerate(counts):
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or not 1 <= count <= size:
            raise InvalidArgumentError(
                f"replicas of expert {expert} is {count!r}; pass 1 to {size}, the ranks there are"
            )
    homes = [[expert * size // num_experts] for expert in range(num_experts)]
    used = [0] * size
    for first in homes:
        used[first[0]] += 1
    for turn in range(1, max(counts, default=1)):
        for expert, own in enumerate(homes):
            if turn < counts[expert]:
                taken = [hosts[rank] for rank in own]
                rank = min(
                    (rank for rank in range(size) if rank not in own),
                    key=lambda rank: (taken.count(hosts[rank]), used[rank], (rank - own[0]) % size),
                )
                own.append(rank)
                used[rank] += 1
    return homes


def busiest(loads: Sequence[float] | npt.NDArray[Any], homes: Sequence[Sequence[int]], ranks: int) -> float:
    """Return the load of the rank that has most, if the replicas of an expert share its load evenly."""
    total = np.zeros(ranks)
    for load, own in zip(loads, homes, strict=True):
        for rank in own:
            total[rank] += load / len(own)
    return float(total.max())


def balanced_placement(loads: npt.ArrayLike, ranks: int, slots: int | None = None) -> list[list[int]]:
    """Return the ranks of each expert, so that the rank with the largest load has little more than the least possible.

    Args:
        loads: [experts], or [any, experts], which are added: how many tokens chose each expert.
        ranks: how many there are.
        slots: how many experts a rank can have at most, replicas included. By default as many as are needed for one
            rank for each expert.

    Replicas share the load of an expert evenly. Where they do not help there are none. The same result everywhere for
    the same arguments. Raises InvalidArgumentError where the experts do not fit, or a load is no number."""
    given = np.asarray(loads, np.float64)
    total = given.reshape(-1, given.shape[-1]).sum(0) if given.ndim else given.reshape(0)
    if not np.isfinite(total).all() or (total < 0).any():
        raise InvalidArgumentError("loads has a value that is negative or no number")
    if ranks < 1:
        raise InvalidArgumentError(f"ranks is {ranks}; pass 1 or more")
    room = -(-len(total) // ranks) if slots is None else slots
    if room * ranks < len(total):
        raise InvalidArgumentError(f"{ranks} ranks of {room} slots cannot have {len(total)} experts")
    packings = []
    for spare in _starts(len(total), ranks, room):
        packings.append(_Packing(total, ranks, room, spare))
        packings[-1].improve()
        if packings[-1].cost()[0] <= _NEAR * total.sum() / ranks:
            break
    best = min(packings, key=_Packing.cost)
    random = np.random.default_rng(0)  # the same everywhere
    for _ in range(
        0 if best.cost()[0] <= _NEAR * total.sum() / ranks else min(_KICKS, _WORK // (room * ranks * ranks))
    ):
        other = copy.deepcopy(best)
        other.kick(random)
        other.improve()
        if other.cost() < best.cost():
            best = other
    return best.homes()


def _starts(experts: int, ranks: int, room: int) -> list[int]:
    """Return the numbers of replicas to begin with."""
    most = min(room * ranks - experts, experts * (ranks - 1))
    return sorted({most * part // _STARTS for part in range(_STARTS + 1)})


class _Packing:
    """Experts on ranks, which are improved step by step."""

    def __init__(self, loads: npt.NDArray[np.float64], ranks: int, room: int, spare: int) -> None:
        self.loads, self.ranks, self.room = loads, ranks, room
        self.on: list[set[int]] = [set() for _ in range(ranks)]  # experts
        self.of: list[set[int]] = [set() for _ in loads]  # ranks
        self.load = np.zeros(ranks)
        self.least = _LEAST_GAIN * float(loads.max(initial=0.0)) ** 2
        copies: npt.NDArray[np.int64] = np.ones(len(loads), np.int64)
        for _ in range(spare):
            share = np.where(copies < ranks, loads / copies, -1.0)
            copies[int(share.argmax())] += 1
        for expert in sorted(range(len(loads)), key=lambda e: (-loads[e] / copies[e], -copies[e], e)):
            for _ in range(int(copies[expert])):
                self._put(expert)

    def cost(self) -> tuple[float, float]:
        """Return what is to be small: the largest load, then how uneven the others are."""
        return float(self.load.max(initial=0.0)), float((self.load**2).sum())

    def homes(self) -> list[list[int]]:
        return [sorted(ranks) for ranks in self.of]

    def _put(self, expert: int) -> None:
        free = [rank for rank in range(self.ranks) if len(self.on[rank]) < self.room and expert not in self.on[rank]]
        if free:
            self._change([(expert, None, min(free, key=lambda rank: (self.load[rank], rank)))])

    def _change(self, moves: Sequence[tuple[int, int | None, int | None]]) -> None:
        """Take each expert from the one rank to the other. None: no rank."""
        for expert, source, target in moves:
            own = self.of[expert]
            for rank in own:
                self.load[rank] -= self.loads[expert] / len(own)
            if source is not None:
                own.discard(source)
                self.on[source].discard(expert)
            if target is not None:
                own.add(target)
                self.on[target].add(expert)
            for rank in own:
                self.load[rank] += self.loads[expert] / len(own)

    def _gain(self, moves: Sequence[tuple[int, int | None, int | None]]) -> float:
        """Return by how much the sum of squares of the loads falls, or less than 0 if a rank gets more than the busiest
        one has now."""
        change: dict[int, float] = {}
        for expert, source, target in moves:
            own = self.of[expert]
            after = own - {source} | ({target} if target is not None else set())
            for rank in own:
                change[rank] = change.get(rank, 0.0) - self.loads[expert] / len(own)
            for rank in after:
                change[rank] = change.get(rank, 0.0) + self.loads[expert] / len(after)
        top = self.load.max()
        if any(self.load[rank] + more > top for rank, more in change.items() if more > 0):
            return -1.0
        return -float(sum((2 * self.load[rank] + more) * more for rank, more in change.items()))

    def improve(self) -> None:
        """Take the best change that relieves the busiest rank until there is none."""
        for _ in range(4 * len(self.loads) + 4 * self.ranks):
            gain, moves = max(
                ((self._gain(moves), moves) for moves in self._changes()),
                key=lambda found: found[0],
                default=(0.0, []),
            )
            if gain <= self.least:
                return
            self._change(moves)

    def kick(self, random: np.random.Generator) -> None:
        """Make two changes that need not be good, to get away from where no single change helps."""
        for _ in range(2):
            if changes := self._changes():
                self._change(changes[int(random.integers(len(changes)))])

    def _changes(self) -> list[list[tuple[int, int | None, int | None]]]:
        """Return the changes that take load from the busiest rank: a copy moves, is added elsewhere, is given up, or
        changes places with another; and where the room is full, takes the place of a replica of another expert."""
        top = int(self.load.argmax())
        found: list[list[tuple[int, int | None, int | None]]] = []
        for expert in sorted(self.on[top]):
            if len(self.of[expert]) > 1:
                found.append([(expert, top, None)])
            for rank in range(self.ranks):
                if rank == top or expert in self.on[rank]:
                    continue
                if len(self.on[rank]) < self.room:
                    found += [[(expert, top, rank)], [(expert, None, rank)]]
                for other in sorted(self.on[rank]):
                    if other not in self.on[top]:
                        found.append([(expert, top, rank), (other, rank, top)])
                    if len(self.of[other]) > 1:
                        found += [
                            [(expert, None, rank), (other, rank, None)],
                            [(expert, top, rank), (other, rank, None)],
                        ]
        return found


def smallest(loads: Sequence[float], ranks: int, slots: int) -> float:
    """Return the least possible load of the busiest rank, by trying all placements. For a few experts only: tests."""
    experts = range(len(loads))
    choices = [own for count in range(slots + 1) for own in itertools.combinations(experts, count)]
    best = float("inf")
    for chosen in itertools.combinations_with_replacement(choices, ranks):
        copies = [sum(expert in own for own in chosen) for expert in experts]
        if all(copies):
            best = min(best, max(sum(loads[e] / copies[e] for e in own) for own in chosen))
    return best
