"""How ranks on several hosts meet: in Paddle's store, and under MPI's launchers through MPI.

Paddle makes its store at PADDLE_MASTER or MASTER_ADDR. Under other launchers than its own a store is made where
``a2a.init()`` would meet, before Paddle's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import paddle
from paddle.base import core

import a2a
from a2a._places import address_among, interface_towards, is_loopback, meeting_place, several_hosts
from a2a._store_meeting import meet
from a2a.launch import Launch, mark_as_rank

__all__ = ["PaddleStore", "meet_between", "reachable_address", "several_hosts"]

_made: Any = None  # the store of a job that another launcher has started; with rank 0's copy it ends


class PaddleStore:
    """A store of Paddle's, which has no more than ``set``, ``get``, ``add`` and ``wait``, as a2a's meeting asks for it.
    ``get`` waits for a key, so a number beside each key says whether it was set. Each answer of this store takes some
    tens of milliseconds, so no question is asked twice."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self._there: set[str] = set()

    def set(self, key: str, value: bytes) -> None:
        self._store.set(self._prefix + key, value.hex())
        self._store.add(f"{self._prefix}{key}/set", 1)
        self._there.add(key)

    def get(self, key: str) -> bytes:
        return bytes.fromhex(self._store.get(self._prefix + key).decode())

    def find(self, key: str) -> bytes:
        return self.get(key) if self.has([key]) else b""

    def has(self, keys: Sequence[str]) -> bool:
        """A key that was deleted has the value b""."""
        for key in keys:
            if key not in self._there and not self._store.add(f"{self._prefix}{key}/set", 0):
                return False
            self._there.add(key)
        return True

    def add(self, key: str, number: int) -> int:
        return int(self._store.add(f"{self._prefix}{key}/number", number))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._store.set(self._prefix + key, "")


def meet_between(launch: Launch, group_id: int, ranks: tuple[int, ...], timeout: float) -> a2a.Communicator:
    """Make the communicator of a group whose ranks are on several hosts. Collective over them."""
    store = _store_of(launch, timeout)
    mark_as_rank()
    if store is None:
        return a2a.init(timeout=timeout)  # over MPI, or the error of ranks that cannot meet
    at = PaddleStore(store, f"a2a/{group_id}/{ranks}/")
    return meet(at, ranks.index(launch.rank), len(ranks), timeout, [_master(launch)], launch)


def reachable_address(comm: a2a.Communicator, launch: Launch) -> str:
    """Collective. Return an address of this host at which the hosts of the other ranks reach it."""
    if not several_hosts(launch):
        return "127.0.0.1"
    own = address_among([_master(launch)]).strip("[]") or "127.0.0.1"
    told = [text.decode() for text in comm.allgather_bytes(own.encode())]
    elsewhere = [address for address in told if not is_loopback(address)]
    if is_loopback(own) and elsewhere:
        with contextlib.suppress(OSError):
            return interface_towards(elsewhere[0])
    return own


def _store_of(launch: Launch, timeout: float) -> Any:
    """Return Paddle's store, or one that is made here; None where the ranks meet without."""
    global _made
    if paddle.distributed.collective._default_store is not None:
        return paddle.distributed.collective._default_store
    if launch.launcher == "paddle.distributed.launch":
        return core.create_or_get_global_tcp_store()  # the one that init_parallel_env() will use
    place = meeting_place(launch)
    if _made is None and place is not None:
        host, _, port = place.rpartition(":")
        _made = core.TCPStore(host, int(port), launch.rank == 0, launch.size, int(timeout))
    return _made


def _master(launch: Launch) -> str:
    """Return the host of Paddle's store, or of the one that is made here; "" if nothing says where it is."""
    if launch.launcher != "paddle.distributed.launch":
        place = meeting_place(launch)
        return place.rpartition(":")[0].strip("[]") if place else ""
    first = os.environ.get("PADDLE_TRAINER_ENDPOINTS", "").split(",")[0]
    return os.environ.get("MASTER_ADDR") or (os.environ.get("PADDLE_MASTER") or first).rpartition(":")[0]
