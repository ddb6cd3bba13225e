"""The process group that delegates operations on CUDA tensors to torch's NCCL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
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
    """Every operation checks where its tensors are."""

    def __init__(self, comm: a2a.Communicator, store: Any, rank: int, size: int, name: str, timeout: Any) -> None:
        super().__init__(comm, store, rank, size, name)
        self._destroyed = False
        nccl = _nccl(PrefixStore("nccl", store), rank, size, timeout, name)
        self._register_backend(_CUDA, _Kind.NCCL, nccl)
        self._set_default_backend(_Kind.NCCL)

    def _delegate(self, arguments: tuple[Any, ...]) -> Any:
        """Return NCCL where it serves the tensors; None where a2a does."""
        if self._destroyed:
            raise a2a.AbortedError(f"process group {self._name!r} was destroyed")
        device = next((tensor.device for tensor in _tensors(arguments)), _CPU)
        return ProcessGroup._get_backend(self, device) if device.type != "cpu" else None

    def _get_backend(self, device: Any) -> Any:
        if torch.device(device).type == "cpu":
            return self
        return ProcessGroup._get_backend(self, torch.device(device))

    @property
    def _device_types(self) -> list[torch.device]:
        theirs = set(ProcessGroup._device_types.fget(self))
        return [_CPU, *sorted(theirs - {_CPU}, key=str)]

    def set_timeout(self, timeout: Any) -> None:
        super().set_timeout(timeout)
        ProcessGroup.set_timeout(self, timeout)

    _set_default_timeout = set_timeout

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


def _nccl(store: Any, rank: int, size: int, timeout: Any, name: str) -> Any:
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout, options.group_name = timeout, name
    nccl = c10d.ProcessGroupNCCL(store, rank, size, options)
    nccl._set_sequence_number_for_group()
    return nccl
