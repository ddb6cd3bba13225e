"""Ranks that live from test to test: member i is rank i of every test with more than i ranks."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .channel import Channel, Closed, readable
from .template import ForkFailed, Template

__all__ = ["Member", "Pool", "TooMany"]

_LEAVE_SECONDS = 5.0
_RANK_BYTES = 8 << 20
"""What a forked rank needs at least for itself: pages that it writes, tables of pages, its shared buffers."""


class TooMany(Exception):
    """So many ranks cannot be had here. The text says why."""


class Member:
    """One rank's process. ``stack`` is the file of memory into which its fault handler writes; ``output`` are the files
    of what it prints during a test, by name."""

    def __init__(self, pid: int, channel: Channel) -> None:
        self.pid, self.channel = pid, channel
        self.pidfd = os.pidfd_open(pid)
        (self._names, stack_signal), descriptors = channel.receive()
        self.stack, *self._files = descriptors
        self._stack_signal: int = stack_signal

    def dead(self) -> bool:
        return bool(readable([self.pidfd], 0))

    def ask_stack(self) -> None:
        self.signal(self._stack_signal)

    def read_stack(self) -> str:
        return _read(self.stack)

    def output(self) -> dict[str, str]:
        return {name: _read(file) for name, file in zip(self._names, self._files, strict=True)}

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def close(self) -> None:
        self.channel.close()
        for descriptor in (self.pidfd, self.stack, *self._files):
            os.close(descriptor)


class Pool:
    """``serve(channel)`` is what a rank does, in a forked process; the first thing that it sends is that of
    ``a2a.testing.ranks.serving.greet``. ``clean_up()`` is called in another forked process when all is over."""

    def __init__(self, serve: Callable[[Channel], None], clean_up: Callable[[], None]) -> None:
        self._template = Template(serve, clean_up)
        self._members: dict[int, Member] = {}

    def take(self, n: int) -> list[Member]:
        """Return ``n`` ranks. Raises TooMany."""
        for rank in [rank for rank, member in self._members.items() if member.dead()]:
            self.end(rank)  # between two tests, by no doing of the next
        missing = [rank for rank in range(n) if rank not in self._members]
        _require_room(n, len(missing))
        for rank in missing:
            try:
                self._members[rank] = self._fork()
            except (ForkFailed, OSError) as error:
                self.retire(list(missing[: missing.index(rank)]))
                raise TooMany(f"rank {rank} of {n} cannot be started: {error}; {_limits()}") from None
        return [self._members[rank] for rank in range(n)]

    def _fork(self) -> Member:
        pid, channel = self._template.fork()
        try:
            return Member(pid, channel)
        except Closed:
            code = self._template.end(pid)
            channel.close()
            raise ForkFailed(f"it ended with code {code} at its start") from None

    def end(self, rank: int) -> int | None:
        """End a rank; the next test that needs it gets a new one. Returns its exit code, negative for a signal."""
        member = self._members.pop(rank)
        code = self._template.end(member.pid)
        member.close()
        return code

    def retire(self, ranks: list[int]) -> dict[int, Any]:
        """Have ranks take leave, which tears down what they have kept from test to test, and end them. Returns what
        they say."""
        words: dict[int, Any] = {}
        waiting = {}
        for rank in ranks:
            with contextlib.suppress(Closed):
                self._members[rank].channel.send(None)
                waiting[rank] = self._members[rank].channel
        deadline = time.monotonic() + _LEAVE_SECONDS
        while waiting and (left := deadline - time.monotonic()) > 0:
            ready = readable([channel.fileno() for channel in waiting.values()], left)
            for rank in [rank for rank, channel in waiting.items() if channel.fileno() in ready]:
                with contextlib.suppress(Closed):
                    words[rank] = waiting[rank].receive()[0]
                del waiting[rank]
        for rank in waiting:
            words[rank] = f"it had not torn down its fixtures after {_LEAVE_SECONDS:g} s"
        for rank in ranks:
            self.end(rank)
        return words

    def close(self) -> dict[int, Any]:
        words = self.retire(list(self._members))
        self._template.close()
        return words

    def kill(self) -> None:
        """End everything at once."""
        for rank in list(self._members):
            self.end(rank)
        self._template.close()


def _read(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, min(size, 1 << 20), 0).decode(errors="replace").replace("\0", "")


def _require_room(n: int, more: int) -> None:
    available = _available_bytes()
    if available is not None and more * _RANK_BYTES > available:
        raise TooMany(
            f"{n} ranks need {more} further processes of at least {_RANK_BYTES >> 20} MiB each, "
            f"{more * _RANK_BYTES >> 20} MiB, and this machine has {available >> 20} MiB available"
        )
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and 5 * more > soft - 64:
        raise TooMany(f"{n} ranks need {5 * more} file descriptors, and RLIMIT_NOFILE (ulimit -n) is {soft}")


def _available_bytes() -> int | None:
    """Return what this machine, or the control group, can still give; None where it does not say."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) << 10)
    with contextlib.suppress(OSError, ValueError):
        group = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
        folder = Path(f"/sys/fs/cgroup{group}")
        used = int((folder / "memory.current").read_text())
        for line in (folder / "memory.stat").read_text().splitlines():
            if line.startswith(("active_file ", "inactive_file ")):
                used -= int(line.split()[1])  # the cache of files, which gives way
        found.append(int((folder / "memory.max").read_text()) - used)
    return min(found, default=None)


def _limits() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return f"RLIMIT_NPROC (ulimit -u) is {'unlimited' if soft == resource.RLIM_INFINITY else soft}"
