"""torch.distributed on a2a: ``import a2a.torch as dist``.

all_to_all, all_to_all_single, all_gather, all_gather_single (also as all_gather_into_tensor) and barrier run on a2a,
with torch's signatures, return values and classes of errors; every other name is torch.distributed's own. Their
``group`` is an a2a communicator, any process group of torch, or None.

Importing this module also makes the backend "a2a" known, ``torch.distributed.init_process_group("a2a")``, and
``a2a.torch.nn`` has the differentiable calls.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as _dist

from . import _backend, _world, nn
from ._backend import ProcessGroupA2A
from ._collectives import (
    all_gather,
    all_gather_into_tensor,
    all_gather_single,
    all_to_all,
    all_to_all_single,
    barrier,
)
from ._errors import ArgumentTypeError, SplitError, TensorError
from ._work import Work
from ._world import (
    destroy_process_group,
    get_rank,
    get_world_size,
    init_process_group,
    is_initialized,
    new_group,
)

__all__ = [
    "ArgumentTypeError",
    "ProcessGroupA2A",
    "SplitError",
    "TensorError",
    "Work",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "destroy_process_group",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_initialized",
    "new_group",
    "nn",
]
__all__ += [name for name in dir(_dist) if not name.startswith("_") and name not in __all__]

_backend.register()
_world.register()


def __getattr__(name: str) -> Any:
    return getattr(_dist, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_dist)})
