"""Where ranks are that do not come to an end: their Python lines, and what they wait for."""

from __future__ import annotations

import linecache
import re
import time
from collections.abc import Mapping
from pathlib import Path

from .pool import Member

__all__ = ["explanation", "is_stopped", "readable_stack", "stacks"]

# How long a rank may take to write its stack.
_STACK_SECONDS = 1.0
_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)", re.IGNORECASE)
_FRAME = re.compile(r'^ +File "(.*)", line (\d+) in (.*)$')
# The frames from here on are those of what runs the tests.
_RUNNERS = ("/_pytest/", "/pluggy/", "/a2a_pytest/", "/a2a/testing/ranks/", "/unittest/case.py", "/threading.py")
_MOST_FRAMES = 12


def stacks(members: Mapping[int, Member], threads: Mapping[int, int]) -> dict[int, str]:
    """Return the stack of each rank in words. ``threads``: the ranks that are threads, by the numbers of threads."""
    stopped = {rank for rank, member in members.items() if is_stopped(member.pid)}
    before = {rank: len(member.read_stack()) for rank, member in members.items()}
    for rank in members.keys() - stopped:
        members[rank].ask_stack()
    patience = time.monotonic() + _STACK_SECONDS
    while time.monotonic() < patience and any(
        len(members[r].read_stack()) == before[r] for r in members if r not in stopped
    ):
        time.sleep(0.01)
    time.sleep(0.02)  # they may be written only in part yet
    return {
        rank: "it is stopped" if rank in stopped else readable_stack(member.read_stack(), threads)
        for rank, member in members.items()
    }


def readable_stack(text: str, threads: Mapping[int, int] | None = None) -> str:
    """Return what the fault handler has written without the frames that all tests have, with the source lines, the last
    call last. Of several threads the main one, or those that are ranks."""
    found: list[tuple[int, list[str]]] = []
    for line in text.splitlines():
        if match := _THREAD.match(line):
            found.append((int(match[1], 16), []))
        elif (match := _FRAME.match(line)) and found:
            found[-1][1].append(_frame(match[1], int(match[2]), match[3]))
    if not found:
        return ""
    if threads:
        return "\n".join(
            f"rank {threads[number]}:\n{_shown(frames)}"
            for number, frames in sorted(found, key=lambda thread: threads.get(thread[0], -1))
            if number in threads
        )
    return _shown(found[-1][1])  # the fault handler writes the main thread last


def _frame(path: str, line: int, function: str) -> str:
    source = linecache.getline(path, line).strip()
    return f"{path}:{line} in {function}" + (f"\n    {source}" if source else "")


def _shown(frames: list[str]) -> str:
    """``frames``: the last call first, as the fault handler writes them."""
    of_test: list[str] = []
    for frame in frames:
        if any(part in frame.partition("\n")[0] for part in _RUNNERS):
            if of_test:
                break
            continue
        of_test.append(frame)
    return "\n".join(f"  {frame}" for frame in reversed(of_test[:_MOST_FRAMES])) or "  outside of the test's functions"


def is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def explanation(folder: Path) -> tuple[str, list[int]]:
    """Return what ``a2a explain`` prints of this folder about communicators on which a rank is stuck, and the ranks
    that it names as the cause. Nothing if there are none."""
    from ...cli.explain import stuck_in

    return stuck_in(folder)
