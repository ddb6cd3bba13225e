"""The resources of the machine that this process may use."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .. import _core


def affinity_cpus() -> int:
    return len(os.sched_getaffinity(0))


def cgroup_cpus() -> float | None:
    """Return the CPU quota of this process's control group or any above it; None without one."""
    return _core.cpu_quota()


def allowed_cpus() -> int:
    """Return the number of CPUs on which threads of this process can run at once, at least 1."""
    return max(1, int(min(affinity_cpus(), cgroup_cpus() or affinity_cpus())))


def available_memory() -> int:
    """Return the bytes that can be used without swapping, within the control group's limit."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    free = [int(found[1]) * 1024] if found else []
    for folder in _cgroup_folders("memory"):
        for limit_name, usage_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, usage = _read(folder / limit_name), _read(folder / usage_name)
            if limit.isdecimal() and usage.isdecimal():
                free.append(max(0, int(limit) - int(usage)))
    return min(free, default=1 << 30)


def _cgroup_folders(controller: str) -> list[Path]:
    """Return the folders of this process's control group and of those above it, versions 2 and 1."""
    folders: list[Path] = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or controller in controllers.split(","):
            root = Path("/sys/fs/cgroup") if number == "0" else Path("/sys/fs/cgroup") / controllers
            own = root / path.lstrip("/")
            folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return folders


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
