"""What the calls of DeepEP's first interface take and return besides tensors."""

from __future__ import annotations

from dataclasses import dataclass

from a2a.moe import Routing

from .._experts.host import HostWay

__all__ = ["Config", "Handle"]


@dataclass
class Config:
    """Numbers that tune kernels, without effect here."""

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """0: there is no buffer of this kind."""
        return 0

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """0: there is no buffer of this kind."""
        return 0


@dataclass(frozen=True)
class Handle:
    """Of dispatch(), for combine() and for another dispatch() the same way."""

    way: HostWay
    num_worst_tokens: int

    @property
    def routing(self) -> Routing:
        """See a2a.moe."""
        return self.way.routing
