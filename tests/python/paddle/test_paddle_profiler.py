"""Calls of a2a.paddle are ranges of Paddle's profiler."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from rank_pool import Pool

paddle = pytest.importorskip("paddle")
import a2a.paddle as dist

import a2a

pytestmark = pytest.mark.timeout(110)


def profile(world: a2a.Communicator) -> dict[str, Any]:
    """What the profiler writes of a few calls."""
    group = world.group([0, 1])
    if group is None:
        return {}
    profiler = paddle.profiler
    with tempfile.TemporaryDirectory() as folder:
        export = profiler.export_chrome_tracing(folder)
        with profiler.Profiler(targets=[profiler.ProfilerTarget.CPU], on_trace_ready=export):
            tensor = paddle.ones([4])
            dist.all_reduce(tensor, group=group)
            dist.stream.alltoall_single(paddle.empty([4]), tensor, group=group)
            dist.all_gather([], tensor, group=group)
        text = "".join(file.read_text() for file in Path(folder).iterdir())
    dist.all_reduce(tensor, group=group)  # without a profiler
    return {name: name in text for name in ("a2a:allreduce", "a2a:alltoall_single", "a2a:all_gather")}


def test_ranges(paddle_pool: Pool) -> None:
    told = [one for one in paddle_pool.run(profile) if one]
    assert told == [{"a2a:allreduce": True, "a2a:alltoall_single": True, "a2a:all_gather": True}] * 2
