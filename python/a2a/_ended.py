"""What a launcher tells ranks that wait for others to join: which ranks have ended. src/cpp/bootstrap/ended_ranks.h has
the format."""

from __future__ import annotations

import os

from ._descriptors import above_standard

VARIABLE = "A2A_ENDED"


class EndedRanks:
    """A file in memory, in no folder: ranks open it through this process, so that nothing is left of it."""

    def __init__(self, job: str, size: int) -> None:
        self._file = above_standard(os.memfd_create("a2a-ended", os.MFD_CLOEXEC))
        self._write(f"{size} {job}")

    @property
    def environment(self) -> dict[str, str]:
        """What ranks find it by."""
        return {VARIABLE: f"/proc/{os.getpid()}/fd/{self._file}"}

    def add(self, rank: int, how: str) -> None:
        self._write(f"{rank} {how}")

    def close(self) -> None:
        os.close(self._file)

    def _write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode(errors="replace"))
