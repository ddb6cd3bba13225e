"""Tasks of Dask whose workers are ranks of a group."""

from __future__ import annotations

import os
from typing import Any

import a2a.dask
import numpy as np

import a2a
from a2a._core import host_facts


def facts() -> dict[str, Any]:
    comm = a2a.dask.communicator()
    hosts = host_facts(comm)["hosts"]
    return {"rank": comm.rank, "size": comm.size, "generation": comm.generation, "pid": os.getpid(), "hosts": hosts}


def exchange(block: Any) -> list[Any]:
    """Send row p to rank p, and sum what comes."""
    comm = a2a.dask.communicator()
    received, total = np.empty_like(block), np.array([comm.rank + 1.0])
    comm.alltoall(block, received)
    comm.allreduce(total, total)
    return [received.tolist(), total.tolist()]


def reduce_for_ever() -> None:
    comm, x = a2a.dask.communicator(), np.ones(1 << 12)
    while True:
        comm.allreduce(x, x)


def set_variable(name: str, value: str) -> None:
    os.environ[name] = value
