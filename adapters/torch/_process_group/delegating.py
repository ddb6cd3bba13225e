"""The process group that delegates operations to torch's own backends: those of CUDA tensors to NCCL, and those of host
tensors to Gloo where the ranks are on several hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup
from torch.distributed import distributed_c10d as c10d

import a2a

from .._operations.work_registry import register
from .._untraced import untraced
from .group import ProcessGroupA2A
from .methods import alike

__all__ = ["DelegatingProcessGroup"]

_CPU, _CUDA = torch.device("cpu"), torch.device("cuda")
_Kind: Any = ProcessGroup.BackendType

# Operation -> its name in torch's backend.
_OPERATIONS = {
    "all_to_all_single": "alltoall_base",
    "alltoall": "alltoall",
    "all_gather_single": "_allgather_base",
    "allgather": "allgather",
    "barrier": "barrier",
    "allreduce": "allreduce",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "_reduce_scatter_base",
    "broadcast": "broadcast",
    "gather": "gather",
    "gather_single": "gather_single",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv_anysource",
}


@untraced
class DelegatingProcessGroup(ProcessGroupA2A):
    """Every operation checks where its tensors are. ``comm`` is None where ranks are on several hosts.

    All of them are defined here, although the base class of torch would find its backends, too. For a C++ caller it
    looks them up in Python. If it does not find one, it goes on while it holds the interpreter's lock, and deadlocks
    with Gloo's threads, which need that lock to release tensors."""

    def __init__(
        self, comm: a2a.Communicator | None, store: Any, rank: int, size: int, name: str, timeout: Any
    ) -> None:
        super().__init__(comm, store, rank, size, name)
        self._destroyed = False
        if comm is None:
            self._register_backend(_CPU, _Kind.GLOO, _gloo(PrefixStore("gloo", store), rank, size, timeout))
            self._set_default_backend(_Kind.GLOO)
        if torch.cuda.is_available() and dist.is_nccl_available():
            nccl = _nccl(PrefixStore("nccl", store), rank, size, timeout, name)
            self._register_backend(_CUDA, _Kind.NCCL, nccl)
            if comm is not None:
                self._set_default_backend(_Kind.NCCL)

    def _delegate(self, arguments: tuple[Any, ...]) -> Any:
        """Return the backend of torch that serves the tensors; None where a2a does."""
        if self._destroyed:
            raise a2a.AbortedError(f"process group {self._name!r} was destroyed")
        device = next((tensor.device for tensor in _tensors(arguments)), _CPU)
        return ProcessGroup._get_backend(self, device) if self.comm is None or device.type != "cpu" else None

    def _get_backend(self, device: Any) -> Any:
        if self.comm is not None and torch.device(device).type == "cpu":
            return self
        return ProcessGroup._get_backend(self, torch.device(device))

    @property
    def _device_types(self) -> list[torch.device]:
        theirs = set(ProcessGroup._device_types.fget(self))
        return [_CPU, *sorted(theirs - {_CPU}, key=str)]

    @property
    def options(self) -> Any:
        return super().options if self.comm is not None else self._get_backend(_CPU).options

    def set_timeout(self, timeout: Any) -> None:
        if self.comm is not None:
            super().set_timeout(timeout)
        ProcessGroup.set_timeout(self, timeout)

    _set_default_timeout = set_timeout

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        if self.comm is not None:
            super().monitored_barrier(timeout, wait_all_ranks)
        else:
            limit = c10d.default_pg_timeout if timeout is None else timeout
            self._get_backend(_CPU).monitored_barrier(limit, wait_all_ranks)

    def _start_coalescing(self, device: Any = None) -> None:
        if self._delegate((torch.empty(0, device=device),)) is None:
            super()._start_coalescing(device)
        else:
            ProcessGroup._start_coalescing(self, device)

    def _end_coalescing(self, device: Any = None) -> Any:
        if self._delegate((torch.empty(0, device=device),)) is None:
            return super()._end_coalescing(device)
        return ProcessGroup._end_coalescing(self, device)

    def abort(self) -> None:
        if self.comm is not None:
            super().abort()
        ProcessGroup.abort(self)

    def shutdown(self) -> None:
        super().shutdown()
        self._destroyed = True
        ProcessGroup.shutdown(self)


def _delegated(name: str, theirs: str) -> Callable[..., Any]:
    ours: Any = getattr(ProcessGroupA2A, name)

    def run(self: Any, *given: Any) -> Any:
        backend = self._delegate(given)
        if backend is None:
            return ours.run(self, *given)
        work = getattr(backend, theirs)(*given)
        register(work, _tensors(given[:1]))
        return work

    method: Callable[..., Any] = alike(ours, run)
    return method


for _name, _theirs in _OPERATIONS.items():
    setattr(DelegatingProcessGroup, _name, _delegated(_name, _theirs))
for _old in ("alltoall_base", "_allgather_base", "_reduce_scatter_base"):
    _new = next(name for name, theirs in _OPERATIONS.items() if theirs == _old)
    setattr(DelegatingProcessGroup, _old, getattr(DelegatingProcessGroup, _new))


def _tensors(given: Any) -> Any:
    for one in given:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from _tensors(one)


def _gloo(store: Any, rank: int, size: int, timeout: Any) -> Any:
    gloo = c10d.ProcessGroupGloo(store, rank, size, timeout=timeout)
    gloo._set_sequence_number_for_group()
    return gloo


def _nccl(store: Any, rank: int, size: int, timeout: Any, name: str) -> Any:
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout, options.group_name = timeout, name
    nccl = c10d.ProcessGroupNCCL(store, rank, size, options)
    nccl._set_sequence_number_for_group()
    return nccl
