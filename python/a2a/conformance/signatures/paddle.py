"""paddle.distributed's calls, of a2a.paddle or of Paddle itself."""

from __future__ import annotations

import importlib
from typing import Any

from ._signature import FLOATS, Call, Signature, equal, packed, register

SIGNATURES: list[Signature] = []
signature = register(SIGNATURES, "paddle")


@signature("paddle.stream.alltoall_single", "alltoallv", packed, meets="alltoallv")
def _(c: Call) -> None:
    c.module.stream.alltoall_single(c.recv, c.send, c.recv_counts, c.send_counts, group=c.group)


@signature("paddle.stream.alltoall_single equal", "alltoallv", equal, meets="alltoallv")
def _(c: Call) -> None:
    c.module.stream.alltoall_single(c.recv, c.send, group=c.group, sync_op=False).wait()


@signature("paddle.stream.alltoall_single async", "alltoallv", packed, meets="alltoallv")
def _(c: Call) -> None:
    task = c.module.stream.alltoall_single(c.recv, c.send, c.recv_counts, c.send_counts, group=c.group, sync_op=False)
    task.wait()


@signature("paddle.stream.alltoall_single calc stream", "alltoallv", packed, meets="alltoallv")
def _(c: Call) -> None:
    c.module.stream.alltoall_single(c.recv, c.send, c.recv_counts, c.send_counts, c.group, use_calc_stream=True)


@signature("paddle.alltoall_single", "alltoallv", packed, meets="alltoallv")
def _(c: Call) -> None:
    c.module.alltoall_single(
        out_tensor=c.recv,
        in_tensor=c.send,
        in_split_sizes=c.send_counts,
        out_split_sizes=c.recv_counts,
        group=c.group,
    )


@signature("paddle.stream.alltoall", "alltoallv", equal, meets="alltoallv")
def _(c: Call) -> None:
    c.module.stream.alltoall(c.recv, c.send, group=c.group)


@signature("paddle.stream.alltoall of lists", "alltoall_list", meets="alltoall_list")
def _(c: Call) -> None:
    c.module.stream.alltoall(c.recvs, c.sends, group=c.group)


@signature("paddle.alltoall", "alltoall_list", meets="alltoall_list")
def _(c: Call) -> None:
    c.module.alltoall(out_tensor_list=c.recvs, in_tensor_list=c.sends, group=c.group)


@signature("paddle.alltoall into an empty list", "alltoall_list", out=False)
def _(c: Call) -> list[Any]:
    results: list[Any] = []
    c.module.alltoall(results, c.sends, group=c.group)
    return results


@signature("paddle.stream.all_gather", "allgather", meets="allgather")
def _(c: Call) -> None:
    c.module.stream.all_gather(c.recv, c.send, group=c.group)


@signature("paddle.all_gather", "allgather", parts=True, meets="allgather")
def _(c: Call) -> None:
    c.module.all_gather(c.recvs, c.send, group=c.group)


@signature("paddle.all_gather into an empty list", "allgather", out=False, parts=True, meets="allgather")
def _(c: Call) -> list[Any]:
    parts: list[Any] = []
    c.module.all_gather(parts, c.send, group=c.group)
    return parts


@signature("paddle.utils.global_scatter", "global_scatter", out=False, meets="global_scatter")
def _(c: Call) -> list[Any]:
    return [_moe_utils(c).global_scatter(c.send, *_counts(c), group=c.group)]


@signature("paddle.utils.global_gather", "global_gather", out=False, meets="global_gather")
def _(c: Call) -> list[Any]:
    return [_moe_utils(c).global_gather(c.send, *_counts(c), group=c.group)]


def _moe_utils(c: Call) -> Any:
    """Return the module in which Paddle has them; its documents say ``utils``, which a2a.paddle has, too."""
    return importlib.import_module(f"{c.module.__name__}.utils.moe_utils")


def _counts(c: Call) -> list[Any]:
    to_tensor = importlib.import_module("paddle").to_tensor
    return [to_tensor(counts, dtype="int64") for counts in c.expert_counts]


# ---- with gradients --------------------------------------------------------------------------------------------------


def _wanting_gradients(tensors: list[Any]) -> list[Any]:
    found = [tensor.detach() for tensor in tensors]
    for tensor in found:
        tensor.stop_gradient = False
    return found


def _with_gradients(c: Call, inputs: list[Any], results: list[Any]) -> list[Any]:
    importlib.import_module("paddle.autograd").backward(results, c.cotangents)
    return [*(result.detach() for result in results), *(tensor.grad for tensor in inputs)]


@signature("paddle.alltoall_single gradient", "alltoallv", packed, dtypes=FLOATS, gradient=True)
def _(c: Call) -> list[Any]:
    x = _wanting_gradients(c.sends)
    c.module.stream.alltoall_single(c.recv, x[0], c.recv_counts, c.send_counts, group=c.group)
    return _with_gradients(c, x, [c.recv])


@signature("paddle.alltoall gradient", "alltoall_list", dtypes=FLOATS, gradient=True)
def _(c: Call) -> list[Any]:
    xs = _wanting_gradients(c.sends)
    c.module.alltoall(c.recvs, xs, group=c.group)
    return _with_gradients(c, xs, c.recvs)


@signature("paddle.utils.global_scatter gradient", "global_scatter", out=False, dtypes=FLOATS, gradient=True)
def _(c: Call) -> list[Any]:
    x = _wanting_gradients(c.sends)
    return _with_gradients(c, x, [_moe_utils(c).global_scatter(x[0], *_counts(c), group=c.group)])


@signature("paddle.utils.global_gather gradient", "global_gather", out=False, dtypes=FLOATS, gradient=True)
def _(c: Call) -> list[Any]:
    x = _wanting_gradients(c.sends)
    return _with_gradients(c, x, [_moe_utils(c).global_gather(x[0], *_counts(c), group=c.group)])
