"""Streams, tensors in flight, and graphs."""

from __future__ import annotations

import gpu_ranks
import pytest
from rank_pool import Pool

pytestmark = pytest.mark.timeout(150)


@pytest.mark.parametrize("how", ["call", "plan", "async"])
def test_no_call_waits_for_its_stream(ranks: Pool, framework: str, how: str) -> None:
    print("seconds:", ranks.run(gpu_ranks.does_not_wait, framework, how))


def test_streams_in_every_form(ranks: Pool, framework: str) -> None:
    ranks.run(gpu_ranks.streams, framework)


def test_torch_is_not_made_to_wait(ranks: Pool, framework: str) -> None:
    if framework != "torch":
        pytest.skip("Torch has this mode")
    ranks.run(gpu_ranks.sync_debug_mode)


def test_tensors_dropped_in_flight(ranks: Pool, framework: str) -> None:
    ranks.run(gpu_ranks.dropped_in_flight, framework)


def test_a_plan_in_a_graph(ranks: Pool, framework: str) -> None:
    ranks.run(gpu_ranks.graph, framework)


def test_a_plan_captured_by_torch(ranks: Pool, framework: str) -> None:
    if framework != "torch":
        pytest.skip("Torch has these graphs")
    ranks.run(gpu_ranks.torchs_graph)
