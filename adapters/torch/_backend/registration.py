"""The torch.distributed backend "a2a", as the installed torch takes it.

``import a2a.torch``, then ``torch.distributed.init_process_group("a2a")``, or "cpu:a2a". From Torch 2.14 on that is a
backend among those of a group (``backend``). Torch 2.9 to 2.13 get a process group that runs every operation of host
tensors itself (``_process_group.group``). Where torch has NCCL, it delegates those of CUDA tensors to it
(``_process_group.delegating``).
"""

from __future__ import annotations

import functools
import sys
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d
from torch.distributed import distributed_c10d as c10d

import a2a
import a2a_autoload

from .._process_group.communicators import adopt
from .._process_group.group import ProcessGroupA2A
from .._process_group.store_bootstrap import meet

__all__ = ["TRUE_BACKENDS", "register"]

# Whether torch has backends that are written in Python, which it has from 2.14 on.
TRUE_BACKENDS = hasattr(_c10d.Backend, "reconfigure")


def _create(opts: Any, _: Any) -> Any:
    """What torch calls for the backend "a2a" of a group."""
    # The map of all backends of the group is a local variable of the caller and nowhere else.
    config = sys._getframe(1).f_locals.get("backend_config")
    backends = config.get_device_backend_map() if config is not None else {}
    if TRUE_BACKENDS:
        return _backend(opts, backends)
    # Torch silently replaces all backends of a group by a Python process group.
    if any(backend != "a2a" for backend in backends.values()):
        mixed = ",".join(f"{device}:{backend}" for device, backend in backends.items())
        raise a2a.InvalidArgumentError(
            f'backend "{mixed}" cannot be had: before Torch 2.14 a group that has a Python backend is given to that '
            'backend alone, without a word about the others; pass "a2a", which itself uses NCCL for CUDA tensors'
        )
    return _met(opts.store, opts.group_rank, opts.group_size, opts.group_id, opts.timeout)


def _backend(opts: Any, backends: dict[str, str]) -> Any:
    """Return the backend of host tensors. Those of CUDA get torch's NCCL, also where the group's backend is "a2a" for
    all devices: torch looks into the map again, when it has made this one."""
    from .._process_group.reconfigurable import ReconfigurableProcessGroup
    from .backend import BackendA2A
    from .mends import mend

    if opts.enable_reconfigure and set(backends.values()) <= {"a2a"}:
        return ReconfigurableProcessGroup(opts.store, opts.group_rank, opts.group_size, opts.group_id, opts.timeout)
    if backends.get("cuda") == "a2a" and torch.cuda.is_available() and dist.is_nccl_available():
        backends["cuda"] = "nccl"
    mend()
    comm = meet(opts.store, opts.group_id, opts.group_rank, opts.group_size, opts.timeout.total_seconds())
    backend = BackendA2A(comm, opts.store, opts.group_id)
    adopt(opts.process_group, comm)
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a backend of C++ around this one, which does not keep its Python object.
    weakref.finalize(opts.process_group, _keep, backend).atexit = False
    return backend


def _keep(_: Any) -> None:
    """What is called when a group is gone, and until then keeps its argument."""


def _met(store: Any, rank: int, size: int, name: str, timeout: timedelta) -> ProcessGroupA2A:
    """Return the group of the ranks that meet in this store. Collective over them."""
    comm = meet(store, name, rank, size, timeout.total_seconds())
    if not torch.cuda.is_available() or not dist.is_nccl_available():
        return ProcessGroupA2A(comm, store, rank, size, name)
    # Here, because programs without a GPU need no other.
    from .._process_group.delegating import DelegatingProcessGroup

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
