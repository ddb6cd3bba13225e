"""What ranks do in test_mixed.py: each in a framework of its own, with tensors on a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import gpu_ranks
import numpy as np
import numpy.typing as npt

import a2a

Comm = a2a.Communicator
Floats = npt.NDArray[np.float32]


class Tensors:
    """A framework's arrays of float32 on this rank's GPU."""

    def __init__(self, comm: Comm, name: str) -> None:
        if name == "jax":
            os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # it would take most of what the ranks share
            gpu_ranks.place(comm, gpu_ranks.DRIVER)
            import jax

            gpus = jax.devices("gpu")
            device = gpus[comm.rank % len(gpus)]
            self.make: Callable[[Floats], Any] = lambda array: jax.device_put(array, device)
            self.read: Callable[[Any], Floats] = np.asarray
        else:
            framework = gpu_ranks.place(comm, name)
            self.make = lambda array: framework.tensor(
                framework.make(array.reshape(-1).view(np.uint8)), 0, "float32", array.shape
            )
            self.read = lambda tensor: framework.read(tensor).view(np.float32).reshape(tuple(tensor.shape))


def exchange(comm: Comm, names: list[str]) -> None:
    """Every call that allocates its output, in the frameworks' own words afterwards."""
    n, rank, name = comm.size, comm.rank, names[comm.rank % len(names)]
    tensors = Tensors(comm, name)
    for turn in range(20):
        rows = [[(3 * source + target + turn) % 4 for target in range(n)] for source in range(n)]
        sent = [[_rows(source, target, turn, rows[source][target]) for target in range(n)] for source in range(n)]
        x = tensors.make(np.concatenate(sent[rank]))
        # The framework has this to do first.
        y, counts = comm.exchange(x * 2, rows[rank])
        assert counts.tolist() == [rows[source][rank] for source in range(n)]
        _compare(tensors, y, x, 2 * np.concatenate([sent[source][rank] for source in range(n)]))
        _compare(tensors, y + y, x, 4 * np.concatenate([sent[source][rank] for source in range(n)]))

        back = comm.global_gather(comm.global_scatter(x, rows[rank], counts), rows[rank], counts)
        _compare(tensors, back, x, np.concatenate(sent[rank]))
        work = comm.global_scatter(x, rows[rank], counts, async_op=True)
        work.wait()
        _compare(tensors, work.result, x, np.concatenate([sent[source][rank] for source in range(n)]))


def _rows(source: int, target: int, turn: int, rows: int) -> Floats:
    return np.full((rows, 5), 100 * source + target, np.float32) + np.arange(rows, dtype=np.float32)[:, None] / 4 + turn


def _compare(tensors: Tensors, got: Any, like: Any, wanted: Floats) -> None:
    assert type(got) is type(like)
    assert got.device == like.device
    np.testing.assert_array_equal(tensors.read(got), wanted)
