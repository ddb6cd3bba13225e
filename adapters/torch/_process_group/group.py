"""The process group on an a2a communicator. It runs every operation of host tensors itself."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as _c10d
from torch.distributed import PrefixStore, ProcessGroup
from torch.distributed import distributed_c10d as c10d

import a2a
from a2a.adapting import refuse

from .._errors import SplitError
from .._operations import c10d_operations as ops
from .._operations.work import AllOf
from .._untraced import untraced
from .communicators import adopt, forget
from .methods import method
from .monitored_barrier import StoreBarrier, seconds_of

__all__ = ["ProcessGroupA2A"]

_CPU = torch.device("cpu")
_OPERATIONS = (
    "all_to_all_single", "alltoall", "all_gather_single", "allgather", "barrier", "allreduce", "reduce",
    "reduce_scatter", "reduce_scatter_single", "broadcast", "gather", "gather_single", "scatter", "send", "recv",
    "recv_anysource",
)  # fmt: skip


def _seconds(opts: Any) -> float | None:
    """Return the timeout of one operation; None for the group's, which torch says with a negative number."""
    timeout = opts.timeout
    return None if timeout.days < 0 else float(timeout.total_seconds())


@untraced
class ProcessGroupA2A(ProcessGroup):  # type: ignore[misc, unused-ignore]
    """A process group on an a2a communicator, ``comm``. It defines all that callers in c10d's C++ code use: there is no
    other backend to which the base class could go."""

    supports_splitting = supports_coalescing = supports_time_estimate = False

    # Makes the groups derived from this one. backend.py sets it, because it knows the classes that they may have.
    _meet: Callable[[Any, int, int, str, timedelta], ProcessGroupA2A]

    def __init__(self, comm: a2a.Communicator, store: Any, rank: int, size: int, name: str) -> None:
        super().__init__(rank, size)
        self.comm: Any = comm
        self._store, self._name, self._description = store, name, ""
        self._sequence, self._splits = 0, 0
        self._monitored = StoreBarrier(store, rank, size)
        self._stand_in: ProcessGroup | None = None
        self._batch: list[Any] = []  # the works begun since _start_coalescing()
        adopt(self, comm)

    # ---- all to all

    @method(
        c10d.AllToAllOptions,
        "output input output_split_sizes input_split_sizes opts",
        "output input output_split_sizes input_split_sizes timeout",
    )
    def all_to_all_single(self, output: Any, input: Any, output_splits: Any, input_splits: Any, opts: Any) -> Any:
        splits = output_splits, input_splits
        return ops.all_to_all_single(self.comm, output, input, *splits, opts.asyncOp, _seconds(opts))

    @method(c10d.AllToAllOptions, "*output_tensors *input_tensors opts")
    def alltoall(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        return ops.all_to_all(self.comm, outputs, inputs, opts.asyncOp, _seconds(opts))

    @method(c10d.AllgatherOptions, "output input opts")
    def all_gather_single(self, output: Any, input: Any, opts: Any) -> Any:
        return ops.all_gather_single(self.comm, output, input, opts.asyncOp, _seconds(opts))

    @method(c10d.AllgatherOptions, "**output_tensors *input_tensors opts", "*output_tensors input_tensor timeout")
    def allgather(self, output_lists: Any, inputs: Any, opts: Any) -> Any:
        (outputs,), (input,) = output_lists, inputs
        return ops.all_gather(self.comm, outputs, input, opts.asyncOp, _seconds(opts))

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Any:
        """``output_lists[p]`` has the inputs of rank p."""
        flat = [output for outputs in output_lists for output in outputs]
        lists = [[list(outputs)] for outputs in zip(*output_lists, strict=False)]
        opts = opts or c10d.AllgatherOptions()
        return self._several(self.allgather, opts, flat, lists, [[input] for input in input_list])

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._several(self.all_gather_single, opts or c10d.AllgatherOptions(), outputs, outputs, inputs)

    @method(c10d.BarrierOptions, "opts", "timeout")
    def barrier(self, opts: Any) -> Any:
        return ops.barrier(self.comm, opts.asyncOp, _seconds(opts))

    # ---- reductions

    @method(c10d.AllreduceOptions, "*tensors opts", "*tensors op timeout", "tensor op timeout")
    def allreduce(self, tensors: Any, opts: Any) -> Any:
        (tensor,) = tensors
        return ops.all_reduce(self.comm, tensor, opts.reduceOp, opts.asyncOp, _seconds(opts))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        each = c10d.AllreduceOptions()
        if opts is not None:
            each.reduceOp, each.timeout = opts.reduceOp, opts.timeout
        return self._several(self.allreduce, each, tensors, [[tensor] for tensor in tensors])

    @method(c10d.ReduceOptions, "*tensors opts", "tensor root op timeout")
    def reduce(self, tensors: Any, opts: Any) -> Any:
        (tensor,) = tensors
        return ops.reduce(self.comm, tensor, opts.rootRank, opts.reduceOp, opts.asyncOp, _seconds(opts))

    @method(c10d.ReduceScatterOptions, "*output_tensors **input_tensors opts", "output *input op timeout")
    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any) -> Any:
        (output,), (inputs,) = outputs, input_lists
        return ops.reduce_scatter(self.comm, output, inputs, opts.reduceOp, opts.asyncOp, _seconds(opts))

    @method(c10d.ReduceScatterOptions, "outputTensor inputTensor opts")
    def reduce_scatter_single(self, output: Any, input: Any, opts: Any) -> Any:
        return ops.reduce_scatter_single(self.comm, output, input, opts.reduceOp, opts.asyncOp, _seconds(opts))

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._several(self.reduce_scatter_single, opts or c10d.ReduceScatterOptions(), outputs, outputs, inputs)

    # ---- with a root

    @method(c10d.BroadcastOptions, "*tensors opts", "tensor root timeout")
    def broadcast(self, tensors: Any, opts: Any) -> Any:
        (tensor,) = tensors
        return ops.broadcast(self.comm, tensor, opts.rootRank, opts.asyncOp, _seconds(opts))

    @method(c10d.GatherOptions, "**output_tensors *input_tensors opts", "*output_tensors input_tensor root timeout")
    def gather(self, output_lists: Any, inputs: Any, opts: Any) -> Any:
        (input,) = inputs
        outputs = output_lists[0] if output_lists else None
        return ops.gather(self.comm, input, outputs, opts.rootRank, opts.asyncOp, _seconds(opts))

    @method(c10d.GatherOptions, "output input opts")
    def gather_single(self, output: Any, input: Any, opts: Any) -> Any:
        """New in torch 2.14: ``output`` of the root has every rank's ``input``, concatenated or stacked."""
        outputs = None
        if self.rank() == opts.rootRank:
            if output.numel() != self.size() * input.numel() or not output.is_contiguous():
                text = (
                    f"output {tuple(output.shape)} is no contiguous tensor of {self.size()} times {tuple(input.shape)}"
                )
                raise refuse(self.comm, SplitError(text))
            outputs = list(output.view(self.size(), *input.shape).unbind(0))
        return ops.gather(self.comm, input, outputs, opts.rootRank, opts.asyncOp, _seconds(opts))

    gather_into_tensor = gather_single

    @method(c10d.ScatterOptions, "*output_tensors **input_tensors opts", "output_tensor *input_tensors root timeout")
    def scatter(self, outputs: Any, input_lists: Any, opts: Any) -> Any:
        (output,) = outputs
        inputs = input_lists[0] if input_lists else None
        return ops.scatter(self.comm, output, inputs, opts.rootRank, opts.asyncOp, _seconds(opts))

    # ---- from one rank to another; torch waits for the work, also of send() and recv()

    @method(None, "*tensors dstRank tag")
    def send(self, tensors: Any, peer: int, tag: int) -> Any:
        return ops.send(self.comm, tensors[0], peer, tag, True)

    @method(None, "*tensors srcRank tag")
    def recv(self, tensors: Any, peer: int, tag: int) -> Any:
        return ops.recv(self.comm, tensors[0], peer, tag, True)

    @method(None, "*tensors tag")
    def recv_anysource(self, tensors: Any, tag: int) -> Any:
        return ops.recv(self.comm, tensors[0], None, tag, True)

    # ---- their names before torch 2.13, by which C++ callers know them still

    alltoall_base = all_to_all_single
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- several operations at once

    def _several(self, call: Any, opts: Any, outputs: Any, *columns: list[Any]) -> Any:
        """Start one operation for each row of arguments, and return their work. Where one fails, the rest does not
        begin, and the peers hear that: numbers stay in step."""
        opts.asyncOp = True
        count, works = max(map(len, columns)), []
        if any(len(column) != count for column in columns):
            error = a2a.InvalidArgumentError(f"lists of {list(map(len, columns))} entries; pass as many in each")
            raise self._refused(error, count)
        for row in zip(*columns, strict=True):
            try:
                works.append(call(*row, opts))
            except BaseException as error:
                raise self._refused(error, count - len(works) - 1) from None
        return works[0] if count == 1 else AllOf(works, list(outputs))

    def _refused(self, error: BaseException, operations: int) -> BaseException:
        for _ in range(operations):
            refuse(self.comm, error)
        return error

    # ---- the group

    @property
    def options(self) -> Any:
        """Torch's options of a backend, with the timeout of operations that have none of their own."""
        return _c10d.Backend.Options("a2a", timedelta(seconds=self.comm.timeout))

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the timeout of later operations that have none of their own, those of a2a.torch as well."""
        self.comm.timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout  # a backend's name for it

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """torch.distributed.monitored_barrier. Torch's function accepts only groups of Gloo;
        a2a.torch.monitored_barrier accepts this one."""
        self._monitored.wait(seconds_of(timeout, self.comm.timeout), wait_all_ranks)

    def split_group(
        self, ranks: Any, timeout: timedelta | None = None, opts: Any = None, group_name: str | None = None,
        group_desc: str | None = None, device_types: Any = None,
    ) -> Any:  # fmt: skip
        """Return a group of these ranks, in ascending order, None where this one is not among them. Collective over
        them. Without a timeout it has that of this group."""
        if not 0 < len(ranks) == len(set(ranks)) or not all(0 <= rank < self.size() for rank in ranks):
            raise SplitError(f"ranks {list(ranks)}: pass different ranks of this group of {self.size()}, at least one")
        description = f"{self._description}:split:{self._splits}" if group_desc is None else group_desc
        self._splits += 1
        if self.rank() not in ranks:
            return None
        ranks = sorted(ranks)
        place = ranks.index(self.rank()), len(ranks), group_name or f"{self._name}:split:{ranks}"
        return self._derived(self._store, place, timeout or self.options._timeout, description)

    splitGroup = split_group  # its name in C++

    def merge_remote_group(
        self, store: Any, size: int, timeout: timedelta = c10d.default_pg_timeout, group_name: str | None = None,
        group_desc: str | None = None,
    ) -> Any:  # fmt: skip
        """Return a group of ``size`` ranks, those of every group that calls this with the store, in the order in which
        they come."""
        name = group_name or f"{self._name}:merge"
        rank = (store.add(f"a2a/{name}/ranks", 1) - 1) % size  # all have come before any comes again
        description = f"{self._description}:merge" if group_desc is None else group_desc
        return self._derived(store, (rank, size, name), timeout, description)

    def mergeRemoteGroup(self, store: Any, opts: Any, size: int) -> Any:
        """merge_remote_group() under the name and with the options that C++ code uses."""
        return self.merge_remote_group(store, size, opts.timeout, opts.group_name, opts.group_desc)

    def _derived(
        self, store: Any, place: tuple[int, int, str], timeout: timedelta, description: str
    ) -> ProcessGroupA2A:
        """Return a group that torch.distributed does not know."""
        group = self._meet(PrefixStore(f"{place[2]}/", store), *place, timeout)
        group._set_group_desc(description)
        return group

    def stand_in(self) -> ProcessGroup:
        """Return a group that has the place and the name of this one, and no method of Python."""
        if self._stand_in is None:
            self._stand_in = ProcessGroup(self.rank(), self.size())
            self._stand_in._set_group_name(self._name)
        return self._stand_in

    def _start_coalescing(self, device: Any = None) -> None:
        """Collect the operations until _end_coalescing() in one work. Meanwhile instance attributes replace the methods
        of the class, so that these need not check for a batch. A batch whose block raised has no end, and ends here."""
        self._batch = []
        for name in _OPERATIONS:
            setattr(self, name, functools.partial(self._in_batch, getattr(type(self), name).__get__(self)))

    def _in_batch(self, operation: Any, *arguments: Any, **options: Any) -> Any:
        work = operation(*arguments, **options)
        self._batch.append(work)
        return work

    def _end_coalescing(self, device: Any = None) -> Any:
        for name in _OPERATIONS:
            delattr(self, name)
        works, self._batch = self._batch, []
        return AllOf(works, [])

    def _set_sequence_number_for_group(self) -> None:
        """Every rank counts from 0."""

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def abort(self) -> None:
        """Make every rank that is in an operation of the group, or comes to one, raise a2a.AbortedError, and close the
        communicator here. Not collective; another thread may be in an operation, which it ends."""
        self.comm.abort(f"process group {self._name!r} was aborted")
        forget(self)

    def shutdown(self) -> None:
        """Close the communicator, collectively. torch.distributed.destroy_process_group() calls this."""
        forget(self)
        if self.rank() == 0:
            with contextlib.suppress(RuntimeError):  # the store may be gone
                self._monitored.close()

    @property
    def _device_types(self) -> list[torch.device]:
        return [_CPU]

    def _get_backend(self, device: Any) -> Any:
        """Return the backend of host tensors: the group itself."""
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"No backend type associated with device type {torch.device(device).type}")
        return self

    def get_group_store(self) -> Any:
        return self._store

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
