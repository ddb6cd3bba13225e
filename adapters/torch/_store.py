"""How ranks of a torch group meet: through the group's own store."""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore

import a2a

__all__ = ["meet"]

# How often this process has met others in the store of a group. Every member has met equally often, so the number tells
# apart what successive groups of one name leave in a store that outlives them.
_meetings: Counter[str] = Counter()
_LONGEST_PAUSE = 0.02  # seconds between two looks into the store


class StoreBootstrap:
    """``allgather`` over a store, for ``a2a.init(bootstrap=)``. Waits in short steps, so that Ctrl-C gets through."""

    def __init__(self, store: Any, rank: int, size: int, timeout: float) -> None:
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._deadline = time.monotonic() + timeout
        self._keys: list[str] = []  # ours, one for each round

    def allgather(self, mine: bytes) -> list[bytes]:
        """Every rank's bytes in rank order. Raises a2a.TimeoutError naming the first rank that did not come."""
        at = len(self._keys)
        self._keys.append(f"{at}/{self._rank}")
        self._store.set(self._keys[-1], b"=" + mine)  # never empty, which not every store can tell from absent
        return [self._get(f"{at}/{rank}", rank) for rank in range(self._size)]

    def withdraw(self) -> None:
        """Take back what was said, so that ranks that come later wait for this one to come again."""
        for key in self._keys:
            with contextlib.suppress(RuntimeError):  # not every store forgets
                self._store.delete_key(key)

    def _get(self, key: str, rank: int) -> bytes:
        pause = 1e-4
        while not self._store.check([key]):
            if time.monotonic() > self._deadline:
                raise a2a.TimeoutError(
                    f"rank {self._rank}: rank {rank} of {self._size} did not come within {self._timeout:g} s to the "
                    f"first exchange of this process group"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return bytes(self._store.get(key))[1:]


def host_id() -> bytes:
    """The same for processes that can reach each other's shared memory: the running kernel, and the network namespace
    in which its sockets are found."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/net').stat().st_ino}".encode()


def meet(store: Any, name: str, rank: int, size: int, timeout: float) -> a2a.Communicator | None:
    """The communicator of the group called ``name``. Collective over its members; they need not have met before.
    None, with a warning on one rank, where they live on several hosts. After an error it may be called again."""
    bootstrap = StoreBootstrap(PrefixStore(f"a2a/{name}/{_meetings[name]}", store), rank, size, timeout)
    try:
        hosts = len(set(bootstrap.allgather(host_id())))
        comm = a2a.init(rank, size, bootstrap=bootstrap, timeout=timeout) if hosts == 1 else None
    except BaseException:
        bootstrap.withdraw()
        raise
    _meetings[name] += 1
    if comm is None and rank == 0:
        _warn_of_several_hosts()
    return comm


@functools.cache
def _warn_of_several_hosts() -> None:
    """Once in a process: programs make many groups, and all of them say the same."""
    warnings.warn(
        "the ranks of a process group live on several hosts, which a2a does not connect through a store of torch's, "
        "that knows no secret; torch's own backend carries host tensors, in this group and others like it",
        RuntimeWarning,
        stacklevel=4,
    )
