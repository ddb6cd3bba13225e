"""Calls of a2a.paddle that must be refused, as data: what is called, the class that Paddle raises in that place, and
words of the message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import a2a.paddle as dist
import numpy as np
import paddle
from paddle_ranks import part

import a2a

# Three ranks, of which this one calls what must be refused.
RANKS, CULPRIT = 3, 1

Call = Callable[..., Any]


def rows(count: int = 6, columns: int = 2, dtype: str = "float32") -> Any:
    return paddle.ones([count, columns], dtype)


def counts(*values: int, dtype: str = "int64") -> Any:
    return paddle.to_tensor(values, dtype=dtype)


def single(out: Any = None, given: Any = None, *sizes: Any, stream: bool = False, **options: Any) -> Call:
    call = dist.stream.alltoall_single if stream else dist.alltoall_single
    return lambda group: call(
        rows() if out is None else out, rows() if given is None else given, *sizes, group=group, **options
    )


def lists(out: Any, given: Any, **options: Any) -> Call:
    return lambda group: dist.stream.alltoall(out, given, group=group, **options)


def gather(out: Any, given: Any = None, **options: Any) -> Call:
    return lambda group: dist.stream.all_gather(out, rows() if given is None else given, group=group, **options)


def experts(x: Any = None, local: Any = None, global_: Any = None, back: bool = False) -> Call:
    call = dist.utils.global_gather if back else dist.utils.global_scatter
    given = (rows() if x is None else x, *(counts(2, 2, 2) if c is None else c for c in (local, global_)))
    return lambda group: call(*given, group=group)


SINGLES = single()


@dataclass
class Refusal:
    call: Callable[[], Call]
    kind: type[BaseException]
    words: str
    right: Call = SINGLES
    """What the other ranks call."""


def leaf() -> Any:
    x = rows()
    x.stop_gradient = False
    return x


def sparse() -> Any:
    return paddle.sparse.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], [6, 2])


def shared() -> Call:
    x = rows()
    return single(x, x)


SINGLE: dict[str, Refusal] = {
    "sum of the out sizes": Refusal(lambda: single(None, None, [2, 2, 2], [2, 2, 1]), ValueError, "out_split_sizes"),
    "sum of the in sizes": Refusal(
        lambda: single(None, None, [2, 9, 2], [2, 2, 2]), ValueError, "[2, 9, 2] sums to 13"
    ),
    "length of the sizes": Refusal(
        lambda: single(None, None, [3, 3]), ValueError, "in_split_sizes has 2 entries, but the group has 3 ranks"
    ),
    "negative size": Refusal(lambda: single(None, None, [-2, 6, 2]), ValueError, "in_split_sizes [-2, 6, 2] has a neg"),
    "sizes that are floats": Refusal(
        lambda: single(None, None, [2.0, 2.0, 2.0]), TypeError, "in_split_sizes[0] is 2.0"
    ),
    "sizes that are bools": Refusal(lambda: single(None, None, [True, 3, 2]), TypeError, "in_split_sizes[0] is True"),
    "one size": Refusal(lambda: single(None, None, 2), TypeError, "in_split_sizes is 2; counts are a list of int"),
    "a text for sizes": Refusal(lambda: single(None, None, "222"), TypeError, "in_split_sizes[0] is '2'"),
    "a group for sizes": Refusal(lambda: single(None, None, object()), TypeError, "in_split_sizes"),
    "indivisible": Refusal(lambda: single(rows(7), rows(7)), ValueError, "(7, 2) has 7 rows, which 3 ranks"),
    "no tensor": Refusal(lambda: single([1.0]), TypeError, "out_tensor is list, not paddle.Tensor"),
    "no input tensor": Refusal(lambda: single(None, 5), ValueError, "in_tensor is int, not paddle.Tensor"),
    "another dtype": Refusal(
        lambda: single(rows(dtype="float64")), ValueError, "in_tensor is float32, but out_tensor is float64"
    ),
    "sparse": Refusal(lambda: single(None, sparse()), ValueError, "in_tensor is not a dense tensor"),
    "0-D": Refusal(lambda: single(None, paddle.ones([])), ValueError, "in_tensor is 0-d"),
    "the same memory": Refusal(shared, ValueError, "share memory"),
    "own part differs": Refusal(lambda: single(None, None, [2, 1, 3], [2, 2, 2]), ValueError, "for this rank itself"),
    "leaf as output": Refusal(lambda: single(leaf(), leaf()), ValueError, "leaf with stop_gradient=False"),
    "sizes in the order of stream": Refusal(
        lambda: single(rows(3), rows(6), [1, 1, 1], [2, 2, 2]), ValueError, "in_tensor, in_split_sizes, out_split_sizes"
    ),
    "sizes in the plain order": Refusal(
        lambda: single(rows(3), rows(6), [2, 2, 2], [1, 1, 1], stream=True),
        ValueError,
        "out_split_sizes, in_split_sizes",
    ),
    "tensors in the order of Paddle 2": Refusal(
        lambda: single(rows(6), rows(3), [2, 2, 2], [1, 1, 1]),
        ValueError,
        "the order of this call is out_tensor, in_tensor",
    ),
    "calculation stream": Refusal(
        lambda: single(stream=True, sync_op=False, use_calc_stream=True),
        RuntimeError,
        "use_calc_stream can only be true in sync op behavior.",
    ),
}


def right_lists(group: a2a.Communicator) -> Any:
    return dist.alltoall([rows() for _ in range(RANKS)], [rows() for _ in range(RANKS)], group=group)


def right_gather(group: a2a.Communicator) -> Any:
    return dist.all_gather([], rows(), group=group)


def right_scatter(group: a2a.Communicator) -> Any:
    return experts()(group)


def right_way_back(group: a2a.Communicator) -> Any:
    return experts(back=True)(group)


OTHER: dict[str, Refusal] = {
    "no output": Refusal(lambda: lists(None, [rows()]), RuntimeError, "The output should be specified.", right_lists),
    "no input": Refusal(lambda: lists([], None), RuntimeError, "The input should be specified.", right_lists),
    "tensor with list": Refusal(lambda: lists(rows(), [rows()] * 3), RuntimeError, "both tensor or", right_lists),
    "empty input": Refusal(lambda: lists([], []), RuntimeError, "tensor_list should not be empty", right_lists),
    "short list": Refusal(lambda: lists([], [rows()]), ValueError, "has 1 tensors, but the group has 3", right_lists),
    "short output": Refusal(lambda: lists([rows()], [rows()] * 3), ValueError, "out_tensor_list has 1", right_lists),
    "no tensor in a list": Refusal(
        lambda: lists([], [rows(), 5, rows()]), TypeError, "in_tensor_list[1] is int", right_lists
    ),
    "no lists": Refusal(lambda: lists(5, 6), TypeError, "out_tensor_list is int, not a list of", right_lists),
    "dtypes in a list": Refusal(
        lambda: lists([], [rows(), rows(), rows(dtype="int32")]), ValueError, "in_tensor_list[2] is int32", right_lists
    ),
    "one dim[0] for all": Refusal(lambda: lists(rows(3), rows(6)), ValueError, "for this rank itself", single()),
    "lists on the calculation stream": Refusal(
        lambda: lists([], [rows()] * 3, sync_op=False, use_calc_stream=True), RuntimeError, "sync op", right_lists
    ),
    "gathered size": Refusal(
        lambda: gather(rows(6)), RuntimeError, "(6, 2) has 48 bytes, but 3 ranks send 48", right_gather
    ),
    "gathered list": Refusal(
        lambda: gather([rows(5)] * 3), RuntimeError, "tensor_list[0] (5, 2) has 40 bytes, but every rank", right_gather
    ),
    "gathered into nothing": Refusal(
        lambda: gather(None), TypeError, "tensor_list is NoneType, not a list", right_gather
    ),
    "gathered dtype": Refusal(
        lambda: gather(rows(18, dtype="int32")), ValueError, "tensor is float32, but out_tensor is int32", right_gather
    ),
    "x is 1-D": Refusal(lambda: experts(paddle.ones([6])), ValueError, "x must be 2-D", right_scatter),
    "x is 3-D": Refusal(lambda: experts(paddle.ones([6, 2, 2]), back=True), ValueError, "[6, 2, 2]", right_way_back),
    "x is a list": Refusal(lambda: experts([[1.0]]), TypeError, "x is list, not paddle.Tensor", right_scatter),
    "sum of local_count": Refusal(lambda: experts(None, counts(2, 2, 3)), ValueError, "sums to 7", right_scatter),
    "sum of global_count": Refusal(
        lambda: experts(None, None, counts(1, 2, 2), back=True), ValueError, "global_count [1, 2, 2]", right_way_back
    ),
    "int32 counts": Refusal(
        lambda: experts(None, counts(2, 2, 2, dtype="int32")),
        ValueError,
        "local_count must be a 1-D int64 tensor, but is int32",
        right_scatter,
    ),
    "float counts": Refusal(
        lambda: experts(None, None, counts(2, 2, 2, dtype="float32")),
        ValueError,
        "int64 tensor, but is float32",
        right_scatter,
    ),
    "negative count": Refusal(
        lambda: experts(None, counts(-2, 6, 2)), ValueError, "local_count[0] = -2", right_scatter
    ),
    "2-D counts": Refusal(lambda: experts(None, counts(2, 2, 2).reshape([3, 1])), ValueError, "1-D", right_scatter),
    "no counts": Refusal(lambda: experts(None, "222"), TypeError, "local_count[0] is '2'", right_scatter),
    "no multiple of the ranks": Refusal(
        lambda: experts(None, counts(2, 4), counts(2, 4)),
        ValueError,
        "the same positive multiple of the 3 ranks",
        right_scatter,
    ),
    "no entries": Refusal(lambda: experts(rows(0), [], []), ValueError, "local_count has 0", right_scatter),
    "counts of two lengths": Refusal(
        lambda: experts(None, counts(1, 1, 1, 1, 1, 1)), ValueError, "6 entries and global_count 3", right_scatter
    ),
}


def reduced(tensor: Any = None, **options: Any) -> Call:
    return lambda group: dist.stream.all_reduce(rows() if tensor is None else tensor, group=group, **options)


def reduced_scattered(given: Any = None, tensor: Any = None) -> Call:
    return lambda group: dist.stream.reduce_scatter(
        rows(2) if tensor is None else tensor, rows() if given is None else given, group=group
    )


def scattered(given: Any, tensor: Any = None) -> Call:
    return lambda group: dist.stream.scatter(rows(2) if tensor is None else tensor, given, CULPRIT, group=group)


def gathered(outs: Any, tensor: Any = None) -> Call:
    return lambda group: dist.gather(rows() if tensor is None else tensor, outs, CULPRIT, group=group)


def right_scattered(group: a2a.Communicator) -> Any:
    return scattered(None)(group)


def right_gathered(group: a2a.Communicator) -> Any:
    return gathered(None)(group)


def overlapping() -> Call:
    whole = rows()
    return reduced_scattered(whole, whole[1:3])


REDUCED = reduced()
SCATTERED = reduced_scattered()
FOLDS: dict[str, Refusal] = {
    "reduced list": Refusal(lambda: reduced([1.0]), TypeError, "tensor is list, not paddle", REDUCED),
    "reduced array": Refusal(lambda: reduced(np.ones(2)), TypeError, "tensor is numpy.ndarray, not paddle", REDUCED),
    "reduced sparse": Refusal(lambda: reduced(sparse()), ValueError, "tensor is not a dense tensor", REDUCED),
    "unknown op": Refusal(lambda: reduced(op=9), ValueError, "Unknown reduce_op type for 9", REDUCED),
    "op that is a text": Refusal(lambda: reduced(op="sum"), RuntimeError, "Unknown reduce_op type for 'sum'", REDUCED),
    "op that is a list": Refusal(lambda: reduced(op=[]), ValueError, "Unknown reduce_op type for []", REDUCED),
    "average of integers": Refusal(
        lambda: reduced(rows(dtype="int32"), op=dist.ReduceOp.AVG), ValueError, 'op "avg" is not defined', REDUCED
    ),
    "reduced on the calculation stream": Refusal(
        lambda: reduced(sync_op=False, use_calc_stream=True), RuntimeError, "use_calc_stream can only be true", REDUCED
    ),
    "dst": Refusal(
        lambda: lambda group: dist.reduce(rows(), 3, group=group),
        ValueError,
        "dst is 3, but the ranks of the group are [0, 1, 2]",
        lambda group: dist.reduce(rows(), 1, group=group),
    ),
    "src that is no number": Refusal(
        lambda: lambda group: dist.broadcast(rows(), "0", group=group),
        TypeError,
        "src is '0'; pass the number",
        lambda group: dist.broadcast(rows(), 0, group=group),
    ),
    "reduce_scatter size": Refusal(
        lambda: reduced_scattered(rows(4)), ValueError, "(4, 2) has 8 elements, but tensor (2, 2) has 4", SCATTERED
    ),
    "reduce_scatter dtype": Refusal(
        lambda: reduced_scattered(rows(dtype="int32")), ValueError, "is int32, but tensor is float32", SCATTERED
    ),
    "reduce_scatter overlap": Refusal(overlapping, ValueError, "share memory, but tensor is not this rank", SCATTERED),
    "reduce_scatter list": Refusal(
        lambda: reduced_scattered([rows(2)]), ValueError, "tensor_list has 1 tensors, but the group", SCATTERED
    ),
    "reduce_scatter list of another size": Refusal(
        lambda: reduced_scattered([rows(2), rows(1), rows(2)]), ValueError, "tensor_list[1] (1, 2) has 2", SCATTERED
    ),
    "reduce_scatter of nothing": Refusal(
        lambda: reduced_scattered(5), TypeError, "tensor_list is int, not a list of", SCATTERED
    ),
    "scatter nothing": Refusal(
        lambda: scattered(None), RuntimeError, "The tensor_list should not be empty on src", right_scattered
    ),
    "scatter size": Refusal(
        lambda: scattered(rows(5)), ValueError, "(5, 2) has 10 elements, but tensor (2, 2) has 4", right_scattered
    ),
    "gather into nothing": Refusal(
        lambda: gathered(None), RuntimeError, "gather_list must not be none for dst rank", right_gathered
    ),
    "gather dtype": Refusal(
        lambda: gathered([rows(), rows(dtype="int8"), rows()]), ValueError, "gather_list[1] is int8", right_gathered
    ),
    "gather into a tensor": Refusal(
        lambda: gathered(rows(18)), TypeError, "gather_list is Tensor, not a list", right_gathered
    ),
    "too few objects": Refusal(
        lambda: lambda group: dist.scatter_object_list([], [1], CULPRIT, group=group),
        ValueError,
        "in_object_list has 1 objects, but the group has 3",
        lambda group: dist.scatter_object_list([], None, CULPRIT, group=group),
    ),
}
CASES = {**SINGLE, **OTHER, **FOLDS}


def refuse(world: a2a.Communicator, name: str) -> tuple[list[str], str] | None:
    """The bad call on one rank, the right one on the others; afterwards all call the same. Returns the classes of the
    error, and its message."""
    comm = part(world, RANKS)
    if comm is None:
        return None
    case = CASES[name]
    call = case.call() if comm.rank == CULPRIT else case.right
    try:
        result = call(comm)
    except Exception as error:
        raised = [kind.__name__ for kind in type(error).__mro__], str(error)
    else:
        raise AssertionError(f"{name} returned {result!r}")
    out = paddle.zeros([RANKS])
    dist.alltoall_single(out, paddle.full([RANKS], comm.rank + 1.0), group=comm)
    assert out.tolist() == [1.0, 2.0, 3.0]
    return raised
