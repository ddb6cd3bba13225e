"""The torch.distributed backend "a2a".

``import a2a.torch``, then ``torch.distributed.init_process_group("a2a")``, or "cpu:a2a". The process group runs every
operation of host tensors itself (``group``). Where torch has NCCL, it delegates those of CUDA tensors to it
(``delegating``).
"""

from __future__ import annotations

import functools
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import a2a
import a2a_autoload

from .group import ProcessGroupA2A
from .store_bootstrap import meet

__all__ = ["register"]


def _create(opts: Any, _: Any) -> ProcessGroupA2A:
    # Torch silently replaces all backends of a group by a Python process group. The map of these backends is a local
    # variable of the caller and nowhere else.
    config = sys._getframe(1).f_locals.get("backend_config")
    backends = config.get_device_backend_map() if config is not None else {}
    if any(backend != "a2a" for backend in backends.values()):
        mixed = ",".join(f"{device}:{backend}" for device, backend in backends.items())
        raise a2a.InvalidArgumentError(
            f'backend "{mixed}" cannot be had: torch gives a group that has a Python backend to that backend alone, '
            'without a word about the others; pass "a2a", which itself uses NCCL for CUDA tensors'
        )
    return _met(opts.store, opts.group_rank, opts.group_size, opts.group_id, opts.timeout)


def _met(store: Any, rank: int, size: int, name: str, timeout: timedelta) -> ProcessGroupA2A:
    """Return the group of the ranks that meet in this store. Collective over them."""
    comm = meet(store, name, rank, size, timeout.total_seconds())
    if not torch.cuda.is_available() or not dist.is_nccl_available():
        return ProcessGroupA2A(comm, store, rank, size, name)
    from .delegating import DelegatingProcessGroup  # here, because programs without a GPU need no other

    return DelegatingProcessGroup(comm, store, rank, size, name, timeout)


ProcessGroupA2A._meet = staticmethod(_met)
_torch_set_pg_timeout: Any = c10d._set_pg_timeout


@functools.wraps(_torch_set_pg_timeout)
def _set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
    found = c10d._get_default_group() if group is None else group
    if isinstance(found, ProcessGroupA2A):
        found.set_timeout(timeout)
    else:
        _torch_set_pg_timeout(timeout, group)


def register() -> None:
    """Register the backend with torch.distributed, once. ``import torch`` has done so, unless autoload is off."""
    a2a_autoload.register()
    c10d._set_pg_timeout = _set_pg_timeout  # torch's own passes over all backends but its own
