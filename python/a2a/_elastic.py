"""Jobs whose ranks are started again: ``a2a.init(elastic=True)`` and ``Communicator.recover()``."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from ._core import (
    AbortedError,
    Communicator,
    InvalidArgumentError,
    PeerLostError,
    TcpBootstrap,
    ended_rank,
    job_bootstrap,
)
from .endpoint import Endpoint

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._core import SupportsAllgather


class ElasticEndpoint(Endpoint):
    """The endpoint of a rank of an elastic job. All ranks meet under the job's name, tell each other their handles, and
    connect in the next generation."""

    rank: int
    size: int
    job: str
    place: str | None

    @classmethod
    def of(cls, rank: int, size: int, job: str, place: str | None, check: str | None) -> Self:
        """Make the endpoint of a rank. ``place`` is where the ranks meet over TCP; None: on this host."""
        endpoint = cls(check=check)
        endpoint.rank, endpoint.size, endpoint.job, endpoint.place = rank, size, f"{job}#elastic", place
        return endpoint

    def recover(self, comm: Communicator, timeout: float | None = None) -> Communicator:
        if self.generation != comm.generation:
            raise AbortedError(
                f"recover: generation {comm.generation} is over; this rank is in generation {self.generation} already"
            )
        if not comm.closed:
            comm.abort()  # the others may still wait in an operation
        recovered = self.join(comm.timeout if timeout is None else timeout)
        recovered.timeout = comm.timeout
        return recovered

    def join(self, timeout: float) -> Communicator:
        """Meet all ranks, and connect in the next generation. A death meanwhile restarts the meeting."""
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return self._attempt(left)
            except (PeerLostError, AbortedError) as error:
                if notice := ended_rank(self.job, self.size):
                    raise PeerLostError(f"{notice}, and will not be started again") from error
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_PAUSE_SECONDS)

    def _attempt(self, timeout: float) -> Communicator:
        deadline = time.monotonic() + timeout
        bootstrap = self._bootstrap(timeout)
        mine = {"handle": self.handle, "generation": -1 if self.generation is None else self.generation}
        told: list[dict[str, Any]] = [json.loads(text) for text in bootstrap.allgather(json.dumps(mine).encode())]
        del bootstrap
        generation = max(one["generation"] for one in told) + 1
        return self.connect([one["handle"] for one in told], generation, timeout=max(0.0, deadline - time.monotonic()))

    def _bootstrap(self, timeout: float) -> SupportsAllgather:
        if self.place is None:
            return job_bootstrap(self.rank, self.size, self.job, timeout=timeout)
        return TcpBootstrap(self.rank, self.size, self.place, job=self.job, timeout=timeout)


_PAUSE_SECONDS = 0.005


def join(rank: int, size: int, job: str | None, place: str | None, timeout: float, check: str | None) -> Communicator:
    """Make the communicator of a rank of an elastic job, in the job's first generation or in a later one."""
    if job is None and size > 1:
        raise InvalidArgumentError("init: elastic=True needs a job: start the ranks with a launcher, or pass job=")
    return ElasticEndpoint.of(rank, size, job or "alone", place, check).join(timeout)
