"""The contenders behind one small interface. A library is imported only by the worker that measures it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from bare import BareGroup, BareSharedGroup
from cases import REDUCTIONS, WORD, Case
from pattern import Words

Call = Callable[[], object]


class Backend(ABC):
    """Membership of one rank in one contender's group."""

    rank: int
    size: int
    version: str

    def allocate(self, words: int) -> Words:
        """Private memory, the same for all contenders unless the contender is about its memory."""
        return np.zeros(words, dtype=np.uint64)

    @abstractmethod
    def prepare(self, case: Case, send: Words, recv: Words) -> Call:
        """The call to be timed. Whatever a careful user makes once (counts, messages, plans) is made here."""

    def __enter__(self) -> Backend:
        return self

    def close(self) -> None:
        """Leaves the group in good order. MPI does so at the end of the process."""
        return

    def __exit__(self, kind: type[BaseException] | None, *unused: object) -> None:
        if kind is None:  # After an error the peers may never come to a collective close.
            self.close()


class Bare(Backend):
    """No library, but the least that an exchange between private arrays takes without the kernel's help."""

    version = "two copies through shared memory and a word between each two ranks"

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.size = int(os.environ["WORLD_SIZE"])
        self._group = BareGroup(self.rank, self.size)

    def prepare(self, case: Case, send: Words, recv: Words) -> Call:
        return self._group.prepare(case, send, recv)


class BareShared(Backend):
    """The same between tensors in shared memory."""

    version = "one copy into the receiver's tensor in shared memory and two words of each rank"

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.size = int(os.environ["WORLD_SIZE"])
        self._group = BareSharedGroup(self.rank, self.size)
        self._first = True

    def allocate(self, words: int) -> Words:
        """Called for the input and then for the output of each case."""
        tensor = self._group.allocate(words, first=self._first)
        self._first = not self._first
        return tensor

    def prepare(self, case: Case, send: Words, recv: Words) -> Call:
        return self._group.prepare(case, send)


class Mpi(Backend):
    """mpi4py's upper-case methods on bytes, with explicit counts and displacements where parts may differ."""

    def __init__(self) -> None:
        import mpi4py  # type: ignore[import-not-found, unused-ignore]
        from mpi4py import MPI  # type: ignore[import-not-found, unused-ignore]

        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        self.rank = self._world.Get_rank()
        self.size = self._world.Get_size()
        library = MPI.Get_library_version().splitlines()[0].split(",")[0].strip("\0 ")
        self.version = f"{' '.join(library.split())}, mpi4py {mpi4py.__version__}"

    def prepare(self, case: Case, send: Words, recv: Words) -> Call:
        if case.op == "alltoall":
            return partial(self._world.Alltoall, [send, self._mpi.BYTE], [recv, self._mpi.BYTE])
        if case.op == "allgather":
            return partial(self._world.Allgather, [send, self._mpi.BYTE], [recv, self._mpi.BYTE])
        if case.op in REDUCTIONS:
            call = self._world.Allreduce if case.op == "allreduce" else self._world.Reduce_scatter_block
            return partial(call, [send, self._mpi.INT64_T], [recv, self._mpi.INT64_T], self._mpi.SUM)
        send_message = self._message(send, case.matrix[self.rank])
        if not case.routed:
            return partial(self._world.Alltoallv, send_message, self._message(recv, case.matrix[:, self.rank]))
        arrived = np.ones_like(recv)
        order = case.expert_order(self.rank)
        exchange = partial(self._world.Alltoallv, send_message, self._message(arrived, case.matrix[:, self.rank]))
        row_words = case.row_bytes // WORD
        return partial(_exchange_and_sort, exchange, arrived.reshape(-1, row_words), order, recv.reshape(-1, row_words))

    def _message(self, buffer: Words, counts: Any) -> list[Any]:
        displs = np.cumsum(counts) - counts
        return [buffer, (counts.astype(np.int32), displs.astype(np.int32)), self._mpi.BYTE]


def _exchange_and_sort(exchange: Call, arrived: Words, order: Any, out: Words) -> None:
    """Bytes come by (source, expert); experts want them by (expert, source)."""
    exchange()
    np.take(arrived, order, axis=0, out=out, mode="clip")  # Any other mode would go through a temporary array.


