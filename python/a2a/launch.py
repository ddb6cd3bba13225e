"""Makes the ranks of a job meet, by explicit arguments or by a launcher's variables (``a2a._launchers``).

Ranks of one host meet on that host. Ranks that MPI's launchers have placed on several hosts meet through MPI, which
then connects them. Other ranks on several hosts, also those that A2A_HOSTS assigns, meet over TCP at MASTER_ADDR, on
port MASTER_PORT + A2A_PORT_OFFSET (1 unless set); torchrun sets the first two. A2A_BOOTSTRAP=tcp://host:port overrides
that place under every launcher. Over TCP ranks need a common secret, A2A_SECRET_FILE or A2A_SECRET, and TCP then
connects the hosts.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, cast

from ._core import (
    Communicator,
    CoreBootstrap,
    InvalidArgumentError,
    ShownMeeting,
    TcpBootstrap,
    TimeoutError,
    UnsupportedError,
    connect,
    describe_process,
    mpi_bootstrap,
)
from ._elastic import join
from ._ended import tell_why_it_fails
from ._launchers import Launch, mark_as_rank
from ._log import configure, met
from ._places import MPI_LAUNCHERS, meeting_place, named_place, several_hosts
from ._variables import is_set, warn_of_unknown

if TYPE_CHECKING:
    from ._core import SupportsAllgather


class Intracomm(Protocol):
    """The part of ``mpi4py.MPI.Intracomm`` that is used."""

    def py2f(self) -> int: ...


__all__ = ["Launch", "init", "mark_as_rank"]


def init(
    rank: int | None = None,
    size: int | None = None,
    job: str | None = None,
    timeout: float = 600.0,
    bootstrap: SupportsAllgather | Intracomm | int | None = None,
    check: str | None = None,
    *,
    elastic: bool = False,
) -> Communicator:
    """Make the communicator of all ranks of this job.

    ``rank`` and ``size`` are given together or found in the environment, which also has the place where the ranks of
    ``job`` meet (see ``a2a.launch``). Or they meet through ``bootstrap``: a TcpBootstrap, any object whose
    ``allgather(bytes)`` returns the list of all ranks' strings, or a communicator of MPI: mpi4py's, or a Fortran
    handle, which every other binding can make (``MPI_Comm_c2f``, in MPI's standard ABI ``MPI_Comm_toint``). Ranks of a
    TcpBootstrap or of MPI may be on several hosts; so may those of torchrun or an ``mpiexec``. ``timeout`` in seconds
    bounds this call, unless it has to initialise MPI, and is the default deadline of every operation. Every rank calls
    init() equally often; each call makes an independent communicator. ``check``, "off", "first" or "always", says when
    ranks compare operations on devices before they start them (docs/guide/devices.md); None is A2A_CHECK, or "first".
    With ``elastic``, ranks that have ended may be started again, by ``a2a run --restarts`` or anything else that gives
    them the same rank, size and job: they call init() again, and the survivors ``Communicator.recover()``
    (docs/guide/elastic.md).

    Raises InvalidArgumentError for invalid arguments or variables, UnsupportedError when the ranks are on several hosts
    and neither MPI nor TCP connects them, TimeoutError when ranks do not come."""
    if (rank is None) != (size is None):
        raise InvalidArgumentError(f"init: rank and size are given together, got rank={rank}, size={size}")
    if rank is not None and size is not None and not 0 <= rank < size <= _INT_MAX:
        raise InvalidArgumentError(f"init: rank={rank} and size={size} do not satisfy 0 <= rank < size <= {_INT_MAX}")
    warn_of_unknown()
    configure()
    tell_why_it_fails()
    began = time.monotonic()
    if (handle := _mpi_handle(bootstrap)) is not None:
        bootstrap = mpi_bootstrap(handle, timeout=timeout)
        if rank is None:
            rank, size = bootstrap.rank, bootstrap.size
    place = None
    if rank is None or size is None:
        launch = Launch.from_environ()
        rank, size = launch.rank, launch.size
        if size > 1:
            mark_as_rank()
        if bootstrap is None and size > 1:
            place = meeting_place(launch)
            bootstrap = _between_hosts(launch, timeout) if place is None else None
        if bootstrap is None and size > 1:
            job = job or launch.named_job()
    elif bootstrap is None and job is None and size > 1:
        job, place = _job_for(rank, size)
    if job is not None:
        describe_process(job)
    with ShownMeeting(rank, size, hosts=int(job is not None and place is None)):
        return _meet(rank, size, job, place, bootstrap, elastic, timeout, began, check)


def _meet(
    rank: int,
    size: int,
    job: str | None,
    place: str | None,
    bootstrap: SupportsAllgather | Intracomm | int | None,
    elastic: bool,
    timeout: float,
    began: float,
    check: str | None,
) -> Communicator:
    """Wait for the other ranks, and connect them."""
    if elastic:
        if bootstrap is not None:
            raise InvalidArgumentError(
                "init: elastic=True needs a place that outlives the ranks: a job on one host, or "
                "TCP (A2A_BOOTSTRAP, MASTER_ADDR); it cannot use this bootstrap"
            )
        left = max(0.0, timeout - (time.monotonic() - began))
        comm = join(rank, size, job, place, left, check)
        comm.timeout = timeout
        met(comm, f"elastic job {job}", time.monotonic() - began)
        return comm
    if bootstrap is None and size > 1 and job is not None:
        with _one_at_a_time(job, rank, timeout):
            if place is None:
                waited = time.monotonic() - began
                comm = connect(rank, size, job=job, timeout=timeout, waited=waited, check=check)
                met(comm, f"job {job}", time.monotonic() - began)
                return comm
            bootstrap = TcpBootstrap(rank, size, place, job=job, timeout=timeout)
    # A communicator of MPI has been handled above, which the type does not say.
    meeting = cast("SupportsAllgather | None", bootstrap)
    waited = time.monotonic() - began
    comm = connect(rank, size, bootstrap=meeting, timeout=timeout, waited=waited, check=check)
    met(comm, type(bootstrap).__name__ if bootstrap is not None else "nobody: one rank", time.monotonic() - began)
    return comm


_meetings: dict[tuple[str, int], threading.Lock] = {}
_meetings_lock = threading.Lock()


@contextlib.contextmanager
def _one_at_a_time(job: str, rank: int, timeout: float) -> Iterator[None]:
    # All meetings of a job have one place, so that ranks find each other whatever became of their earlier attempts. If
    # two threads of a rank call init(), they meet one after the other. The lock is per rank: threads of one process may
    # be ranks.
    with _meetings_lock:
        lock = _meetings.setdefault((job, rank), threading.Lock())
    if not lock.acquire(blocking=False) and not lock.acquire(timeout=max(0.0, min(timeout, threading.TIMEOUT_MAX))):
        raise TimeoutError(f"init: timed out while another thread of rank {rank} waits for the ranks of job {job!r}")
    try:
        yield
    finally:
        lock.release()


def _mpi_handle(bootstrap: SupportsAllgather | Intracomm | int | None) -> int | None:
    """Return the Fortran handle if the bootstrap is a communicator of MPI, otherwise None."""
    if isinstance(bootstrap, bool):
        raise InvalidArgumentError(f"init: bootstrap={bootstrap} is no way to meet")
    if isinstance(bootstrap, int):
        return bootstrap
    return cast("Intracomm", bootstrap).py2f() if hasattr(bootstrap, "py2f") else None


_INT_MAX = 2**31 - 1


def _between_hosts(launch: Launch, timeout: float) -> CoreBootstrap | None:
    """Return the bootstrap of ranks on several hosts that do not meet over TCP; None when all are on one host."""
    several = several_hosts(launch)
    if not several:
        return None
    if launch.launcher in MPI_LAUNCHERS:
        return mpi_bootstrap(timeout=timeout)
    raise UnsupportedError(
        f"{launch.launcher} placed the ranks on several hosts ({several}); set A2A_BOOTSTRAP=tcp://host:port, an "
        "address of rank 0's host, and A2A_SECRET_FILE, or start them with mpiexec: TCP or MPI then carries what goes "
        "between hosts"
    )


def meeting_of(launch: Launch) -> str:
    """Return in words how init() would make these ranks meet."""
    if launch.size == 1:
        return "alone"
    place, several = meeting_place(launch), several_hosts(launch)
    if place:
        return f"over TCP at {place}" + (", TCP between hosts" if several else "")
    if not several:
        return "on this host"
    by_mpi = launch.launcher in MPI_LAUNCHERS
    return "through MPI, MPI between hosts" if by_mpi else "nowhere: see docs/guide/hosts.md"


def _job_for(rank: int, size: int) -> tuple[str, str | None]:
    # Explicit rank and size without a job: the launcher's job and place are used if they are of the same ranks.
    job = os.environ.get("A2A_JOB")
    if job and not is_set(os.environ, "A2A_RANK"):
        return job, named_place()
    launch = Launch.from_environ()
    if (launch.rank, launch.size) == (rank, size) and launch.job is not None:
        place = meeting_place(launch)
        if place is None:
            launch.require_one_host()
        return launch.job, place
    if job:
        return job, named_place()
    raise InvalidArgumentError(
        f"init: rank={rank}, size={size} need job= (one text for all ranks of the job), A2A_JOB, or bootstrap="
    )
