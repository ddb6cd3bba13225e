"""What a dispatch brings to a rank of experts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _core
from ._core import InvalidArgumentError, Work

if TYPE_CHECKING:
    from .moe import Routing

__all__ = ["Routed"]


class Routed:
    """The rows that this rank has received, with their experts, weights and sources.

    Attributes:
        routing: the routing of their dispatch; ``ep.dispatch(x, routing=routed.routing)`` repeats it.
        work: the Work of an asynchronous dispatch, otherwise None.
    """

    def __init__(self, routing: Routing, given: Sequence[Any], made: Sequence[Any], work: Work | None) -> None:
        self.routing = routing
        self.work = work
        self._given, self._made, self._final = given, list(made), work is None

    @property
    def x(self) -> Any:
        """The rows, in the framework of ``x``. In the layout "expert" padding rows are 0. Valid once ready."""
        return self._tensors()[0]

    @property
    def scales(self) -> Any:
        """The scales of the rows, if scales were dispatched."""
        return self._tensors()[1] if len(self._made) > 1 else None

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The number of rows of each of this rank's experts, without padding. In the layout "rank" a row may count for
        several experts."""
        return self.routing.counts

    @property
    def offsets(self) -> npt.NDArray[np.int64] | None:
        """The first row of each expert, and the end of the last one's padding. None in the layout "rank"."""
        return self.routing.offsets

    @property
    def topk_idx(self) -> Any:
        """Layout "expert": the local expert of each row, -1 for padding. Layout "rank": [rows, top_k] local experts, -1
        for those of other ranks."""
        return self.routing.topk_idx

    @property
    def topk_weights(self) -> Any:
        """The weights in the shape of ``topk_idx``, 0 where that is -1. None without ``topk_weights``."""
        return self.routing.topk_weights

    @property
    def source(self) -> Any:
        """[rows, 2]: the source rank and the token of each row, (-1, -1) for padding."""
        return self.routing.source

    @property
    def dropped(self) -> npt.NDArray[np.int64]:
        """[any, 2]: the token and the place in top-k of each choice of this rank that counted as -1, because no active
        rank has the expert; ascending."""
        return self.routing.dropped

    def ready(self, rank: int) -> bool:
        """Whether all rows from that rank have arrived."""
        return self.work is None or self.work.arrived(rank)

    def wait(self, timeout: float | None = None) -> None:
        """Block until all rows have arrived."""
        if self.work is not None:
            self.work.wait(timeout)

    def as_ready(self) -> Iterator[int]:
        """Yield this rank's experts, each as soon as its rows have arrived; those without rows first. Returns when the
        dispatch is done, for which the peers need this rank."""
        if self.offsets is None:
            raise InvalidArgumentError('in the layout "rank" rows are not grouped by expert; ask ready(rank)')
        sources = self.routing.core.source_ranks()
        wanted = {
            expert: {int(rank) for rank in sources[begin : begin + count]}
            for expert, (begin, count) in enumerate(zip(self.offsets[:-1], self.counts, strict=True))
        }
        pause = 0.0
        while wanted:
            here = [expert for expert, ranks in wanted.items() if all(self.ready(rank) for rank in ranks)]
            for expert in here:
                del wanted[expert]
                yield expert
            if here:
                pause = 0.0
            elif wanted and self.work is not None:
                if self.work.done():
                    self.work.wait()  # raises if the dispatch has failed
                time.sleep(pause)
                pause = min(pause * 2, 1e-3) if pause else 1e-6
        self.wait()

    def _tensors(self) -> list[Any]:
        """The received tensors. For frameworks whose arrays are immutable it waits until all rows have arrived."""
        if not self._final:
            pairs = zip(self._given, self._made, strict=True)
            self._made = [_core.convert_result(given, made, self.work) for given, made in pairs]
            self._final = True
        return self._made

    def __repr__(self) -> str:
        return f'<Routed {self.routing.rows} rows for {len(self.counts)} experts, layout "{self.routing.layout}">'