class Gloo(Backend):
    """torch.distributed with the Gloo process group on tensors that share the NumPy arrays' memory."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self._torch = torch
        self._dist = dist
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.version = f"torch {torch.__version__}"

    def prepare(self, case: Case, send: Words, recv: Words) -> Call:
        source = self._bytes(send)
        target = self._bytes(recv)
        if case.op == "alltoall":
            return partial(self._dist.all_to_all_single, target, source)
        if case.op == "allgather":
            return partial(self._dist.all_gather_into_tensor, target, source)
        if case.op in REDUCTIONS:
            given, result = (self._torch.from_numpy(words.view(np.int64)) for words in (send, recv))
            if case.op == "reduce_scatter":
                return partial(self._dist.reduce_scatter_tensor, result, given)

            def allreduce() -> None:  # Torch has it in place only
                result.copy_(given)
                self._dist.all_reduce(result)

            return allreduce
        splits = case.matrix[:, self.rank].tolist(), case.matrix[self.rank].tolist()
        if not case.routed:
            return partial(self._dist.all_to_all_single, target, source, *splits)
        arrived = self._torch.ones_like(target)
        exchange = partial(self._dist.all_to_all_single, arrived, source, *splits)
        order = self._torch.from_numpy(case.expert_order(self.rank))
        rows = (arrived.view(-1, case.row_bytes), target.view(-1, case.row_bytes))

        def dispatch() -> None:
            exchange()
            self._torch.index_select(rows[0], 0, order, out=rows[1])

        return dispatch

    def _bytes(self, words: Words) -> Any:
        return self._torch.from_numpy(words.view(np.uint8))

    def close(self) -> None:
        self._dist.destroy_process_group()


class A2a(Backend):
    """a2a on private arrays with explicit counts."""

    def __init__(self) -> None:
        import a2a  # type: ignore[import-not-found, unused-ignore]

        self._comm = a2a.init()
        self.rank = self._comm.rank
        self.size = self._comm.size
        self.version = f"a2a {a2a.__version__}"

    def prepare(self, case: Case, send: Words, recv: Words) -> Call:
        comm = self._comm
        if case.op == "alltoall":
            return partial(comm.alltoall, send, recv)
        if case.op == "allgather":
            return partial(comm.allgather, send, recv)
        if case.op in REDUCTIONS:
            call = comm.allreduce if case.op == "allreduce" else comm.reduce_scatter
            return partial(call, send.view(np.int64), recv.view(np.int64))
        if case.routed:
            rows, out = _rows(case, send), _rows(case, recv)
            local, from_all = case.local_rows(self.rank), case.global_rows(self.rank)
            return partial(comm.global_scatter, rows, local, from_all, out=out)
        send_counts, recv_counts = self._counts(case)
        return partial(comm.alltoallv, send, send_counts, recv, recv_counts)

    def _counts(self, case: Case) -> tuple[list[int], list[int]]:
        return (case.matrix[self.rank] // WORD).tolist(), (case.matrix[:, self.rank] // WORD).tolist()

    def close(self) -> None:
        self._comm.close()


class PlannedA2a(A2a):
    """a2a with a plan made once."""

    def prepare(self, case: Case, send: Words, recv: Words) -> Call:
        comm = self._comm
        if case.op == "alltoall":
            plan = comm.plan_alltoall(send, recv)
        elif case.op == "allgather":
            plan = comm.plan_allgather(send, recv)
        elif case.op in REDUCTIONS:
            send, recv = send.view(np.int64), recv.view(np.int64)
            plan = (comm.plan_allreduce if case.op == "allreduce" else comm.plan_reduce_scatter)(send, recv)
        elif case.routed:
            send, recv = _rows(case, send), _rows(case, recv)
            plan = comm.plan_global_scatter(send, case.local_rows(self.rank), case.global_rows(self.rank))
        else:
            send_counts, recv_counts = self._counts(case)
            plan = comm.plan_alltoallv(send, send_counts, recv, recv_counts)
        return partial(plan.run, send, recv)


class SharedA2a(A2a):
    """a2a on tensors that live in shared memory."""

    def allocate(self, words: int) -> Words:
        words_in_shared_memory: Words = self._comm.empty(words, "uint64")
        return words_in_shared_memory


def _rows(case: Case, words: Words) -> Words:
    return words.reshape(-1, case.row_bytes // WORD)


def make_backend(name: str) -> Backend:
    """Joins the group that the environment describes."""
    kinds: dict[str, type[Backend]] = {
        "mpi": Mpi,
        "gloo": Gloo,
        "a2a": A2a,
        "a2a-plan": PlannedA2a,
        "a2a-shared": SharedA2a,
        "bare": Bare,
        "bare-shared": BareShared,
    }
    return kinds[name]()
