"""The ranks of experts, and the routes of tokens to them. Equal placements on one group are one object, which graphs
know by a name: so a graph that was compiled for one layer serves the next one."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from a2a import Communicator
from a2a._placements import Homes, Replicas
from a2a.adapting import collective, refuse, takes
from a2a.moe import ExpertParallel as HostExperts

from .._errors import ArgumentTypeError, TensorError
from .device import DeviceWay
from .host import HostWay

__all__ = ["DTYPES", "Placement", "placement_for", "placement_named", "placement_of", "require"]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Placement:
    """The ranks on which experts are, and those that take part."""

    def __init__(self, host: HostExperts, name: str) -> None:
        self.comm, self.name, self.host = host.comm, name, host

    @collective
    def way_for(
        self,
        x: Tensor,
        topk_idx: Tensor | None,
        topk_weights: Tensor | None,
        layout: Any,
        align: int,
        timeout: float | None,
        equal: Sequence[tuple[str, int]] = (),
        after: HostWay | None = None,
    ) -> HostWay:
        """Collective. Where each token goes, for a dispatch of ``x``, or of others on its device. topk_weights:
        float32. ``equal``: pairs of a name and an integer that all ranks have alike. ``after``: the way of an earlier
        dispatch to which the call belongs."""
        takes(self.operations(x))
        require(self.comm, "topk_idx", topk_idx, (torch.int32, torch.int64))
        assert topk_idx is not None
        choices = topk_idx.detach().cpu()
        given = None
        if topk_weights is not None:
            given = topk_weights.detach().cpu()
        before = None if after is None else after.routing.core
        routing = self.host._route(choices, given, layout, align, None, None, timeout, equal, before)
        if self.on_host(x):
            return HostWay(routing, timeout)
        return DeviceWay(routing, timeout, x.device, choices, given, self._experts_of_ranks())

    @collective
    def dispatched(
        self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor | None, layout: Any, align: int, timeout: float | None
    ) -> tuple[HostWay, Tensor]:
        """Collective. The way of the tokens, and the rows that have come."""
        takes(self.operations(x) + 1)
        require(self.comm, "x", x, DTYPES)
        way = self.way_for(x, topk_idx, topk_weights, layout, align, timeout)
        return way, way.spread(x)

    def operations(self, x: Any) -> int:
        """Return how many operations way_for() starts."""
        return 4 if isinstance(x, Tensor) and not self.on_host(x) else 2

    @staticmethod
    def on_host(x: Tensor) -> bool:
        """Whether a2a.moe moves its rows."""
        return bool(x.is_cpu)

    def _experts_of_ranks(self) -> list[list[int]]:
        """Return the experts of each rank, in the order of their numbers there."""
        homes = self.host.expert_to_rank
        return [[e for e, ranks in enumerate(homes) if rank in ranks] for rank in range(self.comm.size)]


_placements: weakref.WeakValueDictionary[Any, Placement] = weakref.WeakValueDictionary()
_by_name: weakref.WeakValueDictionary[str, Placement] = weakref.WeakValueDictionary()
_numbers = itertools.count()


@collective
def placement_for(
    comm: Communicator, num_experts: int, expert_to_rank: Homes | None, replicas: Replicas | None = None
) -> Placement:
    """Raises InvalidArgumentError for a placement that is none; the peers hear of it in their next call."""
    places = None if expert_to_rank is None else list(expert_to_rank)
    key = id(comm), num_experts, repr(places), repr(replicas)
    return _kept(key, lambda: HostExperts(comm, num_experts, places, replicas=replicas))


def placement_of(comm: Communicator, homes: Homes, active: Sequence[int]) -> Placement:
    """Return the placement of experts of which some may be nowhere, on ranks of which these take part."""

    def make() -> HostExperts:
        host = HostExperts(comm, comm.size)
        host._settle(comm, homes, active)
        return host

    return _kept((id(comm), repr(list(homes)), tuple(active)), make)


def _kept(key: Any, make: Callable[[], HostExperts]) -> Placement:
    placement = _placements.get(key)
    if placement is None:
        name = f"experts {next(_numbers)}"
        placement = _placements[key] = _by_name[name] = Placement(make(), name)
    return placement


def placement_named(name: str) -> Placement:
    """Return the placement of that name."""
    return _by_name[name]


def require(comm: Communicator, name: str, tensor: Any, dtypes: tuple[torch.dtype, ...]) -> None:
    """Require a tensor of one of these dtypes, in plain memory. Otherwise raise, and tell the peers."""
    if not isinstance(tensor, Tensor):
        raise refuse(comm, ArgumentTypeError(f"{name} is {type(tensor).__name__}, not torch.Tensor"))
    if torch._C._are_functorch_transforms_active() or forward_ad.unpack_dual(tensor).tangent is not None:
        text = (
            f"{name} is differentiated by torch.func or forward_ad; the experts have the derivatives of backward() only"
        )
        raise refuse(comm, TensorError(text))
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_meta:
        raise refuse(comm, TensorError(f"{name} has no values in plain memory"))
    if tensor.dtype not in dtypes:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise refuse(comm, ArgumentTypeError(f"{name} is {tensor.dtype}; pass one of {known}"))
