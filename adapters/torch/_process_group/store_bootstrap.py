"""A bootstrap for the ranks of a torch group: they meet through the group's own store."""

from __future__ import annotations

import contextlib
import functools
import secrets
import time
import warnings
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore

import a2a

__all__ = ["meet"]

_NAME_BYTES = 16
_LONGEST_PAUSE = 0.02  # seconds between two reads of the store


class StoreBootstrap:
    """``allgather`` over a store, for ``a2a.init(bootstrap=)``. Waits in short steps, so that Ctrl-C works.

    A store may outlive its ranks, groups of the same name follow one another, and ranks that fail try again, so an
    entry may be of another attempt. So each attempt of a rank has a random name, which it writes into the store. Rank 0
    makes a meeting of the names that it finds there, and a new one when they change. Each rank agrees to a meeting that
    has its own name, and the ranks have met when all have agreed to one. Their messages then have its name in their
    keys."""

    def __init__(self, store: Any, rank: int, size: int, timeout: float) -> None:
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._deadline = time.monotonic() + timeout
        self._name = secrets.token_bytes(_NAME_BYTES)
        self._meeting = ""
        self._rounds = 0

    def allgather(self, mine: bytes) -> list[bytes]:
        """Return every rank's bytes in rank order. Raises a2a.TimeoutError naming the missing ranks."""
        if not self._meeting:
            self._meet()
        read = self._key(self._rank)
        self._rounds += 1
        self._set(self._key(self._rank), mine)
        pause = _Pause()
        while absent := self._absent():
            self._wait(pause, absent)
        self._delete(read)  # all ranks are in this round, so they have read those before it
        return [self._get(self._key(rank)) for rank in range(self._size)]

    def finish(self) -> None:
        """Remove what this attempt has written, after its last round. The last rank that comes here removes what the
        others may have had to read until then."""
        self._delete(f"name/{self._rank}", *(["meeting"] if self._rank == 0 else []))
        with contextlib.suppress(RuntimeError):  # the store may be gone
            if self._store.add(f"{self._meeting}/read", 1) == self._size:
                self._delete(f"{self._meeting}/read", *map(self._key, range(self._size)))

    def withdraw(self) -> None:
        """Take back the name of this attempt, so that ranks that come later wait for the next one."""
        with contextlib.suppress(RuntimeError):  # the store may be gone
            self._set(f"name/{self._rank}", b"")  # not deleted: a rank that is about to read it would block

    def _meet(self) -> None:
        self._set(f"name/{self._rank}", self._name)
        known, pause, seen = b"", _Pause(), set[int]()
        while True:
            names = self._names()
            seen |= {rank for rank, name in enumerate(names) if name}
            if self._rank == 0 and all(names) and b"".join(names) != known:
                self._set("meeting", b"".join(names))
            if (now := self._find("meeting")) not in (b"", known):
                known = now
                own = now[_NAME_BYTES * self._rank :][:_NAME_BYTES]
                self._meeting = now.hex() if own == self._name else ""
                if self._meeting:
                    self._set(self._key(self._rank), b"")
            absent = self._absent() if self._meeting else sorted(set(range(self._size)) - seen) or [0]
            if not absent:
                return
            self._wait(pause, absent)

    def _names(self) -> list[bytes]:
        keys = [f"name/{rank}" for rank in range(self._size)]
        return [self._find(key) for key in keys]

    def _absent(self) -> list[int]:
        """Return the ranks that have not come to this round of the meeting."""
        keys = [self._key(rank) for rank in range(self._size)]
        return [] if self._store.check(keys) else [r for r, key in enumerate(keys) if not self._store.check([key])]

    def _key(self, rank: int) -> str:
        return f"{self._meeting}/{self._rounds}/{rank}"

    # The value is never empty: not every store can tell an empty value from a missing one.
    def _set(self, key: str, value: bytes) -> None:
        self._store.set(key, b"=" + value)

    def _get(self, key: str) -> bytes:
        return bytes(self._store.get(key))[1:]

    def _delete(self, *keys: str) -> None:
        with contextlib.suppress(RuntimeError):  # the store may be gone, and not every store can delete
            for key in keys:
                self._store.delete_key(key)

    def _find(self, key: str) -> bytes:
        """Return what a key has, nothing if there is none. Nor is there one if a rank of an attempt that has succeeded
        removes it right now."""
        try:
            return self._get(key) if self._store.check([key]) else b""
        except dist.DistStoreError:
            return b""

    def _wait(self, pause: _Pause, absent: list[int]) -> None:
        if time.monotonic() > self._deadline:
            raise a2a.TimeoutError(
                f"rank {self._rank} of {self._size} timed out after {self._timeout:g} s waiting for rank "
                f"{', '.join(map(str, absent))} in the first exchange of this process group"
            )
        pause()


class _Pause:
    """A pause that is longer each time."""

    def __init__(self) -> None:
        self._seconds = 1e-4

    def __call__(self) -> None:
        time.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, _LONGEST_PAUSE)


def host_id() -> bytes:
    """Return an id that is equal for processes that can reach each other's shared memory: the running kernel, and the
    network namespace of its sockets."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/net').stat().st_ino}".encode()


def meet(store: Any, name: str, rank: int, size: int, timeout: float) -> a2a.Communicator | None:
    """Make the communicator of the group called ``name``. Collective over its members, which need not have met before.
    Returns None, with a warning on one rank, where they are on several hosts. After an error it may be called again."""
    bootstrap = StoreBootstrap(PrefixStore(f"a2a/{name}", store), rank, size, timeout)
    try:
        hosts = len(set(bootstrap.allgather(host_id())))
        comm = a2a.init(rank, size, bootstrap=bootstrap, timeout=timeout) if hosts == 1 else None
    except BaseException:
        bootstrap.withdraw()
        raise
    bootstrap.finish()
    if comm is None and rank == 0:
        _warn_of_several_hosts()
    return comm


@functools.cache
def _warn_of_several_hosts() -> None:
    """Warn once in a process: programs make many groups, and the warning is the same for all."""
    warnings.warn(
        "the ranks of a process group live on several hosts, which a2a does not connect through a store of torch's, "
        "that knows no secret; torch's own backend carries host tensors, in this group and others like it",
        RuntimeWarning,
        stacklevel=4,
    )
