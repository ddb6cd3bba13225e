"""``a2a replay --balance``: ranks for experts by what a recorded program's tokens chose."""

from __future__ import annotations

import json
from typing import Any

from .. import _files
from .._balance import balanced_placement, busiest
from .._expert_loads import ExpertLoads, read
from . import _terminal


def balance(folder: str, ranks: int | None, slots: int | None, output: str | None, results: Any) -> int:
    """Print how busy the busiest rank is, and would be. Write the placements to ``output``, and all to ``results``."""
    rows, found = [], []
    for number, loads in enumerate(read(folder)):
        size = ranks or loads.ranks
        room = slots or _slots(loads, size)
        homes = balanced_placement(loads.tokens, size, room)
        mean = float(loads.tokens.sum()) / size or 1.0
        before = busiest(loads.tokens, loads.homes, loads.ranks) / (float(loads.tokens.sum()) / loads.ranks or 1.0)
        after = busiest(loads.tokens, homes, size) / mean
        copies = sum(len(own) for own in homes)
        rows.append((number, len(homes), int(loads.tokens.sum()), size, room, copies, f"{before:.2f}", f"{after:.2f}"))
        found.append(
            {"ranks": size, "slots": room, "before": before, "after": after, "expert_to_rank": homes,
             "tokens": loads.tokens.tolist()}
        )  # fmt: skip
    columns = ("#", "experts", "tokens", "ranks", "slots", "copies", "busiest now", "balanced")
    title = "The tokens of the busiest rank, over the mean of all ranks, for each placement that was recorded:"
    _terminal.show(_terminal.Table(title, rows, columns, list(range(len(columns)))))
    if output:
        _files.write(output, json.dumps([one["expert_to_rank"] for one in found]) + "\n")
    if results:
        _files.write(results, json.dumps(found, indent=1) + "\n")
    return 0


def _slots(loads: ExpertLoads, ranks: int) -> int:
    """Return the room that the recorded program had on a rank, if that is enough for these ranks."""
    used = [0] * loads.ranks
    for own in loads.homes:
        for rank in own:
            used[rank] += 1
    return max(*used, -(-len(loads.homes) // ranks)) if used else 1
