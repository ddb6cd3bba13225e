"""a2a.Communicator and a2a.Plan."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from ... import Communicator, _core, frameworks, quantized_all_reduce, testing
from ...sharding import Replicate, Shard, Sharding
from ..cases import Case
from ..collectives import COLLECTIVES
from ._signature import DEVICES, HOST, Call, Signature, equal, packed, register, rows

SIGNATURES: list[Signature] = []
signature = register(SIGNATURES)


_FOLDED_ON_DEVICES = frozenset({"int8", "int32", "int64", "float16", "float32"})


def _parameters(name: str) -> list[str]:
    """Return the arguments of a method that a Call has."""
    return [one for one in inspect.signature(getattr(Communicator, name)).parameters if hasattr(Call, one)]


def _register_method(name: str) -> None:
    """Add the method, waited for and not, and its plan_* form. Its cases have its name, and Call its arguments."""
    method = getattr(Communicator, name)
    parameters = _parameters(name)
    more = {"memory": HOST} if "op" in parameters else {}

    def arguments(c: Call) -> dict[str, Any]:
        return {one: getattr(c, one) for one in parameters}

    def tensors(c: Call) -> tuple[Any, ...]:
        return (c.tensor,) if "tensor" in parameters else (c.send, c.recv)

    @signature(f"core.{name}", name, meets=name, **more)
    def _(c: Call) -> None:
        method(c.group, **arguments(c))

    @signature(f"core.{name} async", name, meets=name, **more)
    def _(c: Call) -> None:
        method(c.group, **arguments(c), async_op=True).wait()

    @signature(f"core.plan_{name}", name, **more)
    def _(c: Call) -> None:
        getattr(c.group, f"plan_{name}")(**arguments(c)).run(*tensors(c))

    @signature(f"core.plan_{name} async", name, meets=f"core.plan_{name}", **more)
    def _(c: Call) -> None:
        getattr(c.group, f"plan_{name}")(**arguments(c)).start(*tensors(c)).wait()


def _folds_on_devices(case: Case) -> bool:
    return case.fold in ("sum", "prod", "min", "max")


def _register_on_devices(name: str) -> None:
    """Add a reduction on devices, for what both NCCL and HCCL have."""

    @signature(f"core.{name} on a device", name, _folds_on_devices, memory=DEVICES, dtypes=_FOLDED_ON_DEVICES)
    def _(c: Call) -> None:
        getattr(c.group, name)(**{one: getattr(c, one) for one in _parameters(name)})


def _alltoallv(c: Call) -> tuple[Any, ...]:
    return (c.send, c.send_counts, c.recv, c.recv_counts, *c.displs)


for _name in ("alltoallv", "allgather", *COLLECTIVES):
    _register_method(_name)
for _name in ("allreduce", "reduce", "reduce_scatter", "reduce_scatterv"):
    _register_on_devices(_name)


def _in_place(c: Call) -> Any:
    """Return an output that holds the input, or the input of a rank without an output."""
    if c.recv is None:
        return c.send
    c.recv[...] = c.send
    return c.recv


@signature("core.allreduce in place", "allreduce", framework="numpy", meets="allreduce")
def _(c: Call) -> None:
    c.group.allreduce(_in_place(c), op=c.op)


@signature("core.scan in place", "scan", framework="numpy", meets="scan")
def _(c: Call) -> None:
    c.group.scan(_in_place(c), op=c.op)


@signature("core.reduce in place", "reduce", framework="numpy", meets="reduce")
def _(c: Call) -> None:
    c.group.reduce(_in_place(c), root=c.root, op=c.op)


@signature("core.alltoallv of shared memory", "alltoallv", framework="numpy", meets="alltoallv")
def _(c: Call) -> None:
    c.group.alltoallv(_in_shared_memory(c), *_alltoallv(c)[1:])


def _in_shared_memory(c: Call) -> Any:
    """Return a copy of the input in memory that the peers can read."""
    send = c.group.empty(c.send.shape, c.send.dtype)
    send[...] = c.send
    return send


def _has_rows(case: Case) -> bool:
    return bool(case.facts["shape"])


def _gathers(c: Call) -> tuple[Any, ...]:
    """An allgather of rows as a resharding: shape, source and destination."""
    ranks = range(c.group.size)
    return _core.describe_tensor(c.recv)["shape"], Sharding(ranks, Shard(0)), Sharding(ranks, Replicate())


@signature("core.reshard", "allgather", _has_rows, memory=HOST, meets="reshard")
def _(c: Call) -> None:
    c.group.reshard(c.send, c.recv, *_gathers(c))


@signature("core.reshard async", "allgather", _has_rows, memory=HOST, meets="reshard")
def _(c: Call) -> None:
    c.group.reshard(c.send, c.recv, *_gathers(c), async_op=True).wait()


@signature("core.plan_reshard", "allgather", _has_rows, memory=HOST)
def _(c: Call) -> None:
    c.group.plan_reshard(*_gathers(c), _core.describe_tensor(c.send)["dtype"]).run(c.send, c.recv)


@signature("core.plan_reshard_all", "allgather", _has_rows, memory=HOST)
def _(c: Call) -> None:
    tensor = (*_gathers(c), _core.describe_tensor(c.send)["dtype"])
    c.group.plan_reshard_all([tensor]).run([c.send], [c.recv])


@signature("core.alltoallv in a group", "alltoallv")
def _(c: Call) -> None:
    with c.group.group(range(c.group.size)) as group:
        group.alltoallv(*_alltoallv(c))


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
