"""The torch.distributed backend "a2a".

``import a2a.torch``, then ``torch.distributed.init_process_group("a2a")``, or "cpu:a2a". The process group carries
all-to-all, all-gather and barrier itself. Every other collective is torch's: the group has a Gloo backend for host
tensors, and where torch has NCCL one for CUDA tensors, which also carry CUDA all-to-alls.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroup
from torch.distributed import distributed_c10d as c10d

import a2a

from ._collectives import GATHER, GATHER_LIST, LIST, SINGLE
from ._groups import adopt, forget
from ._store import meet
from ._work import FinishedWork, Work

__all__ = ["ProcessGroupA2A", "register"]

_CPU, _CUDA = torch.device("cpu"), torch.device("cuda")
_DONE = FinishedWork([])
_alltoall = SINGLE.alltoall  # looked up once
_Kind: Any = ProcessGroup.BackendType


class ProcessGroupA2A(ProcessGroup):  # type: ignore[misc, unused-ignore]
    """A process group whose all-to-all, all-gather and barrier run on a2a; all of them go to torch's backend where
    ``comm`` is None, because the ranks live on several hosts.

    What it does not define goes through the base class to the Gloo or NCCL backend registered with it. That must not be
    a method that the base class looks up in Python when C++ calls it: having found none, it goes on with the
    interpreter's lock in hand, and deadlocks with Gloo's threads, which want it to let go of tensors. Those are defined
    here, to call the backend."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any, name: str) -> None:
        super().__init__(rank, size)
        self._name, self._description, self._destroyed = name, "", False
        has_cuda = torch.cuda.is_available()
        self._register_backend(_CPU, _Kind.GLOO, _gloo(PrefixStore("gloo", store), rank, size, timeout))
        if has_cuda and dist.is_nccl_available():
            nccl = _nccl(PrefixStore("nccl", store), rank, size, timeout, name)
            self._register_backend(_CUDA, _Kind.NCCL, nccl)
        self._set_default_backend(_Kind.GLOO)
        self.comm = meet(store, name, rank, size, timeout.total_seconds())
        # Where no tensor can be on another device, none is asked, which would cost as much as the rest of this class.
        self._host_only = None if has_cuda else self.comm
        adopt(self, self.comm)

    def all_to_all_single(
        self, output: Any, input: Any, output_split_sizes: Any, input_split_sizes: Any, opts: Any = None
    ) -> Any:
        comm = self._host_only or self._comm_for(input)
        if comm is None:
            options = c10d.AllToAllOptions() if opts is None else opts
            return self._torchs(input).alltoall_base(output, input, output_split_sizes, input_split_sizes, options)
        work = _alltoall(comm, output, input, output_split_sizes, input_split_sizes, opts is None or opts.asyncOp)
        return _DONE if work is None else Work(work, [output])

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        comm = self._host_only or self._comm_for(*inputs)
        if comm is None:
            return self._torchs(inputs[0]).alltoall(outputs, inputs, c10d.AllToAllOptions() if opts is None else opts)
        work = LIST.alltoall_list(comm, outputs, inputs, opts is None or opts.asyncOp)
        return _DONE if work is None else Work(work, outputs)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        comm = self._host_only or self._comm_for(input)
        if comm is None:
            return self._torchs(input)._allgather_base(output, input, c10d.AllgatherOptions() if opts is None else opts)
        work = GATHER.allgather(comm, output, input, opts is None or opts.asyncOp)
        return _DONE if work is None else Work(work, [output])

    def allgather(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        comm = self._comm_for(*inputs)
        if comm is None or len(inputs) != 1:
            options = c10d.AllgatherOptions() if opts is None else opts
            return self._torchs(inputs[0]).allgather(output_lists, inputs, options)
        work = GATHER_LIST.allgather_list(comm, output_lists[0], inputs[0], opts is None or opts.asyncOp)
        return _DONE if work is None else Work(work, output_lists[0])

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        works = [self.all_gather_single(output, input, opts) for output, input in zip(outputs, inputs, strict=True)]
        return works[0] if len(works) == 1 else _AllOf(works, outputs)

    # Their names before torch 2.13, by which C++ callers know them still.
    alltoall_base = all_to_all_single
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def barrier(self, opts: Any = None) -> Any:
        comm = self._comm_for()
        if comm is None:
            return self._get_backend(_CPU).barrier(c10d.BarrierOptions() if opts is None else opts)
        seconds = -1.0 if opts is None else opts.timeout.total_seconds()  # torch says "unset" with a negative number
        work = SINGLE.barrier(comm, opts is None or opts.asyncOp, seconds if seconds >= 0 else None)
        return _DONE if work is None else Work(work, [])

    # ---- torch's own; see the class's documentation for which of them are here

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        return self._torchs(tensors[0]).allreduce(tensors, c10d.AllreduceOptions() if opts is None else opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        options = c10d.AllreduceCoalescedOptions() if opts is None else opts
        return self._torchs(tensors[0]).allreduce_coalesced(tensors, options)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        return self._torchs(tensors[0]).broadcast(tensors, c10d.BroadcastOptions() if opts is None else opts)

    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None) -> Any:
        options = c10d.ReduceScatterOptions() if opts is None else opts
        return self._torchs(outputs[0]).reduce_scatter(outputs, input_lists, options)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        options = c10d.ReduceScatterOptions() if opts is None else opts
        return self._torchs(output)._reduce_scatter_base(output, input, options)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        works = [self.reduce_scatter_single(output, input, opts) for output, input in pairs]
        return works[0] if len(works) == 1 else _AllOf(works, outputs)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def send(self, tensors: Any, peer: int, tag: int) -> Any:
        return self._torchs(tensors[0]).send(tensors, peer, tag)

    def recv(self, tensors: Any, peer: int, tag: int) -> Any:
        return self._torchs(tensors[0]).recv(tensors, peer, tag)

    def _comm_for(self, *tensors: Any) -> Any:
        """The communicator, unless this call is torch's."""
        if self._destroyed:
            raise a2a.AbortedError(f"process group {self._name!r} was destroyed")
        return None if any(tensor.is_cuda for tensor in tensors) else self.comm

    def _torchs(self, tensor: Any) -> Any:
        """The backend of torch beside us."""
        return self._get_backend(tensor.device)

    def shutdown(self) -> None:
        """Closes the communicator, collectively. torch.distributed.destroy_process_group() calls this."""
        forget(self)
        self.comm = self._host_only = None
        self._destroyed = True
        super().shutdown()

    def getBackendName(self) -> str:
        return "a2a"

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description


class _AllOf(FinishedWork):
    """Several operations as one work."""

    def __init__(self, works: list[Any], outputs: list[Any]) -> None:
        super().__init__(outputs)
        self._works = works

    def wait(self, *timeout: Any) -> bool:
        return all([work.wait(*timeout) for work in self._works])

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> Any:
        self.wait()
        return super().get_future()


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


def _create(opts: Any, _: Any) -> ProcessGroupA2A:
    # Torch puts a Python process group in the place of all backends that a group was to have, and says nothing of it.
    # The map of them is a local variable of our caller and nowhere else.
    config = sys._getframe(1).f_locals.get("backend_config")
    backends = config.get_device_backend_map() if config is not None else {}
    if any(backend != "a2a" for backend in backends.values()):
        mixed = ",".join(f"{device}:{backend}" for device, backend in backends.items())
        raise a2a.InvalidArgumentError(
            f'backend "{mixed}" cannot be had: torch gives a group that has a Python backend to that backend alone, '
            'without a word about the others; pass "a2a", which itself uses NCCL for CUDA tensors'
        )
    return ProcessGroupA2A(opts.store, opts.group_rank, opts.group_size, opts.timeout, opts.group_id)


def register() -> None:
    """Make the backend known to torch.distributed, once."""
    if not hasattr(dist.Backend, "A2A"):
        dist.Backend.register_backend("a2a", _create, extended_api=True, devices=["cpu", "cuda"])
