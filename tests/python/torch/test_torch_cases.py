"""Every case of cases.py, in groups of 1 to 8 ranks, in the default group and in a group of all ranks.

``--peer gloo`` runs them on torch's own backend instead; docs/frameworks/torch.md has the outcome."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rank_pool import Pool
from sample import examples
from torch_cases import CASES, DTYPES, Case
from torch_worlds import RANKS, WAYS, group

import a2a
from a2a import testing

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


def run_random(comm: a2a.Communicator, way: str, size: int, seed: int, call: str, dtype: str, row: Any) -> str | None:
    at = group(comm, way, size)
    if comm.rank >= size:
        return None
    matrix = testing.random_counts(np.random.default_rng(seed), size, 40, empty=0.3)
    case = Case(call, dtype, lambda source, target: int(matrix[source, target]), row, async_op=seed % 2 == 1)
    return case.run(way, at, comm.rank, size)


def test_random_exchanges(ranks: Pool, peer: str) -> None:
    """Sizes, amounts, dtypes and shapes of rows at random."""
    if peer != "a2a":
        pytest.skip("Gloo has no uneven lists and not all dtypes")

    def check(way: str, size: int, seed: int, call: str, dtype: str, row: tuple[int, ...]) -> None:
        assert ranks.run(run_random, way, size, seed, call, dtype, row) == [None] * RANKS

    limits = settings(
        max_examples=examples(60),
        phases=[Phase.explicit, Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    limits(
        given(
            way=st.sampled_from(WAYS),
            size=st.integers(1, RANKS),
            seed=st.integers(0, 2**32 - 1),
            call=st.sampled_from(["single", "list", "gather_list"]),
            dtype=st.sampled_from(DTYPES),
            row=st.sampled_from([(), (1,), (7,), (2, 3), (0,), (300,)]),
        )(check)
    )()
