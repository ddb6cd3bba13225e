"""``paddle.distributed`` with all its collectives on the CPU: change one import.

    import a2a.paddle as dist   # instead of: import paddle.distributed as dist

The collectives, messages and object collectives, those of ``stream``, and ``global_scatter`` and ``global_gather`` of
``utils`` run on a2a, on Paddle's groups or on a2a communicators; the all-to-all calls have gradients. Every other name
is Paddle's own. The orders of arguments are those of Paddle 3.3.1. ``enable()`` makes ``paddle.distributed`` itself,
``paddle.DataParallel``, fleet and the MoELayer of ``paddle.incubate`` use them. ``moe`` has layers of experts.
"""

from __future__ import annotations

from typing import Any

import paddle.distributed as _paddle

from . import moe, stream, utils
from ._batch import P2POp, batch_isend_irecv
from ._functions import (
    all_gather,
    all_gather_object,
    all_reduce,
    alltoall,
    alltoall_axis,
    alltoall_single,
    broadcast,
    broadcast_object_list,
    gather,
    irecv,
    isend,
    recv,
    reduce,
    reduce_scatter,
    scatter,
    scatter_object_list,
    send,
    wait,
)
from ._groups import (
    barrier,
    destroy_process_group,
    get_communicator,
    get_rank,
    get_world_size,
    init_parallel_env,
    new_group,
)
from ._replacing import disable, enable
from ._reshard import reshard
from ._task import Task

__all__ = [
    "P2POp",
    "Task",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "alltoall",
    "alltoall_axis",
    "alltoall_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "destroy_process_group",
    "disable",
    "enable",
    "gather",
    "get_communicator",
    "get_rank",
    "get_world_size",
    "init_parallel_env",
    "irecv",
    "isend",
    "moe",
    "new_group",
    "recv",
    "reduce",
    "reduce_scatter",
    "reshard",
    "scatter",
    "scatter_object_list",
    "send",
    "stream",
    "utils",
    "wait",
]
__all__ += [name for name in _paddle.__all__ if name not in __all__]


def __getattr__(name: str) -> Any:
    return getattr(_paddle, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_paddle)})
