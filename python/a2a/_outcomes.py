"""How the ranks of spawn() end, whether they are processes or threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._core import AbortedError, Communicator, MismatchError, PeerLostError, TimeoutError

__all__ = ["Outcome", "call_rank", "first_failure", "unfinished"]


@dataclass
class Outcome:
    """The end of one rank: a value, or an error."""

    rank: int
    value: Any = None
    error: BaseException | None = None
    traceback: str = ""
    time: float = 0.0
    """When the error was raised, on the monotonic clock that all processes share."""

    @property
    def follows(self) -> bool:
        """Whether the error may be the effect of another rank's failure."""
        echoes = (PeerLostError, AbortedError, MismatchError, TimeoutError)
        return isinstance(self.error, echoes) and self.traceback != ""


def first_failure(outcomes: list[Outcome]) -> Outcome | None:
    """Return the failure to raise: the first that is not the effect of another rank's."""
    failures = [outcome for outcome in outcomes if outcome.error is not None]
    return min(failures, key=lambda outcome: (outcome.follows, outcome.time), default=None)


def call_rank(fn: Callable[..., Any], args: tuple[Any, ...], comm: Communicator) -> Any:
    """Run a rank: the call, and then the collective close()."""
    value = fn(comm, *args)
    comm.close()
    return value


def unfinished(n: int, outcomes: list[Outcome], stacks: str = "") -> TimeoutError:
    done = {outcome.rank for outcome in outcomes}
    late = ", ".join(str(rank) for rank in range(n) if rank not in done)
    some = "ranks" if "," in late else "rank"
    return TimeoutError(f"spawn: the timeout passed before {some} {late} of {n} ended{stacks}")
