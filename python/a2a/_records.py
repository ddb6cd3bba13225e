"""What the files of A2A_DUMP and A2A_TRACE have in common: where they are found, their texts, and their rank."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from ._core import InvalidArgumentError
from ._files import MOST_RANKS, printable

__all__ = ["damaged", "files_among", "require_rank", "text_of"]


def files_among(paths: Sequence[str | Path], ending: str) -> list[Path]:
    """Return the files among these, and those with this ending in these folders."""
    found: list[Path] = []
    for path in map(Path, paths):
        found += sorted(path.glob(f"*{ending}")) if path.is_dir() else [path]
    return found


def require_rank(path: Path, rank: int, size: int) -> None:
    """Raise InvalidArgumentError where the numbers of a file are those of no rank."""
    if not 1 <= size <= MOST_RANKS:
        raise damaged(path, f"{size} ranks, where there are 1 to {MOST_RANKS}")
    if not 0 <= rank < size:
        raise damaged(path, f"it is of rank {rank} of {size}")


def damaged(path: Path, why: str) -> InvalidArgumentError:
    """Return the error for a file that no rank has written so."""
    return InvalidArgumentError(f"{path} is damaged: {why}")


@functools.lru_cache(1 << 12)
def text_of(raw: bytes) -> str:
    """Return a text of fixed length in a record, without the zeros behind it, and without control characters."""
    return printable(raw.partition(b"\0")[0].decode("utf-8", "replace"))
