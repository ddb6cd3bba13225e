"""Objects instead of tensors: pickled, and sent as bytes."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import numpy.typing as npt

import a2a
from a2a.adapting import collective, takes

from ._errors import CallError
from ._groups import rank_in_group

_Bytes = npt.NDArray[np.uint8]


@collective
def all_gather(comm: a2a.Communicator, objects: list[Any], obj: Any) -> None:
    takes(2)
    mine = _pickled(obj)
    sizes = np.empty(comm.size, np.int64)
    comm.allgather(np.array([mine.size]), sizes)
    everyone = np.empty(int(sizes.sum()), np.uint8)
    comm.allgatherv(mine, everyone, sizes)
    objects.extend(_loaded(part) for part in np.split(everyone, sizes.cumsum()[:-1]))


@collective
def broadcast(comm: a2a.Communicator, group: Any, objects: list[Any], src: Any) -> None:
    takes(2)
    root = rank_in_group(src, "src", group, comm)
    sizes = np.zeros(2, np.int64)  # objects, bytes
    if comm.rank == root:
        data = _pickled(objects)
        sizes[:] = len(objects), data.size
    comm.broadcast(sizes, root)
    if comm.rank != root:
        data = np.empty(int(sizes[1]), np.uint8)
    comm.broadcast(data, root)
    if comm.rank == root:
        return
    if len(objects) != sizes[0]:
        raise a2a.InvalidArgumentError(
            f"rank {comm.rank}: object_list has {len(objects)} entries, but that of rank {root} has {sizes[0]}"
        )
    objects[:] = _loaded(data)


@collective
def scatter(comm: a2a.Communicator, group: Any, outputs: list[Any], objects: list[Any] | None, src: Any) -> None:
    root = rank_in_group(src, "src", group, comm)
    parts: list[_Bytes] = []
    if comm.rank == root:
        if not objects:
            raise CallError("The in_object_list should not be empty on src rank.")
        if len(objects) != comm.size:
            raise a2a.InvalidArgumentError(
                f"in_object_list has {len(objects)} objects, but the group has {comm.size} ranks"
            )
        parts = [_pickled(obj) for obj in objects]
    data = np.concatenate(parts) if parts else np.empty(0, np.uint8)
    mine, _ = comm.exchange(data, [part.size for part in parts] or [0] * comm.size)
    outputs[:] = [_loaded(mine)]


def _pickled(obj: Any) -> _Bytes:
    return np.frombuffer(pickle.dumps(obj, pickle.HIGHEST_PROTOCOL), np.uint8)


def _loaded(data: _Bytes) -> Any:
    return pickle.loads(data.tobytes())
