"""Every case of cases.py, in groups of 1 to 8 ranks, in the default group and in a group of all ranks.

``--peer gloo`` runs them on torch's own backend instead; docs/torch.md has the outcome."""

from __future__ import annotations

from typing import Any

import pytest
from rank_pool import Pool

import a2a

from .cases import CASES
from .worlds import RANKS, WAYS, group

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)


def run(comm: a2a.Communicator, way: str, name: str) -> str | None:
    """Returns the first problem: with the default group of the way, and in each group that this rank belongs to."""
    # A failure breaks a group of Gloo, which the next case must not suffer from.
    fresh = (name, 10.0) if way == "gloo" else ()
    groups: list[Any] = [(group(comm, way, size, *fresh), size) for size in range(1, RANKS + 1)]
    if way == "functions":
        groups.append((None, RANKS))
    for at, size in groups:
        if comm.rank >= size:
            continue
        try:
            problem = CASES[name].run(way, at, comm.rank, size)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            return f"{size} ranks: {problem}"
    return None


@pytest.mark.parametrize("name", CASES)
def test_case(ranks: Pool, peer: str, name: str) -> None:
    for way in WAYS if peer == "a2a" else (peer,):
        problems = ranks.run(run, way, name)
        assert problems == [None] * RANKS, f"{way}: {next(problem for problem in problems if problem)}"
