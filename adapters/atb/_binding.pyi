"""The extension module below a2a.atb: the C++ operation of a2a/atb.h on tensors of any framework."""

from collections.abc import Sequence
from typing import Any, TypeVar, final

from a2a._core import Counts

_T = TypeVar("_T")

@final
class AtbOperation:
    """ATB's AllToAllV with its parameters; see a2a.atb.AllToAllVOperation. Errors have ATB's number as ``status``."""

    def __init__(
        self,
        *,
        rank: int,
        rank_size: int,
        rank_root: int,
        send_counts: Counts,
        sdispls: Counts,
        recv_counts: Counts,
        rdispls: Counts,
        backend: str,
        hccl_comm: int | None,
        comm_mode: int,
        rank_table_file: Any,
        comm_domain: str,
        rsv: Counts,
        timeout: float,
    ) -> None: ...
    @property
    def name(self) -> str:
        """ATB's name of the operation."""
    @property
    def input_num(self) -> int:
        """The number of tensors that ``forward`` takes."""
    @property
    def output_num(self) -> int:
        """The number of tensors that ``forward`` returns."""
    def forward(self, tensors: Sequence[_T]) -> list[_T]:
        """Exchange. Returns a list with the output of shape [1, sum(recvCounts)] in the framework of the input. Ctrl-C
        interrupts the wait, not the exchange."""

def read_rank_table(file: Any) -> tuple[str, str, list[dict[str, str]]]:
    """Return (version, identity, places): a dict of strings for each rank. Tables with the same contents have the same
    identity, whatever their spelling. See a2a.atb.read_rank_table."""
