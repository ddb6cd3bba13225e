"""The torch.distributed backend "a2a".

``import a2a.torch``, then ``torch.distributed.init_process_group("a2a")``, or "cpu:a2a". The process group runs every
operation of host tensors itself. Where torch has NCCL, for CUDA tensors, or where ranks are on several hosts, one of
torch's backends is beside it (``_beside``).
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

import a2a
import a2a_autoload
from a2a.adapting import refuse

from . import _monitored
from . import _operations as ops
from ._groups import adopt, forget
from ._store import meet
from ._work import AllOf, FinishedWork

__all__ = ["ProcessGroupA2A", "register"]

_DONE = FinishedWork([])
_CPU = torch.device("cpu")
_OPERATIONS = (
    "all_to_all_single", "alltoall", "all_gather_single", "allgather", "barrier", "allreduce", "reduce",
    "reduce_scatter", "reduce_scatter_single", "broadcast", "gather", "scatter", "send", "recv", "recv_anysource",
)  # fmt: skip


def _begin(opts: Any) -> Any:
    """Return the options of each of several operations that run together."""
    if opts is not None:
        opts.asyncOp = True
    return opts


def _op(opts: Any) -> Any:
    return dist.ReduceOp.SUM if opts is None else opts.reduceOp


def _root(opts: Any) -> int:
    return 0 if opts is None else opts.rootRank


class ProcessGroupA2A(ProcessGroup):  # type: ignore[misc, unused-ignore]
    """A process group on an a2a communicator, ``comm``. It defines all that callers in c10d's C++ code use: there is no
    other backend to which the base class could go."""

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def __init__(self, comm: a2a.Communicator | None, store: Any, rank: int, size: int, name: str) -> None:
        super().__init__(rank, size)
        self.comm: Any = comm
        self._store, self._name, self._description = store, name, ""
        self._sequence, self._monitored = 0, 0
        self._batch: list[Any] = []  # the works begun since _start_coalescing()
        adopt(self, comm)

    # ---- all to all

    def all_to_all_single(
        self, output: Any, input: Any, output_split_sizes: Any, input_split_sizes: Any, opts: Any = None
    ) -> Any:
        self._sequence += 1
        async_op = opts is None or opts.asyncOp
        work = ops.all_to_all_single(self.comm, output, input, output_split_sizes, input_split_sizes, async_op)
        return work or _DONE

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        self._sequence += 1
        return ops.all_to_all(self.comm, outputs, inputs, opts is None or opts.asyncOp) or _DONE

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        self._sequence += 1
        return ops.all_gather_single(self.comm, output, input, opts is None or opts.asyncOp) or _DONE

    def allgather(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        (input,) = inputs
        self._sequence += 1
        return ops.all_gather(self.comm, output_lists[0], input, opts is None or opts.asyncOp) or _DONE

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        """``output_lists[p]`` has the inputs of rank p."""
        flat = [output for outputs in output_lists for output in outputs]
        lists = [[list(outputs)] for outputs in zip(*output_lists, strict=False)]
        return self._several(self.allgather, opts, flat, lists, [[input] for input in inputs])

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._several(self.all_gather_single, opts, outputs, outputs, inputs)

    def barrier(self, opts: Any = None) -> Any:
        seconds = -1.0 if opts is None else opts.timeout.total_seconds()  # torch says "unset" with a negative number
        self._sequence += 1
        return ops.barrier(self.comm, opts is None or opts.asyncOp, seconds if seconds >= 0 else None) or _DONE

    # ---- reductions

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        (tensor,) = tensors
        self._sequence += 1
        return ops.all_reduce(self.comm, tensor, _op(opts), opts is None or opts.asyncOp) or _DONE

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        return self._several(self.allreduce, opts, tensors, [[tensor] for tensor in tensors])

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        (tensor,) = tensors
        self._sequence += 1
        return ops.reduce(self.comm, tensor, _root(opts), _op(opts), opts is None or opts.asyncOp) or _DONE

    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None) -> Any:
        (output,) = outputs
        self._sequence += 1
        return ops.reduce_scatter(self.comm, output, input_lists[0], _op(opts), opts is None or opts.asyncOp) or _DONE

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        self._sequence += 1
        return ops.reduce_scatter_single(self.comm, output, input, _op(opts), opts is None or opts.asyncOp) or _DONE

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._several(self.reduce_scatter_single, opts, outputs, outputs, inputs)

    # ---- with a root

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        (tensor,) = tensors
        self._sequence += 1
        return ops.broadcast(self.comm, tensor, _root(opts), opts is None or opts.asyncOp) or _DONE

    def gather(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        (input,) = inputs
        outputs = output_lists[0] if output_lists else None
        self._sequence += 1
        return ops.gather(self.comm, input, outputs, _root(opts), opts is None or opts.asyncOp) or _DONE

    def scatter(self, outputs: Any, input_lists: Any, opts: Any = None) -> Any:
        (output,) = outputs
        inputs = input_lists[0] if input_lists else None
        self._sequence += 1
        return ops.scatter(self.comm, output, inputs, _root(opts), opts is None or opts.asyncOp) or _DONE

    # ---- from one rank to another; torch waits for the work, also of send() and recv()

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        self._sequence += 1
        return ops.send(self.comm, tensors[0], peer, tag, True) or _DONE

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        self._sequence += 1
        return ops.recv(self.comm, tensors[0], peer, tag, True) or _DONE

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        self._sequence += 1
        return ops.recv(self.comm, tensors[0], None, tag, True) or _DONE

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
        count, works = max(map(len, columns)), []
        if any(len(column) != count for column in columns):
            error = a2a.InvalidArgumentError(f"lists of {list(map(len, columns))} entries; pass as many in each")
            raise self._refused(error, count)
        for row in zip(*columns, strict=True):
            try:
                works.append(call(*row, _begin(opts)))
            except BaseException as error:
                raise self._refused(error, count - len(works) - 1) from None
        return works[0] if count == 1 else AllOf(works, list(outputs))

    def _refused(self, error: BaseException, operations: int) -> BaseException:
        for _ in range(operations if self.comm is not None else 0):
            refuse(self.comm, error)
        return error

    # ---- the group

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """torch.distributed.monitored_barrier. Torch's function accepts only groups of Gloo;
        a2a.torch.monitored_barrier accepts this one."""
        self._monitored += 1
        seconds = _monitored.seconds_of(timeout, self.comm.timeout)
        place = self._store, self.rank(), self.size(), self._monitored
        _monitored.over_store(*place, seconds, wait_all_ranks)

    def _start_coalescing(self, device: Any = None) -> None:
        """Collect the operations until _end_coalescing() in one work. Meanwhile instance attributes replace the methods
        of the class, so that these need not check for a batch."""
        for name in _OPERATIONS:
            setattr(self, name, functools.partial(self._in_batch, getattr(self, name)))

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
        """Make every rank that is in an operation of the group, or comes to one, raise a2a.AbortedError. Not
        collective."""
        self.comm.abort(f"process group {self._name!r} was aborted")
        forget(self)

    def shutdown(self) -> None:
        """Close the communicator, collectively. torch.distributed.destroy_process_group() calls this."""
        forget(self)

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
    place = opts.store, opts.group_rank, opts.group_size, opts.group_id
    store, rank, size, name = place
    comm = meet(store, name, rank, size, opts.timeout.total_seconds())
    if comm is not None and not torch.cuda.is_available():
        return ProcessGroupA2A(comm, *place)
    from ._beside import ProcessGroupBeside

    return ProcessGroupBeside(comm, *place, opts.timeout)


def register() -> None:
    """Register the backend with torch.distributed, once. ``import torch`` has done so, unless autoload is off."""
    a2a_autoload.register()
