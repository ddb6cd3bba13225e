"""How many tokens chose each expert. A program that A2A_RECORD records writes it at its end, in a file for each rank
beside the timelines; ``a2a replay --balance`` reads the files."""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _files
from ._core import InvalidArgumentError

__all__ = ["ExpertLoads", "read", "recorded"]

_PATTERN = "experts-*.json"
_MOST_EXPERTS = 1 << 20


@dataclass
class ExpertLoads:
    """What one placement of experts got."""

    ranks: int
    homes: list[list[int]]
    """The ranks of each expert."""
    tokens: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """[experts]: how often each was chosen."""


_found: dict[int, list[ExpertLoads]] = {}  # by rank; threads may be ranks


def recorded(rank: int, ranks: int, homes: Sequence[Sequence[int]]) -> ExpertLoads | None:
    """Return where a rank adds what its tokens choose from now on. None: nothing is recorded."""
    if not os.environ.get("A2A_RECORD"):
        return None
    if not _found:
        atexit.register(_write)
    loads = ExpertLoads(ranks, [list(own) for own in homes], np.zeros(len(homes), np.int64))
    _found.setdefault(rank, []).append(loads)
    return loads


def _write() -> None:
    folder = Path(os.environ.get("A2A_RECORD") or ".")
    for rank, several in _found.items():
        layers = [
            {"ranks": one.ranks, "homes": one.homes, "tokens": one.tokens.tolist()}
            for one in several
            if one.tokens.any()
        ]
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"experts": 1, "rank": rank, "layers": layers})
        _files.write(folder / f"experts-{rank}-{os.getpid()}.json", text + "\n")


def read(folder: str | Path) -> list[ExpertLoads]:
    """Read the loads of a recording: those of all ranks for equal placements, added. Raises InvalidArgumentError where
    there are none, or a file is no recording."""
    added: dict[str, ExpertLoads] = {}
    paths = sorted(Path(folder).glob(_PATTERN)) if Path(folder).is_dir() else []
    for path in paths:
        written = _files.read_json(path)
        layers = written.get("layers") if isinstance(written, dict) and written.get("experts") == 1 else None
        if not isinstance(layers, list):
            raise InvalidArgumentError(f"{path} is no recording of experts")
        for layer in layers:
            loads = _parsed(path, layer)
            known = added.setdefault(json.dumps([loads.ranks, loads.homes]), loads)
            if known is not loads:
                known.tokens = known.tokens + loads.tokens
    if not added:
        text = "no tokens of experts are in the recording; A2A_RECORD=folder records those of an ExpertParallel"
        raise InvalidArgumentError(f"{folder}: {text}")
    return list(added.values())


def _parsed(path: Path, layer: Any) -> ExpertLoads:
    def numbers(value: Any, most: int) -> bool:
        return isinstance(value, list) and all(type(one) is int and 0 <= one < most for one in value)

    given: dict[str, Any] = layer if isinstance(layer, dict) else {}
    ranks, homes, tokens = given.get("ranks"), given.get("homes"), given.get("tokens")
    if (
        not isinstance(ranks, int)
        or not 0 < ranks <= _files.MOST_RANKS
        or not isinstance(homes, list)
        or not isinstance(tokens, list)
        or not 0 < len(homes) == len(tokens) <= _MOST_EXPERTS
        or not all(numbers(own, ranks) for own in homes)
        or not numbers(tokens, 1 << 53)
    ):
        raise InvalidArgumentError(f"{path} is no recording of experts")
    return ExpertLoads(ranks, homes, np.array(tokens, np.int64))
