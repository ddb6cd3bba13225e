"""What a process has that it could leave behind."""

from __future__ import annotations

import contextlib
from pathlib import Path

# A process makes these once and keeps them for all its communicators.
_KEPT = ("/memfd:a2a (deleted)", "/memfd:a2a-common (deleted)")


def children() -> set[int]:
    """Processes that this one has started and not reaped, zombies included."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended since
            found.update(map(int, (task / "children").read_text().split()))
    return found


def descriptors() -> dict[int, str]:
    """Open descriptors that a communicator or its start could have left."""
    kinds = ("socket:", "pipe:", "/memfd:", "anon_inode:")
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:
            continue  # the descriptor that lists this directory
        if target.startswith(kinds) and target not in _KEPT:
            found[int(entry.name)] = target
    return found


def shared_files() -> set[str]:
    # Other programs on this machine, other MPIs and tests that run beside this one among them, come and go there too.
    names = (entry.name for entry in Path("/dev/shm").iterdir())
    return {name for name in names if "a2a" in name and not name.startswith("a2a-test-")}
