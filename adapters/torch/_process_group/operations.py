"""The operations of a group on an a2a communicator, as methods with torch's names and arguments: one set of them for
the process group of Torch 2.9 to 2.13 (``group``) and for the backend of Torch 2.14 on (``a2a.torch._backend``)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch._C import _distributed_c10d as _c10d
from torch.distributed import distributed_c10d as c10d

import a2a
from a2a.adapting import refuse

from .._errors import SplitError
from .._operations import c10d_operations as ops
from .._operations.work import AllOf
from .._untraced import untraced
from .methods import method
from .monitored_barrier import StoreBarrier, seconds_of

__all__ = ["OPERATIONS", "GroupOperations"]

OPERATIONS = (
    "all_to_all_single", "alltoall", "all_gather_single", "allgather", "barrier", "allreduce", "reduce",
    "reduce_scatter", "reduce_scatter_single", "broadcast", "gather", "gather_single", "scatter", "send", "recv",
    "recv_anysource",
)  # fmt: skip

See = Callable[[str, Any], None]  # gets the name of an operation, and its work or its error


def _seconds(opts: Any) -> float | None:
    """Return the timeout of one operation; None for the group's, which torch says with a negative number."""
    timeout = opts.timeout
    return None if timeout.days < 0 else float(timeout.total_seconds())


@untraced
class GroupOperations:
    """What has a communicator, ``comm``, and is a process group or a backend of torch. Its class has ``rank`` and
    ``size``."""

    comm: Any
    rank: Callable[[], int]
    size: Callable[[], int]

    def _begin(self, comm: a2a.Communicator | None, store: Any, rank: int, size: int) -> None:
        """What every constructor calls."""
        self.comm, self._store = comm, store
        self._sequence = 0
        self._monitored = StoreBarrier(store, rank, size)
        self._seers: list[See] = []
        self._batch: list[Any] | None = None  # the works begun since _start_coalescing()

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
        for _ in range(operations if self.comm is not None else 0):
            refuse(self.comm, error)
        return error

    # ---- who looks on

    def _let_see(self, see: See) -> None:
        """Have ``see`` get each operation from now on. Meanwhile instance attributes replace the methods of the class,
        so that these need not look whether anybody does."""
        if not self._seers:
            for name in OPERATIONS:
                setattr(self, name, self._seen(name))
        self._seers.append(see)

    def _let_see_no_more(self, see: See) -> None:
        self._seers.remove(see)
        if not self._seers:
            for name in OPERATIONS:
                delattr(self, name)

    def _seen(self, name: str) -> Callable[..., Any]:
        operation = getattr(type(self), name).__get__(self)

        def run(*arguments: Any, **options: Any) -> Any:
            try:
                work = operation(*arguments, **options)
            except a2a.Error as error:
                for see in list(self._seers):
                    see(name, error)
                raise
            for see in list(self._seers):
                see(name, work)
            return work

        return run

    def _start_coalescing(self, device: Any = None) -> None:
        """Collect the operations until _end_coalescing() in one work. A batch whose block raised has no end, and ends
        here."""
        if self._batch is None:
            self._let_see(self._in_batch)
        self._batch = []

    def _in_batch(self, name: str, work: Any) -> None:
        if self._batch is not None and not isinstance(work, BaseException):
            self._batch.append(work)

    def _end_coalescing(self, device: Any = None) -> Any:
        self._let_see_no_more(self._in_batch)
        works, self._batch = self._batch, None
        return AllOf(works or [], [])

    # ---- what torch asks of a group and of a backend alike

    @property
    def options(self) -> Any:
        """Torch's options of a backend, with the timeout of operations that have none of their own."""
        return self._options(timedelta(seconds=self.comm.timeout))

    def _options(self, timeout: timedelta) -> Any:
        return _c10d.Backend.Options("a2a", timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the timeout of later operations that have none of their own, those of a2a.torch as well."""
        self.comm.timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout  # a backend's name for it

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """torch.distributed.monitored_barrier. Torch's function accepts only groups of Gloo;
        a2a.torch.monitored_barrier accepts this one."""
        self._monitored.wait(seconds_of(timeout, self.comm.timeout), wait_all_ranks)

    def get_error(self) -> Any:
        """Return how it has failed: ErrorType.REMOTE_ERROR after an operation that no later one can follow, SUCCESS
        otherwise, and after abort()."""
        failed = self.comm is not None and self.comm.broken and not self.comm.closed
        return _c10d.ErrorType.REMOTE_ERROR if failed else _c10d.ErrorType.SUCCESS

    def stand_in(self) -> Any:
        """Return the group that torch's operators are to see for this one while a mode looks on; None if they have seen
        the call already."""
        return None

    def _set_sequence_number_for_group(self) -> None:
        """Every rank counts from 0."""

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def getBackendName(self) -> str:
        return "a2a"
