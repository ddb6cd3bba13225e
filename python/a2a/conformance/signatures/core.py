"""a2a.Communicator and a2a.Plan."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import _core, frameworks, quantized_all_reduce, testing
from ._signature import DEVICES, HOST, Call, Signature, equal, packed, register, rows

SIGNATURES: list[Signature] = []
signature = register(SIGNATURES)


def _alltoallv(c: Call) -> tuple[Any, ...]:
    return (c.send, c.send_counts, c.recv, c.recv_counts, *c.displs)


@signature("core.alltoallv", "alltoallv", meets="alltoallv")
def _(c: Call) -> None:
    c.group.alltoallv(*_alltoallv(c))


@signature("core.alltoallv async", "alltoallv", meets="alltoallv")
def _(c: Call) -> None:
    c.group.alltoallv(*_alltoallv(c), async_op=True).wait()


@signature("core.alltoallv of shared memory", "alltoallv", framework="numpy", meets="alltoallv")
def _(c: Call) -> None:
    c.group.alltoallv(_in_shared_memory(c), *_alltoallv(c)[1:])


def _in_shared_memory(c: Call) -> Any:
    """Return a copy of the input in memory that the peers can read."""
    send = c.group.empty(c.send.shape, c.send.dtype)
    send[...] = c.send
    return send


@signature("core.alltoallv in a group", "alltoallv")
def _(c: Call) -> None:
    with c.group.group(range(c.group.size)) as group:
        group.alltoallv(*_alltoallv(c))


@signature("core.plan_alltoallv", "alltoallv")
def _(c: Call) -> None:
    c.group.plan_alltoallv(*_alltoallv(c)).run(c.send, c.recv)


@signature("core.plan_alltoallv async", "alltoallv", meets="core.plan_alltoallv")
def _(c: Call) -> None:
    c.group.plan_alltoallv(*_alltoallv(c)).start(c.send, c.recv).wait()


@signature("core.plan_alltoallv transposed", "alltoallv", packed)
def _(c: Call) -> None:
    seen = _core.describe_tensor(c.send)
    # A JAX array cannot be received into. Any tensor of this shape will do: the plan only reads its properties.
    gradient = c.group.empty(seen["shape"], seen["dtype"]) if seen["framework"] == "jax" else c.send
    back = c.group.plan_alltoallv(c.recv, c.recv_counts, gradient, c.send_counts)
    back.transpose().run(c.send, c.recv)


@signature("core.alltoall", "alltoallv", equal, meets="alltoallv", meets_on_devices="core.alltoall")
def _(c: Call) -> None:
    c.group.alltoall(c.send, c.recv)


@signature("core.alltoall async", "alltoallv", equal, meets="alltoallv", meets_on_devices="core.alltoall")
def _(c: Call) -> None:
    c.group.alltoall(c.send, c.recv, async_op=True).wait()


@signature("core.plan_alltoall", "alltoallv", equal)
def _(c: Call) -> None:
    c.group.plan_alltoall(c.send, c.recv).run(c.send, c.recv)


@signature("core.exchange", "alltoallv", packed, out=False)
def _(c: Call) -> list[Any]:
    recv, counts = c.group.exchange(c.send, c.send_counts)
    if list(counts) != c.recv_counts:
        raise AssertionError(f"exchange gives the counts {list(counts)} instead of {c.recv_counts}")
    return [recv]


@signature("core.alltoall_list", "alltoall_list", meets="alltoall_list")
def _(c: Call) -> None:
    c.group.alltoall_list(c.sends, c.recvs)


@signature("core.alltoall_list async", "alltoall_list", meets="alltoall_list")
def _(c: Call) -> None:
    c.group.alltoall_list(c.sends, c.recvs, async_op=True).wait()


@signature("core.allgather", "allgather", meets="allgather")
def _(c: Call) -> None:
    c.group.allgather(c.send, c.recv)


@signature("core.allgather async", "allgather", meets="allgather")
def _(c: Call) -> None:
    c.group.allgather(c.send, c.recv, async_op=True).wait()


@signature("core.allgather in place", "allgather", rows, framework="numpy", meets="allgather")
def _(c: Call) -> None:
    part = np.split(c.recv, c.case.ranks)[c.rank]
    part[...] = c.send
    c.group.allgather(part, c.recv)


@signature("core.allgather_views", "allgather", out=False, parts=True, memory=HOST)
def _(c: Call) -> list[Any]:
    seen = _core.describe_tensor(c.send)
    mine = c.group.empty(seen["shape"], seen["dtype"], like="a2a")
    testing.as_bytes(mine)[...] = testing.as_bytes(c.send)
    framework = frameworks.of(type(c.send))
    return list(c.group.allgather_views(mine, "a2a" if framework is None else framework.name))


@signature("core.plan_allgather", "allgather")
def _(c: Call) -> None:
    c.group.plan_allgather(c.send, c.recv).run(c.send, c.recv)


@signature("core.global_scatter", "global_scatter", out=False, meets="global_scatter")
def _(c: Call) -> list[Any]:
    return [c.group.global_scatter(c.send, *c.expert_counts)]


@signature("core.global_scatter out", "global_scatter", meets="global_scatter")
def _(c: Call) -> None:
    c.group.global_scatter(c.send, *c.expert_counts, out=c.recv)


@signature("core.global_scatter of shared memory", "global_scatter", framework="numpy", meets="global_scatter")
def _(c: Call) -> None:
    c.group.global_scatter(_in_shared_memory(c), *c.expert_counts, out=c.recv)


@signature("core.global_scatter async", "global_scatter", out=False, meets="global_scatter")
def _(c: Call) -> list[Any]:
    work = c.group.global_scatter(c.send, *c.expert_counts, async_op=True)
    work.wait()
    return [work.result]


@signature("core.plan_global_scatter", "global_scatter")
def _(c: Call) -> None:
    c.group.plan_global_scatter(c.send, *c.expert_counts).run(c.send, c.recv)


@signature("core.global_gather", "global_gather", out=False, meets="global_gather")
def _(c: Call) -> list[Any]:
    return [c.group.global_gather(c.send, *c.expert_counts)]


@signature("core.global_gather out", "global_gather", meets="global_gather")
def _(c: Call) -> None:
    c.group.global_gather(c.send, *c.expert_counts, out=c.recv)


@signature("core.global_gather of shared memory", "global_gather", framework="numpy", meets="global_gather")
def _(c: Call) -> None:
    c.group.global_gather(_in_shared_memory(c), *c.expert_counts, out=c.recv)


@signature("core.global_gather async", "global_gather", out=False, meets="global_gather")
def _(c: Call) -> list[Any]:
    work = c.group.global_gather(c.send, *c.expert_counts, async_op=True)
    work.wait()
    return [work.result]


@signature("core.plan_global_gather", "global_gather")
def _(c: Call) -> None:
    c.group.plan_global_gather(c.send, *c.expert_counts).run(c.send, c.recv)


@signature("core.quantized_all_reduce", "quantized_all_reduce", out=False, memory=HOST)
def _(c: Call) -> list[Any]:
    return [quantized_all_reduce(c.group, c.send, c.case.facts["scale"], c.case.facts["offset"])]


@signature(
    "core.quantized_all_reduce on a device",
    "quantized_all_reduce",
    out=False,
    framework="torch",
    memory=DEVICES,
)
def _(c: Call) -> list[Any]:
    return [quantized_all_reduce(c.group, c.send, c.case.facts["scale"], c.case.facts["offset"])]
