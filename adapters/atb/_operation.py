"""The operation: made of parameters, run as often as wanted."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeVar

from a2a import InvalidArgumentError

from ._binding import AtbOperation
from ._param import AllToAllVParam

_T = TypeVar("_T")


class ErrorType(enum.IntEnum):
    """ATB's status codes (atb::ErrorType). Errors of this package have theirs as the attribute ``status``."""

    NO_ERROR = 0
    ERROR_INVALID_PARAM = 1
    ERROR_INVALID_GRAPH = 2
    ERROR_INTERNAL_ERROR = 3
    ERROR_RT_FAIL = 4
    ERROR_INVALID_IN_TENSOR_NUM = 5
    ERROR_INVALID_TENSOR_DTYPE = 6
    ERROR_INVALID_TENSOR_FORMAT = 7
    ERROR_INVALID_TENSOR_DIM = 8
    ERROR_INVALID_TENSOR_SIZE = 9
    ERROR_OPERATION_NULL_RUNNER = 10
    ERROR_GRAPH_INFERSHAPE_FUNC_FAIL = 11
    ERROR_CANN_ERROR = 12
    ERROR_INVALID_TENSOR_INI_MATCH = 13
    ERROR_INVALID_TENSOR_ADDR = 14
    ERROR_INVALID_TENSOR_NUM = 15
    ERROR_INVALID_TENSOR_DIM_NUM = 16
    ERROR_INVALID_SINGLE_OPERATION_PARAM = 17
    ERROR_GRAPH_NODE_RESHAPE_FUNC_FAIL = 18
    ERROR_INVALID_GRAPH_NODE_CHUNK = 19
    ERROR_INVALID_CONTEXT_ADDR = 20
    ERROR_INVALID_STREAM = 21
    ERROR_INVALID_WORKSPACE_SIZE = 22
    ERROR_INVALID_WORKSPACE_ADDR = 23
    ERROR_INVALID_OPERATION_ADDR = 24
    ERROR_HCCL_FAIL = 25
    ERROR_OUT_OF_DEVICE_MEMORY = 26
    ERROR_OUT_OF_HOST_MEMORY = 27
    ERROR_COMM_EMPTY = 28
    ERROR_COPY_HOST_MEMORY_FAIL = 29


class AllToAllVOperation:
    """ATB's AllToAllV (page "AllToAllVOperation" of Ascend Transformer Boost), with the methods of torch_atb.Operation.

    Raises InvalidArgumentError, naming field and value, for parameters that break a constraint. ``timeout`` in seconds
    bounds the wait for the other ranks in the first ``forward`` of a group, and each exchange. Later changes of
    ``param`` have no effect. Operations with equal rank, rank_size, comm_domain, comm_mode and rank table share one
    communicator, which lives as long as the process.
    """

    def __init__(self, param: AllToAllVParam, *, timeout: float = 600.0) -> None:
        if not isinstance(param, AllToAllVParam):
            raise InvalidArgumentError(f"param is {param!r}; pass an AllToAllVParam")
        self._core = AtbOperation(**vars(param), timeout=timeout)

    @property
    def name(self) -> str:
        """ATB's name of the operation."""
        return self._core.name

    @property
    def input_num(self) -> int:
        """The number of tensors that ``forward`` takes: 1."""
        return self._core.input_num

    @property
    def output_num(self) -> int:
        """The number of tensors that ``forward`` returns: 1."""
        return self._core.output_num

    def forward(self, inputs: Sequence[_T]) -> list[_T]:
        """Exchange with all ranks, each of which calls this.

        ``inputs`` is a list with one contiguous tensor on the host, or for "hccl" on an Ascend device, of 1 to 8
        dimensions and dtype float16, float32, int8, int16, int32, int64 or bfloat16; it is treated as flat. Returns a
        list with one new tensor of shape [1, sum(recv_counts)], of the same dtype and framework. It is complete when
        this returns; on a device whose framework has a current stream, once that stream reaches the exchange.

        Raises InvalidArgumentError for a tensor that does not fit the parameters (if the group has a communicator, the
        peers then get MismatchError), MismatchError when ranks disagree, UnsupportedError when the backend cannot serve
        this machine, TimeoutError and PeerLostError when a rank does not come or dies; after these two the next
        ``forward`` of all ranks makes a new communicator."""
        return self._core.forward(inputs)


Operation = AllToAllVOperation
"""torch_atb's name of an operation made of any parameters."""
