"""A sample of the combinations of parameters of tests."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

full = False
"""Whether everything runs: --full."""


def examples(number: int) -> int:
    """Return how many examples a property test tries: all of them with --full, a third without."""
    return number if full else max(number // 3, 3)


def with_full(values: Iterable[Any]) -> list[Any]:
    """Return values of a parameter that only --full runs."""
    return [pytest.param(value, marks=pytest.mark.full) for value in values]


def sample(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Of each test function combinations in which each value of each parameter occurs, and none of a function marked
    `full`. The same in every run: workers of pytest-xdist must agree."""
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("full"):
            continue
        functions[item.nodeid.partition("[")[0]].append(item)
    return {item for name, combinations in functions.items() for item in _of(name, combinations)}


def _of(function: str, combinations: list[pytest.Item]) -> list[pytest.Item]:
    if len(combinations) == 1:
        return combinations
    seen: set[tuple[str, str]] = set()
    kept = []
    for item in random.Random(function).sample(combinations, len(combinations)):
        values = {(name, repr(value)) for name, value in item.callspec.params.items()}  # type: ignore[attr-defined]
        if not values <= seen:
            seen |= values
            kept.append(item)
    return kept
