"""The ranks of a torch group meet through the group's own store."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore

import a2a
from a2a._store_meeting import meet as meet_through

__all__ = ["TorchStore", "meet"]


class TorchStore:
    """A store of torch's as a2a's meeting asks for it."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return bytes(self._store.get(key))

    def find(self, key: str) -> bytes:
        """Nothing also where a rank of an attempt that has succeeded removes the key right now."""
        try:
            return self.get(key) if self._store.check([key]) else b""
        except dist.DistStoreError:
            return b""

    def has(self, keys: Sequence[str]) -> bool:
        return bool(self._store.check(list(keys)))

    def add(self, key: str, number: int) -> int:
        return int(self._store.add(key, number))

    def delete(self, keys: Sequence[str]) -> None:
        with contextlib.suppress(RuntimeError):  # the store may be gone, and not every store can delete
            for key in keys:
                self._store.delete_key(key)


def meet(store: Any, name: str, rank: int, size: int, timeout: float) -> a2a.Communicator:
    """Make the communicator of the group called ``name``. Collective over its members, which need not have met before.
    After an error it may be called again."""
    return meet_through(TorchStore(PrefixStore(f"a2a/{name}", store)), rank, size, timeout, _hosts_of(store))


def _hosts_of(store: Any) -> list[str]:
    """Return the name of the host on which a store is, if it is on one."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return [store.host] if isinstance(store, dist.TCPStore) else []
