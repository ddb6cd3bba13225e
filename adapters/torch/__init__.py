"""torch.distributed on a2a: ``import a2a.torch as dist``.

Every collective of tensors, send and receive run on a2a, with torch's signatures, return values and classes of
errors; every other name is torch.distributed's own. Their ``group`` is an a2a communicator, any process group of torch,
or None.

Importing this module also registers the backend "a2a", ``torch.distributed.init_process_group("a2a")``.
``a2a.torch.nn`` has the differentiable calls. ``a2a.torch.moe`` sends tokens to experts and back; ``a2a.torch.deep_ep``
does so with DeepEP's calls. ``reshard`` and ``reshard_state_dict`` bring DTensors to other meshes.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch.distributed as _dist

from a2a_autoload import serve_gloo

from . import nn
from ._backend import registration as _registration
from ._calls.collectives import (
    all_gather,
    all_gather_into_tensor,
    all_gather_single,
    all_to_all,
    all_to_all_single,
    barrier,
    monitored_barrier,
)
from ._calls.point_to_point import P2POp, batch_isend_irecv, irecv, isend, recv, send
from ._calls.reductions import (
    all_reduce,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    reduce_scatter_single,
    reduce_scatter_tensor,
    scatter,
)
from ._errors import ArgumentTypeError, AxisError, SplitError, TensorError
from ._operations.work import Work
from ._plugins import dtensor as _dtensor
from ._process_group import world as _world
from ._process_group.group import ProcessGroupA2A
from ._process_group.monitored_barrier import BarrierError
from ._process_group.world import (
    destroy_process_group,
    get_rank,
    get_world_size,
    init_process_group,
    is_initialized,
    new_group,
)
from ._reshard.dtensors import reshard, reshard_state_dict
from ._reshard.shardings import chunk_boxes
from ._windows.window import Window, new_window

__all__ = [
    "ArgumentTypeError",
    "AxisError",
    "BarrierError",
    "P2POp",
    "ProcessGroupA2A",
    "SplitError",
    "TensorError",
    "Window",
    "Work",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "chunk_boxes",
    "destroy_process_group",
    "gather",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "irecv",
    "is_initialized",
    "isend",
    "monitored_barrier",
    "new_group",
    "new_window",
    "nn",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "reshard",
    "reshard_state_dict",
    "scatter",
    "send",
    "serve_gloo",
]
__all__ += [name for name in dir(_dist) if not name.startswith("_") and name not in __all__]

_registration.register()
_world.register()
_dtensor.register()


def __getattr__(name: str) -> Any:
    if name in ("deep_ep", "moe"):  # few programs need these
        return importlib.import_module(f".{name}", __name__)
    if name == "BackendA2A" and _registration.TRUE_BACKENDS:
        return importlib.import_module("._backend.backend", __name__).BackendA2A
    return getattr(_dist, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_dist)})
