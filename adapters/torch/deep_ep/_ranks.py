"""The parts that both kinds of buffer share: the ranks, refusals, and the shapes of results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

import a2a
from a2a.adapting import refuse

from .._experts.device import DeviceWay
from .._experts.host import HostWay
from .._experts.placement import Placement, placement_for, require
from .._operations.staging import inner
from .._process_group.communicators import communicator

__all__ = [
    "Ranks",
    "Rows",
    "by_columns",
    "combined",
    "comm_stream",
    "dispatched",
    "grown",
    "plain",
    "rounded_up",
    "shape_of",
]

Rows: TypeAlias = Tensor | tuple[Tensor, Tensor]


class Ranks:
    """The ranks of a group and the experts on them.

    Attributes:
        comm: the ranks that communicate. Number i among them is rank ``members[i]`` of all ``size`` ranks.
        shrinks: whether some of all ranks may be masked.
    """

    members: tuple[int, ...]
    shrinks = False

    def __init__(self, group: Any) -> None:
        comm = communicator(group)
        if comm is None:
            raise a2a.UnsupportedError(f"group {group!r}: this process is no member")
        self.comm, self.size, self.members = comm, comm.size, tuple(range(comm.size))
        self._placements: dict[int, Placement] = {}

    def require(self, holds: bool, text: str) -> None:
        """Raise InvalidArgumentError where the condition does not hold, and tell the peers."""
        if not holds:
            raise refuse(self.comm, a2a.InvalidArgumentError(text))

    def require_handle(self, handle: Any, kind: type, call: str = "dispatch") -> None:
        """Require a handle that a dispatch of these ranks has returned."""
        self.require(isinstance(handle, kind), f"handle is {type(handle).__name__}; pass that of {call}()")
        same = handle.way.comm is self.comm or self.shrinks
        self.require(same, "handle belongs to another communicator, where its exchanges would run")

    def experts(self, num_experts: Any) -> Placement:
        """Return the placement of so many experts, of which each rank has a block. Raises InvalidArgumentError."""
        size = self.comm.size
        found = self._placements.get(num_experts) if isinstance(num_experts, int) else None
        if found is None:
            fits = isinstance(num_experts, int) and num_experts > 0 and num_experts % size == 0
            self.require(fits, f"num_experts is {num_experts!r}; pass a multiple of the {size} ranks")
            found = self._placements[num_experts] = placement_for(self.comm, num_experts, None)
        return found

    def way(
        self,
        num_experts: Any,
        x: Tensor,
        topk_idx: Any,
        topk_weights: Any,
        layout: Any,
        align: int = 1,
        equal: Mapping[str, int] | None = None,
        after: HostWay | None = None,
    ) -> HostWay:
        """Collective. The way of tokens on the device of ``x``. ``equal``: arguments that all ranks have alike.
        ``after``: the way of an earlier call, which has to be the same on all ranks."""
        if topk_weights is not None:
            require(self.comm, "topk_weights", topk_weights, (torch.float32,))
        pairs = [(name, int(value)) for name, value in (equal or {}).items()]
        return self.experts(num_experts).way_for(x, topk_idx, topk_weights, layout, align, None, pairs, after)

    @staticmethod
    def operations(x: Any, tensors: int, way: bool = True) -> int:
        """Return how many operations a dispatch of so many tensors starts. ``way``: it first finds a way for them."""
        given = x[0] if isinstance(x, tuple) and x else x
        on_host = not isinstance(given, Tensor) or Placement.on_host(given)
        return (2 if on_host else 4) * way + (1 if on_host else tensors)

    def require_place(self, name: str, tensor: Tensor, way: HostWay) -> None:
        """Require a tensor to be on the device of the tokens that went this way."""
        device = torch.device("cpu") if not isinstance(way, DeviceWay) else way.device
        self.require(tensor.device == device, f"{name} is on {tensor.device}, but the handle is of {device}")

    def tokens(self, x: Any) -> tuple[Tensor, Tensor | None]:
        """Return the tokens of ``x``, and their scales if ``x`` is a pair of both. Raises for one that is no matrix."""
        given, scales = x if isinstance(x, tuple) and len(x) == 2 else (x, None)
        for name, tensor in (("x", given), ("scales of x", scales)):
            if tensor is not None or name == "x":
                self.require_matrix(name, tensor)
        return given, scales

    def require_count(self, name: str, value: Any, least: int) -> None:
        """Require an integer that is at least ``least``."""
        fits = isinstance(value, int) and value >= least
        self.require(fits, f"{name} is {value!r}; pass an integer, at least {least}")

    def require_stats(self, name: str, stats: Any, experts: int) -> None:
        """Require None, or a tensor that can hold a count for each local expert."""
        if stats is not None:
            fits = isinstance(stats, Tensor) and stats.shape == (experts,) and not stats.is_floating_point()
            shown = tuple(stats.shape) if isinstance(stats, Tensor) else stats
            self.require(fits, f"{name} is {shown}; pass a tensor of {experts} integers")

    def require_matrix(self, name: str, tensor: Any, rows: int | None = None, columns: int | None = None) -> None:
        """Require a matrix. Where ``rows`` or ``columns`` are given, it has so many."""
        if not isinstance(tensor, Tensor):
            self.require(False, f"{name} is {type(tensor).__name__}, not a tensor")
        shape = tuple(tensor.shape)
        fits = len(shape) == 2 and rows in (None, shape[0]) and columns in (None, shape[1])
        self.require(fits, f"{name} has shape {shape}; pass [{'any' if rows is None else rows}, "
                           f"{'any' if columns is None else columns}]")  # fmt: skip


def dispatched(way: HostWay, x: Tensor, scales: Tensor | None, later: bool) -> tuple[Rows, list[a2a.Work]]:
    """Return the rows that ``x`` becomes, paired with those of ``scales`` if these are given, and with ``later`` the
    work after which they are there. On a device there is no work: the current stream orders the rows."""
    if isinstance(way, DeviceWay):
        rows = way.spread(x)
        return rows if scales is None else (rows, way.spread(scales)), []
    made = way.routing.dispatch(plain(x), None if scales is None else plain(scales), async_op=later)
    routed = made.result if later else made
    return (routed.x if scales is None else (routed.x, routed.scales)), [made] if later else []


def combined(
    way: HostWay, rows: Tensor, later: bool, weights: Any = None, bias: Any = None
) -> tuple[Tensor, list[a2a.Work]]:
    """Return the sum of the rows of each token, and with ``later`` the work after which it is there."""
    several = list(bias) if isinstance(bias, (tuple, list)) else [] if bias is None else [bias]
    biases = [plain(one).contiguous() for one in several] or None  # the core takes no other
    if isinstance(way, DeviceWay):
        return way.gather(rows, weights, biases or ()), []
    made = way.routing.combine(plain(rows), weights=weights, bias=biases, async_op=later)
    return (made.result, [made]) if later else (made, [])


def shape_of(x: Tensor, scales: Tensor | None) -> dict[str, int]:
    """Return the sizes that tokens have to have alike on all ranks, for Ranks.way()."""
    return {"hidden": x.shape[1], "columns of the scales of x": 0 if scales is None else scales.shape[1]}


def comm_stream() -> Any:
    """Return the current stream: of the GPU where there is one, else of the CPU."""
    return (torch.cuda if torch.cuda.is_available() else torch.cpu).current_stream()


def plain(tensor: Tensor) -> Tensor:
    """Return the values of a tensor without its gradient."""
    return inner(tensor)


def grown(tensor: Tensor, rows: int, fill: float = 0) -> Tensor:
    """Return the tensor with so many rows. The rows that are added hold ``fill``."""
    if len(tensor) == rows:
        return tensor
    made = tensor.new_empty(rows, *tensor.shape[1:])
    if tensor.dtype.itemsize == 1:  # float8 has no fill
        made.view(torch.uint8)[len(tensor) :] = 0
    else:
        made[len(tensor) :] = fill
    made[: len(tensor)] = tensor
    return made


def by_columns(matrix: Tensor, multiple: int = 1) -> Tensor:
    """Return a copy that lies in memory column by column. Each column begins at a multiple of so many elements."""
    column = -(-matrix.shape[-2] // multiple) * multiple
    made = matrix.new_zeros(*matrix.shape[:-2], matrix.shape[-1], column).transpose(-1, -2)[..., : matrix.shape[-2], :]
    return made.copy_(matrix)


def rounded_up(counts: Iterable[int], multiple: int) -> list[int]:
    """Return the counts, each rounded up to a multiple."""
    return [-(-int(count) // multiple) * multiple for count in counts]
