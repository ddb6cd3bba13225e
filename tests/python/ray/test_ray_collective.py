"""``import a2a.ray``: the calls of ray.util.collective on a2a, in actors. Ray Train is in test_torch_libraries.py."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray")
pytestmark = [pytest.mark.timeout(300), pytest.mark.full]

import a2a.ray  # noqa: E402
import ray  # noqa: E402
from ray.util import collective  # noqa: E402
from ray_ranks import Actor  # noqa: E402

import a2a  # noqa: E402

KINDS = ("numpy", "torch")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    support = str(Path(__file__).parents[1] / "support")
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": support}},
    )
    yield
    ray.shutdown()


@pytest.fixture
def actors() -> Iterator[list[Any]]:
    made = [Actor.remote(rank, 3) for rank in range(3)]  # type: ignore[attr-defined]
    yield made
    for one in made:
        ray.kill(one)


def on_all(actors: list[Any], method: str, *args: Any) -> list[Any]:
    found: list[Any] = ray.get([getattr(one, method).remote(*args) for one in actors], timeout=120)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_all_calls(actors: list[Any], kind: str) -> None:
    assert on_all(actors, "join", "calls") == [0, 1, 2]
    for rank, found in enumerate(on_all(actors, "calls", "calls", kind)):
        assert found["allreduce sum"] == [6, 9] and found["allreduce product"] == [6, 15]
        assert found["allreduce min"] == [1, 1] and found["allreduce max"] == [3, 5]
        assert found["reduce"] == ([[3, 3]] if rank == 1 else [[rank, 1]])
        assert found["broadcast"] == [2, 2, 2]
        assert [found[f"allgather {p}"] for p in range(3)] == [[[0, 0]], [[1, 10]], [[2, 20]]]
        assert found["reducescatter"] == [30 + 3 * rank, 3] and found["its list"] == [10 * rank, 1]
        assert found["message"] == [0 if rank == 2 else rank] * 2


def test_a_group_of_the_same_name_again(actors: list[Any]) -> None:
    for _ in range(3):
        assert on_all(actors, "join", "again") == [0, 1, 2]
        on_all(actors, "calls", "again", "numpy")
        on_all(actors, "leave", "again")


def test_a_group_that_the_driver_declares(actors: list[Any]) -> None:
    collective.create_collective_group(actors, 3, [2, 0, 1], backend="a2a", group_name="declared")
    found = on_all(actors, "refused", "declared")
    assert all("allreduce #1" in text for text in found), found


def test_an_actor_that_is_killed_in_a_collective(actors: list[Any]) -> None:
    """The others hear of it at once, and make the next group, in which another actor takes its place."""
    on_all(actors, "join", "killed")
    pids = on_all(actors, "pid")
    calls = [one.reduce_for_ever.remote("killed") for one in actors]
    time.sleep(0.5)
    os.kill(pids[1], signal.SIGKILL)
    began = time.monotonic()
    errors = ray.get([calls[0], calls[2]], timeout=60)
    assert time.monotonic() - began < 20
    assert all(f"rank 1 (pid {pids[1]}" in error for error in errors), errors
    on_all([actors[0], actors[2]], "leave", "killed")
    actors[1] = Actor.remote(1, 3)  # type: ignore[attr-defined]
    assert on_all(actors, "join", "killed") == [0, 1, 2]
    on_all(actors, "calls", "killed", "numpy")


def test_several_tensors_of_one_process() -> None:
    group = a2a.ray.A2AGroup.__new__(a2a.ray.A2AGroup)
    with pytest.raises(a2a.UnsupportedError, match="2 tensors of one process"):
        group.allreduce([np.ones(1), np.ones(1)])
