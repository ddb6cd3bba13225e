"""Dask on a2a: each worker of a cluster is a rank, and has a communicator with the others::

    import a2a.dask

    workers = a2a.dask.group(client)  # addresses, by rank

    def step(block):
        return a2a.dask.communicator().allreduce(block)

    tasks = [client.submit(step, block, workers=[at], pure=False) for at, block in zip(workers, blocks)]

Each worker has one endpoint, whose handle the client tells the others. When workers have come or gone, call ``group``
again."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Sequence
from typing import Any

import distributed
from distributed.comm import get_address_host

import a2a
from a2a._core import describe_process
from a2a._variables import is_set, switch

__all__ = ["communicator", "group"]

_NAME = "a2a"
"""of the plugin of each worker"""
_SECRET = ["a2a", "secret"]
"""where the scheduler keeps the secret of its workers, if the client trusts it"""


def group(client: Any, workers: Sequence[str] | None = None, *, timeout: float = 120.0) -> list[str]:
    """Give each worker a communicator of the next generation, and return their addresses by rank: those of ``workers``
    in that order, or of all workers that the cluster has now, sorted. The workers' former communicators are aborted.
    Call it in a synchronous client, not in a task. ``timeout`` is in seconds.

    Raises InvalidArgumentError for a list that is empty, or has an address that is no worker's, or twice. Raises what
    Endpoint.connect() raises on a worker, and OSError where Dask cannot reach one. After an error call it again."""
    ranks = _ranks(client, workers)
    trusting = switch(os.environ, "A2A_TRUST_STORE")
    if trusting and client.get_metadata(_SECRET, None) is None:
        client.set_metadata(_SECRET, secrets.token_hex(32))
    told = client.run(_tell, f"dask-{client.scheduler_info()['id']}", trusting, workers=ranks)
    handles = [told[worker][0] for worker in ranks]
    generation = 1 + max(told[worker][1] for worker in ranks)
    client.run(_connect, handles, generation, timeout, workers=ranks)
    return ranks


def communicator() -> a2a.Communicator:
    """Return the communicator of the worker that runs this task. It is the same one until the next ``group``.

    Raises InvalidArgumentError on a worker that is in no group, and ValueError outside of a task."""
    worker = distributed.get_worker()
    member = worker.plugins.get(_NAME)
    if member is None or member.comm is None:
        text = f"a2a.dask: the worker {worker.address} is in no group; call a2a.dask.group(client) when it has come"
        raise a2a.InvalidArgumentError(text)
    comm: a2a.Communicator = member.comm
    return comm


class _Member(distributed.WorkerPlugin):  # type: ignore[misc]
    """What a worker has of a2a. Dask ends it with the worker."""

    def __init__(self, endpoint: a2a.Endpoint, secret: str | None) -> None:
        self.endpoint: a2a.Endpoint | None = endpoint
        self.secret = secret
        self.comm: a2a.Communicator | None = None

    def teardown(self, worker: Any) -> None:
        """Leave the group. Peers that still need this rank raise PeerLostError."""
        self.comm = self.endpoint = None


async def _tell(job: str, trusting: bool, dask_worker: Any) -> tuple[str, int]:
    """On a worker: return the handle of its endpoint, and the last generation that this was in, or -1. A worker that
    has no endpoint, or one with another secret, makes one."""
    # Not an argument: Dask writes those of a call that fails into its log.
    secret = await dask_worker.scheduler.get_metadata(keys=_SECRET, default=None) if trusting else None
    member = dask_worker.plugins.get(_NAME)
    if member is None or member.secret != secret:
        describe_process(job)
        member = _Member(_endpoint(get_address_host(dask_worker.address), secret), secret)
        await dask_worker.plugin_add(member, name=_NAME)
    generation = member.endpoint.generation
    return member.endpoint.handle, -1 if generation is None else generation


async def _connect(handles: list[str], generation: int, seconds: float, dask_worker: Any) -> None:
    """On a worker: join the group, in a thread, so that the worker still answers the scheduler."""
    member = dask_worker.plugins[_NAME]
    member.comm = await asyncio.to_thread(member.endpoint.connect, handles, generation, timeout=seconds)


def _ranks(client: Any, workers: Sequence[str] | None) -> list[str]:
    if client.asynchronous:
        raise a2a.InvalidArgumentError("a2a.dask.group: the client is asynchronous; give it a synchronous one")
    known = sorted(client.nthreads())
    ranks = known if workers is None else list(workers)
    if not ranks:
        raise a2a.InvalidArgumentError("a2a.dask.group: there are no workers")
    for place, worker in enumerate(ranks):
        if worker not in known:
            raise a2a.InvalidArgumentError(f"a2a.dask.group: {worker!r} is no worker of the cluster, which has {known}")
        if worker in ranks[:place]:
            raise a2a.InvalidArgumentError(f"a2a.dask.group: {worker!r} is in the list twice")
    return ranks


def _endpoint(host: str, secret: str | None) -> a2a.Endpoint:
    """Return an endpoint, which other hosts reach if the ranks have a common secret: their own, or the client's."""
    if is_set(os.environ, "A2A_SECRET_FILE") or is_set(os.environ, "A2A_SECRET"):
        return a2a.Endpoint(address=host)
    return a2a.Endpoint() if secret is None else a2a.Endpoint(address=host, secret=secret)
