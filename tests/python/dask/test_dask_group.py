"""``a2a.dask.group``: the workers of a Dask cluster as ranks, which come and go."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("distributed")
pytestmark = [pytest.mark.timeout(300), pytest.mark.full]

import a2a.dask  # noqa: E402
import dask_ranks  # noqa: E402
from distributed import Client, LocalCluster  # noqa: E402

import a2a  # noqa: E402


@pytest.fixture
def client() -> Iterator[Any]:
    with (
        LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None, memory_limit=None) as cluster,
        Client(cluster) as made,
    ):
        yield made


def start(client: Any, workers: list[str], task: Callable[..., Any], *args: list[Any]) -> list[Any]:
    """Start the task on each worker, with its own of each list of arguments."""
    own = zip(*args, strict=True) if args else [()] * len(workers)
    return [client.submit(task, *each, workers=[at], pure=False) for at, each in zip(workers, own, strict=True)]


def on_all(client: Any, workers: list[str], task: Callable[..., Any], *args: list[Any]) -> list[Any]:
    return [future.result(timeout=60) for future in start(client, workers, task, *args)]


def works(client: Any, workers: list[str], generation: int) -> list[dict[str, Any]]:
    """Check that the workers are ranks 0, 1, ... of a group that exchanges."""
    n = len(workers)
    found = on_all(client, workers, dask_ranks.facts)
    assert [(one["rank"], one["size"], one["generation"]) for one in found] == [(r, n, generation) for r in range(n)]
    blocks = [np.arange(n) + 10 * r for r in range(n)]
    for rank, (received, total) in enumerate(on_all(client, workers, dask_ranks.exchange, blocks)):
        assert received == [10 * source + rank for source in range(n)]
        assert total == [n * (n + 1) / 2]
    return found


def test_workers_that_come_and_go(client: Any) -> None:
    workers = a2a.dask.group(client)
    assert workers == sorted(client.nthreads())
    works(client, workers, 0)

    client.cluster.scale(4)
    client.wait_for_workers(4, timeout=60)
    new = next(iter(set(client.nthreads()) - set(workers)))
    with pytest.raises(a2a.InvalidArgumentError, match=f"{new} is in no group"):
        client.submit(a2a.dask.communicator, workers=[new], pure=False).result(timeout=60)
    works(client, a2a.dask.group(client), 1)
    chosen = [new, workers[1]]
    assert a2a.dask.group(client, chosen) == chosen
    works(client, chosen, 2)
    # Generation 2 is used on two of the four.
    works(client, a2a.dask.group(client), 3)


def test_a_worker_that_is_killed_in_a_collective(client: Any) -> None:
    """The others hear of it at once. Dask starts another, which is in the next group."""
    workers = a2a.dask.group(client)
    pids = [one["pid"] for one in works(client, workers, 0)]
    tasks = start(client, workers, dask_ranks.reduce_for_ever)
    time.sleep(0.5)
    os.kill(pids[1], signal.SIGKILL)
    began = time.monotonic()
    for task in (tasks[0], tasks[2]):
        with pytest.raises(a2a.PeerLostError, match=rf"rank 1 \(pid {pids[1]}"):
            task.result(timeout=60)
    assert time.monotonic() - began < 20
    client.cancel(tasks)
    until = time.monotonic() + 60
    while len(now := set(client.nthreads())) < 3 or workers[1] in now:
        assert time.monotonic() < until
        time.sleep(0.1)
    works(client, a2a.dask.group(client), 1)


def test_a_group_during_a_collective_of_the_former(client: Any) -> None:
    workers = a2a.dask.group(client)
    tasks = start(client, workers, dask_ranks.reduce_for_ever)
    time.sleep(0.5)
    again = a2a.dask.group(client)
    for task in tasks:
        with pytest.raises(a2a.AbortedError):
            task.result(timeout=60)
    works(client, again, 1)


def test_workers_of_several_hosts(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They need a secret, which the client makes, or each has in its environment."""
    workers = sorted(client.nthreads())
    for place, worker in enumerate(workers):
        client.run(dask_ranks.set_variable, "A2A_HOSTS", f"host{place}", workers=[worker])
    monkeypatch.delenv("A2A_TRUST_STORE", raising=False)
    assert [one["hosts"] for one in works(client, a2a.dask.group(client), 0)] == [1, 1, 1]  # no address, no TCP
    monkeypatch.setenv("A2A_TRUST_STORE", "1")
    assert [one["hosts"] for one in works(client, a2a.dask.group(client), 0)] == [3, 3, 3]
    works(client, a2a.dask.group(client), 1)


def test_workers_that_are_threads_of_one_process() -> None:
    """They have one event loop, which no worker may keep. One that is retired leaves the group at once."""
    with (
        LocalCluster(n_workers=3, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        workers = a2a.dask.group(client, timeout=20)
        assert len({one["pid"] for one in works(client, workers, 0)}) == 1
        tasks = start(client, workers[:2], dask_ranks.reduce_for_ever)
        client.retire_workers(workers[2:])
        for task in tasks:
            with pytest.raises(a2a.PeerLostError, match="rank 2"):
                task.result(timeout=60)
        works(client, a2a.dask.group(client, timeout=20), 1)


def test_a_secret_that_one_worker_lacks(client: Any) -> None:
    workers = sorted(client.nthreads())
    client.run(dask_ranks.set_variable, "A2A_SECRET", "0123456789abcdef", workers=workers[:2])
    with pytest.raises(a2a.Error, match="has another secret, or none"):
        a2a.dask.group(client, timeout=20)
    works(client, a2a.dask.group(client, workers[:2]), 0)


def test_lists_that_are_refused(client: Any) -> None:
    one = next(iter(client.nthreads()))
    nobody = "tcp://nobody:1"
    for workers, words in (([], "no workers"), ([nobody], f"'{nobody}' is no worker"), ([one] * 2, "twice")):
        with pytest.raises(a2a.InvalidArgumentError, match=words):
            a2a.dask.group(client, workers)
