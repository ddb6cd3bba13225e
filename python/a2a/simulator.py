"""A model of exchanges between many ranks, computed on one machine: how long they take, and why.

The ranks of a host share its port to the network. A port carries its bytes at the rate of the link, one message at a
time ("single") or many at once ("shared", as TCP does). Ranks of one host exchange through memory meanwhile. The order
in which a rank sends is that of the transports between hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ._core import InvalidArgumentError, run_simulator
from ._files import brief
from .traffic import Matrix

__all__ = ["SCHEDULES", "Cluster", "Message", "Outcome", "Schedule", "simulate"]

_LARGEST = 1e100

Schedule = Literal["rotation", "longest", "hierarchical"]
SCHEDULES: tuple[Schedule, ...] = ("rotation", "longest", "hierarchical")


@dataclass(frozen=True)
class Cluster:
    """Hosts and the links between them. Rates are in bytes per second, times in seconds. The defaults are those of
    hosts with 8 ranks and a port of 100 Gbit/s."""

    ranks_per_host: int = 8
    link: float = 12.5e9
    """the rate of a host's port, in each direction"""
    memory: float = 5e9
    """the rate at which a rank receives from ranks of its host"""
    latency: float = 10e-6
    """from the end of a message at the sender to its end at the receiver"""
    message: float = 2e-6
    """for how long a message occupies both ports beside its bytes"""
    start: float = 30e-6
    """what every exchange takes once: the ranks compare what they are about to do"""
    ports: Literal["single", "shared"] = "shared"


class Message(NamedTuple):
    """Between two ranks; between two hosts with the schedule "hierarchical". Times are in seconds."""

    sender: int
    receiver: int
    nbytes: int
    begin: float
    end: float


@dataclass(frozen=True)
class Outcome:
    """What the model says of one exchange."""

    seconds: float
    """until the last rank has all its bytes"""
    bound: float
    """no schedule is faster: the time of the busiest port, or of the busiest rank's memory"""
    ranks: npt.NDArray[np.float64]
    """by rank: when it has all its bytes"""
    out_ports: npt.NDArray[np.float64]
    """by host: for how long its port has bytes to send"""
    in_ports: npt.NDArray[np.float64]
    """by host: for how long its port has bytes to receive"""
    messages: list[Message]
    """the first ones to end"""

    @property
    def ratio(self) -> float:
        """``seconds`` over ``bound``; 1 where there is nothing to send."""
        return self.seconds / self.bound if self.bound else 1.0

    @property
    def critical_rank(self) -> int:
        """The rank that is last."""
        return int(self.ranks.argmax())


def simulate(
    matrix: Matrix,
    cluster: Cluster | None = None,
    schedule: Schedule = "longest",
    *,
    keep: int = 100_000,
) -> Outcome:
    """Return what the model says of the exchange of this matrix of bytes, [ranks, ranks].

    ``schedule``: "longest" is what the transports between hosts do: long messages first, 32 at a time.
    "rotation": rank r sends to r + 1, r + 2, ..., in that order. "hierarchical": hosts send each other one message, as
    a2a does with few bytes. Keeps the first ``keep`` messages. Raises InvalidArgumentError for a matrix that is not
    square, and for rates or times that make no sense."""
    cluster = cluster or Cluster()
    given = np.asarray(matrix)
    if given.ndim != 2 or given.shape[0] != given.shape[1] or not given.size:
        raise InvalidArgumentError(f"simulate: matrix has shape {given.shape}; it needs [ranks, ranks]")
    if not np.issubdtype(given.dtype, np.integer) or (given < 0).any():
        raise InvalidArgumentError("simulate: matrix holds numbers of bytes, integers that are not negative")
    if schedule not in SCHEDULES:
        raise InvalidArgumentError(f"simulate: schedule {schedule!r} is none of {', '.join(SCHEDULES)}")
    if cluster.ports not in ("single", "shared"):
        raise InvalidArgumentError(f"simulate: ports {brief(repr(cluster.ports))} is neither single nor shared")
    each = cluster.ranks_per_host
    if isinstance(each, bool) or not isinstance(each, int) or not 1 <= each < 2**31:
        raise InvalidArgumentError(f"simulate: ranks_per_host is {brief(repr(each))}; it is at least one rank")
    for name in ("link", "memory", "latency", "message", "start"):
        value = getattr(cluster, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InvalidArgumentError(f"simulate: {name} is {brief(repr(value))}; it is a number")
        least = 0.0 if name in ("latency", "message", "start") else 1e-300  # rates are positive
        if not least <= value <= _LARGEST:
            raise InvalidArgumentError(
                f"simulate: {name} is {brief(repr(value))}; it is {'not negative' if not least else 'positive'}"
            )
    seconds, bound, ranks, outs, ins, messages = run_simulator(
        given,
        schedule,
        ranks_per_host=each,
        link=cluster.link,
        memory=cluster.memory,
        latency=cluster.latency,
        message=cluster.message,
        start=cluster.start,
        single=cluster.ports == "single",
        kept=keep,
    )
    return Outcome(seconds, bound, ranks, outs, ins, [Message(*one) for one in messages])
