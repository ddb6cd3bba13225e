"""The reductions of torch.distributed, and the operations with a root, on a2a.

As in ``collectives``, ``group`` is an a2a communicator, a torch process group or None, and torch itself serves the
other cases. ``src`` and ``dst`` are ranks of torch's world, ``group_src`` and ``group_dst`` of the group; of a
communicator both are its own. Results are folded element by element in rank order, so every rank gets the same bits.
Tensors may have any strides."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch.distributed as dist
from torch.compiler import is_dynamo_compiling
from torch.distributed import ReduceOp

from a2a import InvalidArgumentError
from a2a.adapting import collective

from .._operations import c10d_operations as ops
from .._operations.work import Work
from .._process_group.communicators import rank_in, serving
from .._untraced import untraced

__all__ = [
    "all_reduce",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
]

_SUM = ReduceOp.SUM
_torch_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # before 2.13


@overload
def all_reduce(tensor: Any, op: Any = _SUM, group: Any = None, async_op: Literal[False] = False) -> None: ...
@overload
def all_reduce(tensor: Any, op: Any = _SUM, group: Any = None, *, async_op: Literal[True]) -> Work: ...
@overload
def all_reduce(tensor: Any, op: Any = _SUM, group: Any = None, async_op: bool = False) -> Work | None: ...
def all_reduce(tensor: Any, op: Any = _SUM, group: Any = None, async_op: bool = False) -> Work | None:
    """torch.distributed.all_reduce: ``tensor`` becomes the fold of all ranks' tensors. SUM, AVG, PRODUCT, MIN, MAX,
    BAND, BOR, BXOR and PREMUL_SUM of all dtypes for which they are defined; SUM of sparse tensors. Returns None, or
    with ``async_op`` a Work."""
    comm = _serving(group, tensor)
    result: Work | None
    if comm is None:
        result = dist.all_reduce(tensor, op, group, async_op)
    else:
        result = ops.all_reduce(comm, tensor, op, async_op)
    return result


@overload
def reduce(
    tensor: Any,
    dst: int | None = None,
    op: Any = _SUM,
    group: Any = None,
    async_op: Literal[False] = False,
    group_dst: int | None = None,
) -> None: ...
@overload
def reduce(
    tensor: Any,
    dst: int | None = None,
    op: Any = _SUM,
    group: Any = None,
    *,
    async_op: Literal[True],
    group_dst: int | None = None,
) -> Work: ...
@overload
def reduce(
    tensor: Any,
    dst: int | None = None,
    op: Any = _SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None: ...
def reduce(
    tensor: Any, dst: int | None = None, op: Any = _SUM, group: Any = None, async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:  # fmt: skip
    """torch.distributed.reduce: ``tensor`` of rank ``dst`` becomes the fold of all ranks' tensors; those of the others
    do not change. Returns None, or with ``async_op`` a Work."""
    comm = _serving(group, tensor)
    result: Work | None
    if comm is None:
        result = dist.reduce(tensor, dst, op, group, async_op, group_dst)
    else:
        result = ops.reduce(comm, tensor, _root(comm, group, "dst", dst, group_dst), op, async_op)
    return result


@overload
def reduce_scatter(
    output: Any, input_list: list[Any], op: Any = _SUM, group: Any = None, async_op: Literal[False] = False
) -> None: ...
@overload
def reduce_scatter(
    output: Any, input_list: list[Any], op: Any = _SUM, group: Any = None, *, async_op: Literal[True]
) -> Work: ...
@overload
def reduce_scatter(
    output: Any, input_list: list[Any], op: Any = _SUM, group: Any = None, async_op: bool = False
) -> Work | None: ...
def reduce_scatter(
    output: Any, input_list: list[Any], op: Any = _SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """torch.distributed.reduce_scatter: ``output`` becomes the fold of all ranks' parts for this rank,
    ``input_list[rank]``; sizes may differ from entry to entry. Returns None, or with ``async_op`` a Work."""
    comm = _serving(group, output)
    result: Work | None
    if comm is None:
        result = dist.reduce_scatter(output, input_list, op, group, async_op)
    else:
        result = ops.reduce_scatter(comm, output, input_list, op, async_op)
    return result


@overload
def reduce_scatter_single(
    output: Any, input: Any, op: Any = _SUM, group: Any = None, async_op: Literal[False] = False
) -> None: ...
@overload
def reduce_scatter_single(
    output: Any, input: Any, op: Any = _SUM, group: Any = None, *, async_op: Literal[True]
) -> Work: ...
@overload
def reduce_scatter_single(
    output: Any, input: Any, op: Any = _SUM, group: Any = None, async_op: bool = False
) -> Work | None: ...
def reduce_scatter_single(
    output: Any, input: Any, op: Any = _SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """torch.distributed.reduce_scatter_single (reduce_scatter_tensor before torch 2.13): ``output`` becomes the fold of
    all ranks' parts of ``input`` for this rank, of as many equal ones as there are ranks. Returns None, or with
    ``async_op`` a Work."""
    comm = _serving(group, output)
    result: Work | None
    if comm is None:
        result = _torch_reduce_scatter(output, input, op, group, async_op)
    else:
        result = ops.reduce_scatter_single(comm, output, input, op, async_op)
    return result


reduce_scatter_tensor = reduce_scatter_single


@overload
def broadcast(
    tensor: Any,
    src: int | None = None,
    group: Any = None,
    async_op: Literal[False] = False,
    group_src: int | None = None,
) -> None: ...
@overload
def broadcast(
    tensor: Any, src: int | None = None, group: Any = None, *, async_op: Literal[True], group_src: int | None = None
) -> Work: ...
@overload
def broadcast(
    tensor: Any, src: int | None = None, group: Any = None, async_op: bool = False, group_src: int | None = None
) -> Work | None: ...
def broadcast(
    tensor: Any, src: int | None = None, group: Any = None, async_op: bool = False, group_src: int | None = None
) -> Work | None:
    """torch.distributed.broadcast: ``tensor`` becomes that of rank ``src``. Returns None, or with ``async_op`` a
    Work."""
    comm = _serving(group, tensor)
    result: Work | None
    if comm is None:
        result = dist.broadcast(tensor, src, group, async_op, group_src)
    else:
        result = ops.broadcast(comm, tensor, _root(comm, group, "src", src, group_src), async_op)
    return result


@overload
def gather(
    tensor: Any,
    gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    async_op: Literal[False] = False,
    group_dst: int | None = None,
) -> None: ...
@overload
def gather(
    tensor: Any,
    gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    *,
    async_op: Literal[True],
    group_dst: int | None = None,
) -> Work: ...
@overload
def gather(
    tensor: Any,
    gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None: ...
def gather(
    tensor: Any, gather_list: list[Any] | None = None, dst: int | None = None, group: Any = None,
    async_op: bool = False, group_dst: int | None = None,
) -> Work | None:  # fmt: skip
    """torch.distributed.gather: on rank ``dst``, 0 unless given, ``gather_list[p]`` becomes ``tensor`` of rank p; all
    are of one size. The others have no ``gather_list``. Returns None, or with ``async_op`` a Work."""
    comm = _serving(group, tensor)
    result: Work | None
    if comm is None:
        result = dist.gather(tensor, gather_list, dst, group, async_op, group_dst)
    else:
        root = _root(comm, group, "dst", dst, group_dst, 0)
        _require_root_alone(comm, root, "gather_list", gather_list)
        result = ops.gather(comm, tensor, gather_list, root, async_op)
    return result


@overload
def scatter(
    tensor: Any,
    scatter_list: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    async_op: Literal[False] = False,
    group_src: int | None = None,
) -> None: ...
@overload
def scatter(
    tensor: Any,
    scatter_list: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    *,
    async_op: Literal[True],
    group_src: int | None = None,
) -> Work: ...
@overload
def scatter(
    tensor: Any,
    scatter_list: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None: ...
def scatter(
    tensor: Any, scatter_list: list[Any] | None = None, src: int | None = None, group: Any = None,
    async_op: bool = False, group_src: int | None = None,
) -> Work | None:  # fmt: skip
    """torch.distributed.scatter: ``tensor`` becomes ``scatter_list[rank]`` of rank ``src``, 0 unless given; all are of
    one size. The others have no ``scatter_list``. Returns None, or with ``async_op`` a Work."""
    comm = _serving(group, tensor)
    result: Work | None
    if comm is None:
        result = dist.scatter(tensor, scatter_list, src, group, async_op, group_src)
    else:
        root = _root(comm, group, "src", src, group_src, 0)
        _require_root_alone(comm, root, "scatter_list", scatter_list)
        result = ops.scatter(comm, tensor, scatter_list, root, async_op)
    return result


def _serving(group: Any, tensor: Any) -> Any:
    """Return the communicator; None where torch itself serves the call. torch.compile knows torch's calls, and replaces
    them by the backend's operations."""
    return None if is_dynamo_compiling() else serving(group, tensor)


# A rank that fails here tells its peers.
_root = collective(rank_in)


@collective
def _require_root_alone(comm: Any, root: int, name: str, tensors: Any) -> None:
    if comm.rank != root and tensors:
        raise InvalidArgumentError(f"{name} is given, but only the root, rank {root}, has one")


for _call in (all_reduce, broadcast, gather, reduce, reduce_scatter, reduce_scatter_single, scatter):
    untraced(_call)
