"""Actors of Ray that are ranks of a group."""

from __future__ import annotations

import os
from typing import Any

import a2a.ray
import numpy as np
import ray
from ray.util import collective

import a2a


def tensor(kind: str, values: Any, dtype: str = "float32") -> Any:
    array = np.array(values, dtype)
    if kind == "numpy":
        return array
    import torch

    return torch.from_numpy(array)


@ray.remote(num_cpus=1)
class Actor:
    """A rank of a group. Each call of the test is one method, so that all ranks are in it at once."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def pid(self) -> int:
        return os.getpid()

    def join(self, name: str) -> int:
        collective.init_collective_group(self.size, self.rank, backend="a2a", group_name=name)
        return collective.get_rank(name)

    def leave(self, name: str) -> None:
        collective.destroy_collective_group(name)

    def calls(self, name: str, kind: str) -> dict[str, list[Any]]:
        r, n = self.rank, self.size
        found: dict[str, Any] = {}
        for word, op in (("sum", 0), ("product", 1), ("min", 2), ("max", 3)):
            x = tensor(kind, [r + 1, 2 * r + 1])
            collective.allreduce(x, name, op=collective.types.ReduceOp(op))
            found[f"allreduce {word}"] = x
        x = tensor(kind, [[r, 1]], "int64")
        collective.reduce(x, dst_rank=1, group_name=name)
        found["reduce"] = x
        x = tensor(kind, [r] * 3)
        collective.broadcast(x, src_rank=n - 1, group_name=name)
        found["broadcast"] = x
        outputs = [tensor(kind, [[0, 0]]) for _ in range(n)]
        collective.allgather(outputs, tensor(kind, [[r, 10 * r]]), name)
        for place, output in enumerate(outputs):
            found[f"allgather {place}"] = output
        parts, own = [tensor(kind, [10 * r + p, 1]) for p in range(n)], tensor(kind, [0, 0])
        collective.reducescatter(own, parts, name)
        found["reducescatter"], found["its list"] = own, parts[0]
        x = tensor(kind, [r, r])
        if r == 0:
            collective.send(x, n - 1, name)
        elif r == n - 1:
            collective.recv(x, 0, name)
        found["message"] = x
        collective.barrier(name)
        return {word: value.tolist() for word, value in found.items()}

    def reduce_for_ever(self, name: str) -> str:
        x = np.ones(1 << 16)
        try:
            while True:
                collective.allreduce(x, name)
        except a2a.PeerLostError as error:
            return str(error)

    def refused(self, name: str) -> str:
        try:
            collective.allreduce(np.ones(3 + self.rank), name)
        except a2a.MismatchError as error:
            return str(error)
        return ""
