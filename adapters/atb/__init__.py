"""ATB's AllToAllV on any machine, for any DLPack tensor.

    param = AllToAllVParam(rank=rank, rank_size=4, send_counts=..., sdispls=..., recv_counts=..., rdispls=...,
                           backend="shm")
    (output,) = AllToAllVOperation(param).forward([x])   # shape [1, sum(recv_counts)]

The parameters are those of the page "AllToAllVOperation" of Ascend Transformer Boost (ATB), in its camelCase and in the
snake_case of torch_atb, which does not bind this operation itself. ``#include <a2a/atb.h>`` has the same in C++.
"""

from ._operation import AllToAllVOperation, ErrorType, Operation
from ._param import AllToAllVParam, CommMode
from ._rank_table import RankPlace, RankTable, read_rank_table

__all__ = [
    "AllToAllVOperation",
    "AllToAllVParam",
    "CommMode",
    "ErrorType",
    "Operation",
    "RankPlace",
    "RankTable",
    "read_rank_table",
]
