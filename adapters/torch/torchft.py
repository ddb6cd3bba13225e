"""A process group for torchft: ``Manager(pg=a2a.torch.torchft.ProcessGroupA2A(), ...)``. It is made for torchft 0.2,
which has to be installed.

Each ``configure()`` gives the group other members. It has one endpoint for all of them, so that those who meet again
use their segments and connections again."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any

from torchft.process_group import ProcessGroupWrapper

from ._process_group.reconfigurable import ReconfigurableProcessGroup

__all__ = ["ProcessGroupA2A"]


class ProcessGroupA2A(ProcessGroupWrapper):  # type: ignore[misc, unused-ignore]
    """torchft's reconfigurable process group on a2a. ``timeout`` bounds each configure(), and each operation that has
    no timeout of its own. The group may be used from any thread, one at a time."""

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        super().__init__(timeout)
        self._members: ReconfigurableProcessGroup | None = None

    def _create_pg(self, store: Any, rank: int, world_size: int) -> ReconfigurableProcessGroup:
        members = self._members
        if members is None:
            members = ReconfigurableProcessGroup(store, rank, world_size, f"torchft {id(self)}", self._timeout)
            self._members = members
        store.set(f"a2a/{rank}", members.get_reconfigure_handle())
        if rank == 0:
            store.set("a2a/uuid", str(secrets.randbits(62)))
        handles = [store.get(f"a2a/{peer}").decode() for peer in range(world_size)]
        members.meet(int(store.get("a2a/uuid")), handles, self._timeout)
        return members

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the timeout of later operations and of configure()."""
        super().set_timeout(timeout)
        if self._members is not None:
            self._members.set_timeout(timeout)

    def shutdown(self) -> None:
        """Leave the group, without the others: their next operation raises PeerLostError."""
        super().shutdown()
        self._members = None

    def getBackendName(self) -> str:
        return "torchft-a2a"
