"""What ElasticBuffer has beside dispatch and combine: entries that other ranks hold (``engram_*``), tensors to the
neighbours in a ring (``pp_*``), and all-gathers in sessions (``agrs_*``)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

import a2a

from ._ranks import Ranks, by_columns, plain

__all__ = ["Sessions"]

_PAGE = 2 << 20  # of DeepEP's buffers, whose sizes programs pass on
_ALIGN = 32
_TAG = 7002  # of tensors to neighbours
_COLUMN_BYTES = 16  # to which columns of scales are aligned


class Sessions:
    """A part of ElasticBuffer. Host tensors only."""

    _ranks: Ranks
    comm: a2a.Communicator
    num_ranks: int
    rank_idx: int

    def _begin(self) -> None:
        self._entries: a2a.Views | None = None
        self._scales: Tensor | None = None
        self._pp_most = self._pp_inflight = 0
        self._pp_sends: dict[int, deque[a2a.Work]] = {}
        self._agrs_bytes = self._agrs_count = 0
        self._agrs: list[Tensor] | None = None  # what was gathered into since the session began
        self._slots: dict[int, Tensor] = {}

    # ---- entries that other ranks hold ----

    @staticmethod
    def get_engram_storage_size_hint(
        num_entries: int, hidden: int, num_max_tokens_per_rank: int, dtype: torch.dtype = torch.bfloat16
    ) -> tuple[int, int]:
        """(0, 0): there is no buffer of this kind."""
        return 0, 0

    def engram_write(self, storage: Tensor, sf: Tensor | None = None) -> None:
        """Collective. Keep a copy of this rank's entries, which every rank can then fetch. One host only.

        Args:
            storage: [num_entries, hidden], as many on all ranks, bfloat16 or float8_e4m3fn.
            sf: [entries of all ranks, any], the scales of all entries, for float8 and only then; kept."""
        self._ranks.require_matrix("storage", storage)
        fp8 = storage.dtype == torch.float8_e4m3fn
        self._ranks.require(fp8 or storage.dtype == torch.bfloat16, f"storage is {storage.dtype}")
        self._ranks.require((sf is not None) == fp8, "sf is for float8 storage, and float8 storage needs it")
        entries = storage.shape[0] * self.num_ranks
        if sf is not None:
            self._ranks.require_matrix("sf", sf, entries)
        if self._entries is not None:
            self._entries.release()
        shared = self.comm.empty(tuple(storage.shape), storage.dtype, like="torch")
        _bits(shared).copy_(_bits(plain(storage)))
        self._entries, self._scales = self.comm.allgather_views(shared, like="torch"), sf
        shapes = {tuple(one.shape) for one in self._entries}
        if len(shapes) > 1:
            self._entries = None
            raise a2a.MismatchError(f"engram_write: ranks have storage of different shapes: {sorted(shapes)}")

    def engram_fetch(
        self, indices: Tensor, num_qps: int = 0, use_tma_aligned_col_major_sf: bool = False
    ) -> Callable[[], tuple[Tensor, Tensor | None]]:
        """Fetch entries of any ranks; no other rank takes part.

        Args:
            indices: [tokens, k], int32: entry % num_entries of rank entry // num_entries.
            use_tma_aligned_col_major_sf: scales lie column after column.

        Returns: a function whose result is ([tokens, k * hidden], the scales [tokens, k * any] or None)."""
        if self._entries is None:
            raise a2a.InvalidArgumentError("engram_fetch: nothing is there before engram_write()")
        if not isinstance(indices, Tensor) or indices.ndim != 2 or indices.dtype != torch.int32:
            raise a2a.InvalidArgumentError("indices is no matrix [tokens, k] of int32")
        each, hidden = self._entries[0].shape
        flat = indices.flatten().long()
        if flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < each * self.num_ranks:
            text = f"indices has {int(flat.min())} to {int(flat.max())}; there are {each * self.num_ranks} entries"
            raise a2a.InvalidArgumentError(text)
        data = torch.empty(len(flat), hidden, dtype=self._entries[0].dtype)
        for rank, entries in enumerate(self._entries):
            here = (flat // max(each, 1) == rank).nonzero().flatten()
            _bits(data)[here] = _bits(entries)[flat[here] - rank * each]
        scales = None
        if self._scales is not None:
            scales = self._scales[flat].view(len(indices), indices.shape[1] * self._scales.shape[1])
            if use_tma_aligned_col_major_sf:
                scales = by_columns(scales, _COLUMN_BYTES // scales.dtype.itemsize)
        result = data.view(len(indices), indices.shape[1] * hidden), scales
        return lambda: result

    # ---- tensors to the neighbours in a ring ----

    @staticmethod
    def get_pp_buffer_size_hint(num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> int:
        """0: there is no buffer of this kind."""
        return 0

    def pp_set_config(self, num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> None:
        """Collective. No tensor has more bytes, and no more of them are on their way to one rank."""
        self._ranks.require_count("num_max_tensor_bytes", num_max_tensor_bytes, 1)
        self._ranks.require_count("num_max_inflight_tensors", num_max_inflight_tensors, 1)
        self.comm.barrier()
        self._pp_most, self._pp_inflight = num_max_tensor_bytes, num_max_inflight_tensors

    def pp_send(self, t: Tensor, dst_rank_idx: int, num_sms: int = 0) -> None:
        """Send a contiguous tensor to the next or the previous rank. It is copied; the call waits only while as many
        tensors as pp_set_config() allows are on their way there."""
        self._require_neighbour(t, dst_rank_idx)
        sends = self._pp_sends.setdefault(dst_rank_idx, deque())
        while len(sends) >= self._pp_inflight:
            sends.popleft().wait()
        sends.append(self.comm.send(plain(t).clone(), dst_rank_idx, _TAG, async_op=True))

    def pp_recv(self, t: Tensor, src_rank_idx: int, num_sms: int = 0) -> None:
        """Receive into a contiguous tensor what the next or the previous rank sends. Tensors come in order."""
        self._require_neighbour(t, src_rank_idx)
        self.comm.recv(plain(t), src_rank_idx, _TAG)

    def _require_neighbour(self, t: Any, rank: int) -> None:
        if self._pp_most == 0:
            raise a2a.InvalidArgumentError("pp_set_config() was not called")
        if not isinstance(t, Tensor) or not t.is_contiguous() or t.nbytes > self._pp_most:
            raise a2a.InvalidArgumentError(f"t is no contiguous tensor of at most {self._pp_most} bytes")
        ring = [(self.rank_idx + step) % self.num_ranks for step in (-1, 1)]
        if rank not in ring or rank == self.rank_idx:
            raise a2a.InvalidArgumentError(f"rank {rank} is no neighbour of rank {self.rank_idx} of {self.num_ranks}")

    # ---- all-gathers in sessions ----

    @staticmethod
    def get_agrs_num_max_session_bytes(group: Any, shapes: Any, dtype: torch.dtype) -> int:
        """The bytes of all tensors of these shapes after a gather, each rounded up to 32."""
        several = shapes if isinstance(shapes[0], tuple) else (shapes,)
        size = Ranks(group).size
        return sum(_aligned(size * math.prod(shape) * dtype.itemsize, _ALIGN) for shape in several)

    @staticmethod
    def get_agrs_buffer_size_hint(group: Any, num_max_session_bytes: int) -> int:
        """These bytes, rounded up to 2 MiB."""
        return _aligned(num_max_session_bytes, _PAGE)

    def agrs_set_config(self, num_max_session_bytes: int, num_max_all_gathers_per_session: int) -> None:
        """Collective. No session gathers more bytes, nor more tensors."""
        self._ranks.require(self._agrs is None, "agrs_set_config is called within a session")
        self._ranks.require_count("num_max_session_bytes", num_max_session_bytes, 1)
        self._ranks.require_count("num_max_all_gathers_per_session", num_max_all_gathers_per_session, 1)
        self.comm.barrier()
        self._agrs_bytes, self._agrs_count = num_max_session_bytes, num_max_all_gathers_per_session

    def create_agrs_session(self) -> None:
        """Begin a session. All ranks do."""
        if self._agrs is not None:
            raise a2a.InvalidArgumentError("the former session has not ended: call destroy_agrs_session()")
        self._agrs, self._slots = [], {}

    def destroy_agrs_session(self) -> None:
        """End the session. What was gathered stays valid here: its memory is its own."""
        self._require_session()
        self._agrs = None

    @contextmanager
    def agrs_new_session(self, enabled: bool = True) -> Iterator[None]:
        """A session for a with block. Not ``enabled``: none."""
        if not enabled:
            yield
            return
        self.create_agrs_session()
        try:
            yield
        finally:
            self.destroy_agrs_session()

    def agrs_get_inplace_tensor(self, shapes: Any, dtype: torch.dtype) -> Any:
        """Return this rank's part of what a later all_gather() of it returns: a tensor, or a tuple for several
        shapes. No copy is made then."""
        self._require_session()
        several = isinstance(shapes[0], tuple)
        made = []
        for shape in shapes if several else (shapes,):
            whole = torch.empty(self.num_ranks, *shape, dtype=dtype)
            made.append(whole[self.rank_idx])
            self._slots[made[-1].data_ptr()] = whole
        return tuple(made) if several else made[0]

    def all_gather(self, t: Tensor | Sequence[Tensor]) -> Any:
        """Collective. Gather contiguous tensors of all ranks, in a session. Returns, for each, [num_ranks, ...], and
        last a function that waits until they are there."""
        session = self._require_session()
        works = []
        gathered = []
        for one in (t,) if isinstance(t, Tensor) else t:
            fits = isinstance(one, Tensor) and one.is_contiguous()
            self._ranks.require(fits, "all_gather takes contiguous tensors")
            whole = self._slots.pop(one.data_ptr(), None)
            if whole is None or whole[0].shape != one.shape or whole.dtype != one.dtype:
                whole = one.new_empty(self.num_ranks, *one.shape)
            count, nbytes = len(session) + 1, sum(_aligned(each.nbytes, _ALIGN) for each in [*session, whole])
            fits = count <= self._agrs_count and nbytes <= self._agrs_bytes
            limits = f"{self._agrs_count} tensors and {self._agrs_bytes} bytes"
            self._ranks.require(fits, f"{count} tensors of {nbytes} bytes in a session of at most {limits}")
            works.append(self.comm.allgather(plain(one), whole, async_op=True))
            session.append(whole)
            gathered.append(whole)

        def wait() -> None:
            for work in works:
                work.wait()

        return *gathered, wait

    def _require_session(self) -> list[Tensor]:
        if self._agrs is None:
            raise a2a.InvalidArgumentError("no session has begun: call create_agrs_session()")
        return self._agrs


def _aligned(nbytes: int, multiple: int) -> int:
    return -(-nbytes // multiple) * multiple


def _bits(tensor: Tensor) -> Tensor:
    """The same memory in a dtype that every operation of torch knows."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor
