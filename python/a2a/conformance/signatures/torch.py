"""torch.distributed's calls, of a2a.torch or of torch itself."""

from __future__ import annotations

import importlib
from typing import Any

from ._signature import FLOATS, Call, Signature, differentiable, equal, packed, register

SIGNATURES: list[Signature] = []
signature = register(SIGNATURES, "torch")


@signature("torch.all_to_all_single", "alltoallv", packed, meets="alltoallv")
def _(c: Call) -> None:
    c.module.all_to_all_single(c.recv, c.send, c.recv_counts, c.send_counts, group=c.group)


@signature("torch.all_to_all_single equal", "alltoallv", equal, meets="alltoallv")
def _(c: Call) -> None:
    c.module.all_to_all_single(c.recv, c.send, group=c.group)


@signature("torch.all_to_all_single async", "alltoallv", packed, meets="alltoallv")
def _(c: Call) -> None:
    c.module.all_to_all_single(c.recv, c.send, c.recv_counts, c.send_counts, group=c.group, async_op=True).wait()


@signature("torch.all_to_all of views", "alltoallv", packed)
def _(c: Call) -> None:
    c.module.all_to_all(list(c.recv.split(c.recv_counts)), list(c.send.split(c.send_counts)), group=c.group)


@signature("torch.all_to_all", "alltoall_list", meets="alltoall_list")
def _(c: Call) -> None:
    c.module.all_to_all(c.recvs, c.sends, group=c.group)


@signature("torch.all_to_all async", "alltoall_list", meets="alltoall_list")
def _(c: Call) -> None:
    c.module.all_to_all(c.recvs, c.sends, group=c.group, async_op=True).wait()


@signature("torch.all_gather_into_tensor", "allgather", meets="allgather")
def _(c: Call) -> None:
    c.module.all_gather_into_tensor(c.recv, c.send, group=c.group)


@signature("torch.all_gather_into_tensor stacked", "allgather", meets="allgather")
def _(c: Call) -> None:
    c.module.all_gather_into_tensor(c.recv.view(c.case.ranks, *c.send.shape), c.send, group=c.group)


@signature("torch.all_gather_into_tensor async", "allgather", meets="allgather")
def _(c: Call) -> None:
    c.module.all_gather_into_tensor(c.recv, c.send, group=c.group, async_op=True).wait()


@signature("torch.all_gather", "allgather", parts=True)
def _(c: Call) -> None:
    c.module.all_gather(c.recvs, c.send, group=c.group)


# ---- torch.distributed.nn.functional ---------------------------------------------------------------------------------


def _functional(c: Call) -> Any:
    return importlib.import_module(f"{c.module.__name__}.nn.functional")


def _with_gradients(c: Call, inputs: list[Any], results: list[Any]) -> list[Any]:
    import torch

    # Outputs that are empty on this rank count, too: the backward pass is an exchange in which every rank takes part.
    gradients = torch.autograd.grad(results, inputs, c.cotangents)
    return [*(result.detach() for result in results), *gradients]


@signature("torch.nn.all_to_all_single", "alltoallv", packed, dtypes=FLOATS, gradient=True)
def _(c: Call) -> list[Any]:
    x = c.send.detach().requires_grad_()
    y = _functional(c).all_to_all_single(c.recv, x, c.recv_counts, c.send_counts, group=c.group)
    return _with_gradients(c, [x], [y])


@signature("torch.nn.all_to_all", "alltoall_list", dtypes=FLOATS, gradient=True)
def _(c: Call) -> list[Any]:
    xs = [tensor.detach().requires_grad_() for tensor in c.sends]
    return _with_gradients(c, xs, list(_functional(c).all_to_all(c.recvs, xs, group=c.group)))


@signature("torch.nn.global_scatter", "global_scatter", differentiable, out=False, dtypes=FLOATS, gradient=True)
def _(c: Call) -> list[Any]:
    x = c.send.detach().requires_grad_()
    return _with_gradients(c, [x], [_functional(c).global_scatter(x, *_lists(c), group=c.group)])


@signature("torch.nn.global_gather", "global_gather", differentiable, out=False, dtypes=FLOATS, gradient=True)
def _(c: Call) -> list[Any]:
    x = c.send.detach().requires_grad_()
    return _with_gradients(c, [x], [_functional(c).global_gather(x, *_lists(c), group=c.group)])


def _lists(c: Call) -> list[list[int]]:
    return [counts.tolist() for counts in c.expert_counts]
