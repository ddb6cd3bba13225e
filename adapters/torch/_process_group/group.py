"""The process group on an a2a communicator, for Torch 2.9 to 2.13: a Python class in place of torch's own group. It
runs every operation of host tensors itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroup
from torch.distributed import distributed_c10d as c10d

import a2a

from .._errors import SplitError
from .._untraced import untraced
from .communicators import adopt, forget
from .operations import GroupOperations

__all__ = ["ProcessGroupA2A"]

_CPU = torch.device("cpu")


@untraced
class ProcessGroupA2A(GroupOperations, ProcessGroup):  # type: ignore[misc, unused-ignore]
    """A process group on an a2a communicator, ``comm``. It defines all that callers in c10d's C++ code use: there is no
    other backend to which the base class could go."""

    supports_splitting = supports_coalescing = supports_time_estimate = supports_reconfigure = supports_window = False

    # Makes the groups derived from this one. backend.py sets it, because it knows the classes that they may have.
    _meet: Callable[[Any, int, int, str, timedelta], ProcessGroupA2A]

    def __init__(self, comm: a2a.Communicator | None, store: Any, rank: int, size: int, name: str) -> None:
        super().__init__(rank, size)
        self._begin(comm, store, rank, size)
        self._name, self._description, self._splits = name, "", 0
        self._stand_in: ProcessGroup | None = None
        adopt(self, comm)

    def split_group(
        self, ranks: Any, timeout: timedelta | None = None, opts: Any = None, group_name: str | None = None,
        group_desc: str | None = None, device_types: Any = None,
    ) -> Any:  # fmt: skip
        """Return a group of these ranks, in ascending order, None where this one is not among them. Collective over
        them. Without a timeout it has that of this group."""
        if not 0 < len(ranks) == len(set(ranks)) or not all(0 <= rank < self.size() for rank in ranks):
            raise SplitError(f"ranks {list(ranks)}: pass different ranks of this group of {self.size()}, at least one")
        description = f"{self._description}:split:{self._splits}" if group_desc is None else group_desc
        self._splits += 1
        if self.rank() not in ranks:
            return None
        ranks = sorted(ranks)
        place = ranks.index(self.rank()), len(ranks), group_name or f"{self._name}:split:{ranks}"
        return self._derived(self._store, place, timeout or self.options._timeout, description)

    splitGroup = split_group  # its name in C++

    def merge_remote_group(
        self, store: Any, size: int, timeout: timedelta = c10d.default_pg_timeout, group_name: str | None = None,
        group_desc: str | None = None,
    ) -> Any:  # fmt: skip
        """Return a group of ``size`` ranks, those of every group that calls this with the store, in the order in which
        they come."""
        name = group_name or f"{self._name}:merge"
        rank = (store.add(f"a2a/{name}/ranks", 1) - 1) % size  # all have come before any comes again
        description = f"{self._description}:merge" if group_desc is None else group_desc
        return self._derived(store, (rank, size, name), timeout, description)

    def mergeRemoteGroup(self, store: Any, opts: Any, size: int) -> Any:
        """merge_remote_group() under the name and with the options that C++ code uses."""
        return self.merge_remote_group(store, size, opts.timeout, opts.group_name, opts.group_desc)

    def _derived(
        self, store: Any, place: tuple[int, int, str], timeout: timedelta, description: str
    ) -> ProcessGroupA2A:
        """Return a group that torch.distributed does not know."""
        group = self._meet(PrefixStore(f"{place[2]}/", store), *place, timeout)
        group._set_group_desc(description)
        return group

    def stand_in(self) -> ProcessGroup:
        """Return a group that has the place and the name of this one, and no method of Python."""
        if self._stand_in is None:
            self._stand_in = ProcessGroup(self.rank(), self.size())
            self._stand_in._set_group_name(self._name)
        return self._stand_in

    def abort(self) -> None:
        """Make every rank that is in an operation of the group, or comes to one, raise a2a.AbortedError, and close the
        communicator here. Not collective; another thread may be in an operation, which it ends."""
        self.comm.abort(f"process group {self._name!r} was aborted")
        forget(self)

    def shutdown(self) -> None:
        """Close the communicator, collectively. torch.distributed.destroy_process_group() calls this."""
        forget(self)
        if self.rank() == 0:
            with contextlib.suppress(RuntimeError):  # the store may be gone
                self._monitored.close()

    @property
    def _device_types(self) -> list[torch.device]:
        return [_CPU]

    def _get_backend(self, device: Any) -> Any:
        """Return the backend of host tensors: the group itself."""
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"No backend type associated with device type {torch.device(device).type}")
        return self

    def get_backend(self, device: Any) -> Any:
        """The same as _get_backend(), new in torch 2.14."""
        return self._get_backend(device)

    def get_group_store(self) -> Any:
        return self._store

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description
