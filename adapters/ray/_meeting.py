"""How the actors of a group meet: through Ray's own key-value store, each time under a name that nobody had before."""

from __future__ import annotations

import json
import os
import secrets
import time
from typing import Any

import a2a
import ray
from a2a._core import describe_process
from ray.experimental import internal_kv

__all__ = ["meet"]

_SECONDS = 120.0
"""for which a rank waits for the others"""
_PAUSE = 0.01


def meet(size: int, rank: int, group: str) -> a2a.Communicator:
    """Return the communicator of a group. Rank 0 announces a new name for the meeting; the others tell it their handles
    there, and it tells all of them the list. What earlier groups of this name have left leads nobody astray: it has not
    the handles of this one."""
    job = f"ray-{ray.get_runtime_context().get_job_id()}-{group}"
    describe_process(job)
    store = _Store(f"a2a/{job}", time.monotonic() + _SECONDS, group, rank)
    endpoint, handles = (_lead if rank == 0 else _follow)(store, size, rank)
    comm = endpoint.connect(handles, 0, timeout=store.left())
    if rank == 0:
        store.forget(size)
    return comm


class _Store:
    """The part of Ray's store in which one group meets."""

    def __init__(self, prefix: str, deadline: float, group: str, rank: int) -> None:
        self._prefix, self._deadline, self._group, self._rank = prefix, deadline, group, rank
        self.meeting = ""

    def left(self) -> float:
        return max(0.1, self._deadline - time.monotonic())

    def pause(self, missing: str) -> None:
        if time.monotonic() > self._deadline:
            raise a2a.TimeoutError(
                f"a2a.ray: group {self._group}: rank {self._rank} waited {_SECONDS:.0f} seconds for {missing}"
            )
        time.sleep(_PAUSE)

    def put(self, name: str, value: Any) -> None:
        internal_kv._internal_kv_put(f"{self._prefix}/{name}", json.dumps(value).encode())

    def get(self, name: str) -> Any:
        value = internal_kv._internal_kv_get(f"{self._prefix}/{name}")
        return None if value is None else json.loads(value)

    def forget(self, size: int) -> None:
        """Remove what this meeting has left."""
        for name in ("now", f"{self.meeting}/all", *(f"{self.meeting}/{rank}" for rank in range(1, size))):
            internal_kv._internal_kv_del(f"{self._prefix}/{name}")


def _lead(store: _Store, size: int, rank: int) -> tuple[a2a.Endpoint, list[str]]:
    secret = secrets.token_hex(32) if os.environ.get("A2A_TRUST_STORE") == "1" else None
    endpoint = _endpoint(secret)
    store.meeting = secrets.token_hex(16)
    store.put("now", [store.meeting, secret])
    handles = [endpoint.handle]
    for other in range(1, size):
        while (handle := store.get(f"{store.meeting}/{other}")) is None:
            store.pause(f"rank {other}")
        handles.append(handle)
    store.put(f"{store.meeting}/all", handles)
    return endpoint, handles


def _follow(store: _Store, size: int, rank: int) -> tuple[a2a.Endpoint, list[str]]:
    while True:
        while (now := store.get("now")) is None:
            store.pause("rank 0")
        store.meeting, secret = now
        endpoint = _endpoint(secret)
        store.put(f"{store.meeting}/{rank}", endpoint.handle)
        while True:
            handles = store.get(f"{store.meeting}/all")
            if handles is not None and len(handles) == size and handles[rank] == endpoint.handle:
                return endpoint, handles
            if (later := store.get("now")) is not None and later[0] != store.meeting:
                break  # that was the announcement of an earlier group
            store.pause("the other ranks")


def _endpoint(secret: str | None) -> a2a.Endpoint:
    """Return an endpoint, which other nodes reach if the ranks have a common secret."""
    if secret is None and not (os.environ.get("A2A_SECRET") or os.environ.get("A2A_SECRET_FILE")):
        return a2a.Endpoint()
    return a2a.Endpoint(address=ray.util.get_node_ip_address(), secret=secret)
