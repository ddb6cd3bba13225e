"""Ascend's rank tables."""

from __future__ import annotations

import os
from dataclasses import dataclass

from . import _binding


@dataclass(frozen=True)
class RankPlace:
    """The place of a rank. Fields that the file leaves out are empty."""

    server_id: str
    host_ip: str
    device_id: str
    device_ip: str
    super_device_id: str
    super_pod_id: str


@dataclass(frozen=True)
class RankTable:
    """The ranks of a job, and their places."""

    version: str
    ranks: tuple[RankPlace, ...]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The servers in the order of their ranks."""
        return tuple(dict.fromkeys(place.server_id for place in self.ranks))


def read_rank_table(file: str | os.PathLike[str]) -> RankTable:
    """Read a rank table of version 1.0 or 1.2 (the "ranktable" of Ascend's documentation), strictly. Raises
    InvalidArgumentError with the file, the JSON path and the value of the first mistake."""
    version, _, places = _binding.read_rank_table(file)
    return RankTable(version, tuple(RankPlace(**place) for place in places))
