"""A group of ``ray.util.collective``: one endpoint of a2a in each actor, and a communicator of all of them."""

from __future__ import annotations

from typing import Any

import a2a
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import (
    AllGatherOptions,
    AllReduceOptions,
    BarrierOptions,
    BroadcastOptions,
    RecvOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    SendOptions,
)

from ._meeting import meet

__all__ = ["A2AGroup"]

_REDUCTIONS = {ReduceOp.SUM: "sum", ReduceOp.PRODUCT: "prod", ReduceOp.MIN: "min", ReduceOp.MAX: "max"}


class A2AGroup(BaseGroup):  # type: ignore[misc]
    """What ``ray.util.collective`` calls. The actors of a group may be on several nodes: see docs/guide/ray.md."""

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        self._comm: a2a.Communicator | None = meet(world_size, rank, group_name)

    @classmethod
    def backend(cls) -> str:
        """The name of this backend."""
        return "A2A"

    @classmethod
    def check_backend_availability(cls) -> bool:
        """a2a is here."""
        return True

    @property
    def communicator(self) -> a2a.Communicator:
        """The communicator of the group, for calls that Ray does not have, such as ``alltoallv``."""
        if self._comm is None:
            raise a2a.AbortedError(f"the group {self.group_name} has been destroyed on rank {self.rank}")
        return self._comm

    def destroy_group(self) -> None:
        """Leave the group without waiting for the others. Their calls that still need this rank raise PeerLostError."""
        self._comm = None

    def allreduce(self, tensor: list[Any], allreduce_options: AllReduceOptions | None = None) -> None:
        """Reduce the tensors of all ranks into each of them."""
        one = _only(tensor)
        self.communicator.allreduce(one, one, _reduction(allreduce_options or AllReduceOptions()))

    def barrier(self, barrier_options: BarrierOptions | None = None) -> None:
        """Wait until all ranks have come."""
        self.communicator.barrier()

    def reduce(self, tensor: list[Any], reduce_options: ReduceOptions | None = None) -> None:
        """Reduce the tensors of all ranks into that of the root. The others keep theirs."""
        options, one = reduce_options or ReduceOptions(), _only(tensor)
        recv = one if self.rank == options.root_rank else None
        self.communicator.reduce(one, recv, options.root_rank, _reduction(options))

    def allgather(
        self, tensor_list: list[list[Any]], tensor: list[Any], allgather_options: AllGatherOptions | None = None
    ) -> None:
        """Give every rank the tensors of all ranks, one in each of its list."""
        outputs = _only(tensor_list)
        self.communicator.alltoall_list([_only(tensor)] * self.world_size, outputs)

    def broadcast(self, tensor: list[Any], broadcast_options: BroadcastOptions | None = None) -> None:
        """Give every rank the root's tensor."""
        self.communicator.broadcast(_only(tensor), (broadcast_options or BroadcastOptions()).root_rank)

    def reducescatter(
        self, tensor: list[Any], tensor_list: list[list[Any]], reducescatter_options: ReduceScatterOptions | None = None
    ) -> None:
        """Reduce each place of the lists into the tensor of its rank. The lists keep their contents."""
        output, parts = _only(tensor), _only(tensor_list)
        reduction = _reduction(reducescatter_options or ReduceScatterOptions())
        comm = self.communicator
        facts = a2a._core.describe_tensor(output)
        sent = comm.empty((len(parts), *facts["shape"]), facts["dtype"], like=facts["framework"])
        for place, part in enumerate(parts):
            sent[place] = part
        comm.reduce_scatter(sent, output, reduction)

    def send(self, tensor: list[Any], send_options: SendOptions) -> None:
        """Send a tensor to another rank."""
        self.communicator.send(_only(tensor), send_options.dst_rank)

    def recv(self, tensor: list[Any], recv_options: RecvOptions) -> None:
        """Receive a tensor from another rank."""
        self.communicator.recv(_only(tensor), recv_options.src_rank)


def _reduction(options: Any) -> Any:
    return _REDUCTIONS[options.reduceOp]


def _only(tensors: list[Any]) -> Any:
    """Return the one tensor, or list, that Ray passes in a list."""
    if len(tensors) != 1:
        raise a2a.UnsupportedError(f"a2a.ray: {len(tensors)} tensors of one process; each rank has one")
    return tensors[0]
