"""``paddle.distributed`` with the all-to-all calls that it lacks on the CPU: change one import.

    import a2a.paddle as dist   # instead of: import paddle.distributed as dist

``alltoall``, ``alltoall_single``, ``all_gather``, ``barrier``, those of ``stream``, and ``global_scatter`` and
``global_gather`` of ``utils`` run on a2a, on Paddle's groups or on a2a communicators, with gradients. Every other name
is Paddle's own. The orders of arguments are those of Paddle 3.3.1.
"""

from __future__ import annotations

from typing import Any

import paddle.distributed as _paddle

import a2a

from . import _collectives, stream, utils
from ._groups import (
    barrier,
    destroy_process_group,
    get_communicator,
    get_rank,
    get_world_size,
    init_parallel_env,
    new_group,
)
from ._task import Task, finish_all

__all__ = [
    "Task",
    "all_gather",
    "alltoall",
    "alltoall_single",
    "barrier",
    "destroy_process_group",
    "get_communicator",
    "get_rank",
    "get_world_size",
    "init_parallel_env",
    "new_group",
    "stream",
    "utils",
    "wait",
]
__all__ += [name for name in _paddle.__all__ if name not in __all__]


def alltoall_single(
    out_tensor: Any,
    in_tensor: Any,
    in_split_sizes: list[int] | None = None,
    out_split_sizes: list[int] | None = None,
    group: Any = None,
    sync_op: bool = True,
) -> Task | None:
    """``stream.alltoall_single`` without a choice of stream, and with the two lists of sizes the other way round, as in
    Paddle 3.3.1. In Paddle 2 the tensors were the other way round, too."""
    return _collectives.alltoall_single(
        _collectives.SINGLE, out_tensor, in_tensor, out_split_sizes, in_split_sizes, group, sync_op, False
    )


def alltoall(out_tensor_list: Any, in_tensor_list: Any, group: Any = None, sync_op: bool = True) -> Task | None:
    """``stream.alltoall`` without a choice of stream. Output first, as in Paddle 3; in Paddle 2 it came second."""
    return _collectives.alltoall(out_tensor_list, in_tensor_list, group, sync_op, False)


def all_gather(tensor_list: Any, tensor: Any, group: Any = None, sync_op: bool = True) -> Task:
    """``stream.all_gather`` without a choice of stream."""
    return _collectives.all_gather(tensor_list, tensor, group, sync_op, False)


def wait(tensor: Any, group: Any = None, use_calc_stream: bool = True) -> None:
    """Waits for every operation of the group that this rank has started, ``tensor``'s among them, as if for each task.
    A device tensor's stream is then synchronised as Paddle does."""
    comm = get_communicator(group)
    if comm is not None:
        finish_all(comm)
    if not tensor.place.is_cpu_place():
        _paddle.wait(tensor, None if isinstance(group, a2a.Communicator) else group, use_calc_stream)


def __getattr__(name: str) -> Any:
    return getattr(_paddle, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_paddle)})
