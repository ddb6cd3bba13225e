"""The process group whose ranks change: ``init_process_group("a2a", enable_reconfigure=True)`` of Torch 2.14 on.

It is a Python process group for every version of torch: the rank and the size of a torch backend that is written in
Python cannot change."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import a2a
from a2a import Endpoint

from .._errors import MembersError, in_torchs_words
from .._operations.work import FinishedWork
from .._untraced import untraced
from . import communicators
from .group import ProcessGroupA2A
from .monitored_barrier import over_communicator, seconds_of
from .operations import OPERATIONS

__all__ = ["ReconfigurableProcessGroup"]

_METHODS = (*OPERATIONS, "alltoall_base", "_allgather_base", "_reduce_scatter_base", "gather_into_tensor")
_GENERATIONS = 2**63  # an endpoint's; a uuid may be negative


@untraced
class ReconfigurableProcessGroup(ProcessGroupA2A):
    """A process group that has an endpoint, and a communicator from one reconfigure() to the next abort(). Otherwise
    its operations raise AbortedError."""

    supports_reconfigure = True

    def __init__(self, store: Any, rank: int, size: int, name: str, timeout: timedelta) -> None:
        self._place, self._timeout = (rank, size), timeout
        super().__init__(None, store, rank, size, name)
        self._endpoint = Endpoint()
        self._without_members("has no members yet")

    def get_reconfigure_handle(self) -> str:
        """Return the text by which the others reach this process. It is valid as long as this group."""
        return str(self._endpoint.handle)

    def reconfigure(self, opts: Any) -> FinishedWork:
        """Have the processes of these handles, and no others, be the ranks of the group. Collective over them; all give
        the same handles and the same ``opts.uuid``, which none of them has used. Rank i is the i-th of a list; a set is
        put in an order that all agree on. ``opts.timeout``, or that of the group, bounds this call. ``opts.hints`` has
        nothing for a2a.

        Raises MembersError for handles without the own one, and for a uuid that was used already; MismatchError when
        handles or uuids differ, PeerLostError when a process is dead, TimeoutError naming those that do not come. After
        a MembersError the group is as it was, after another error it has no members, and may be reconfigured."""
        given = opts.handles
        handles = sorted(given) if isinstance(given, (set, frozenset)) else list(given)
        self.meet(opts.uuid, handles, self._timeout if opts.timeout is None else opts.timeout)
        return FinishedWork([])

    def meet(self, uuid: int, handles: list[str], timeout: timedelta) -> None:
        """What reconfigure() does."""
        former = self.comm
        try:
            comm = self._endpoint.connect(handles, uuid % _GENERATIONS, timeout=timeout.total_seconds())
        except a2a.InvalidArgumentError as error:
            raise MembersError(f"reconfigure: {error}") from None
        except a2a.Error as error:
            self._without_members("could not be reconfigured")
            raise in_torchs_words(error) from None
        finally:
            if former is not None and former.broken:  # the endpoint has ended it
                communicators.drop(former)
        comm.timeout = self._timeout.total_seconds()
        self._place = comm.rank, comm.size
        self._with_members(comm)

    # ---- with members, and without

    def _with_members(self, comm: a2a.Communicator) -> None:
        self.comm, self._stand_in = comm, None
        communicators.adopt_again(self, comm)
        for name in _METHODS:
            self.__dict__.pop(name, None)

    def _without_members(self, why: str) -> None:
        """Have operations say why there are no ranks to do them."""
        words = f"process group {self._name!r} {why}; call torch.distributed._reconfigure()"

        def refuse(*_: Any, **__: Any) -> Any:  # does not hold the group, which would then outlive its last user
            raise a2a.AbortedError(words)

        self.comm = None
        for name in _METHODS:
            setattr(self, name, refuse)

    def abort(self) -> None:
        """Make every rank that is in an operation of the group, or comes to one, raise a2a.AbortedError. The group may
        be reconfigured then. Not collective; another thread may be in an operation, which it ends."""
        comm = self.comm
        self._without_members("was aborted")
        if comm is not None:
            comm.abort(f"process group {self._name!r} was aborted")
            communicators.drop(comm)

    def shutdown(self) -> None:
        """Close the communicator, collectively."""
        comm = self.comm
        self._without_members("was destroyed")
        if comm is not None:
            communicators.drop(comm)

    # ---- what depends on the members

    def getRank(self) -> int:
        return self._place[0]

    def getSize(self) -> int:
        return self._place[1]

    @property
    def options(self) -> Any:
        return self._options(self._timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the timeout of later operations that have none of their own, and of reconfigure()."""
        self._timeout = timeout
        if self.comm is not None:
            self.comm.timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the ranks that do not come, and breaks the group then."""
        if self.comm is None:
            self.barrier()  # which raises
        over_communicator(self.comm, seconds_of(timeout, self._timeout.total_seconds()))
