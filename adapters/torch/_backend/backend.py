"""The backend on an a2a communicator. It runs every operation of host tensors itself; those of other devices go to the
other backends of its group."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

from torch._C import _distributed_c10d as _c10d
from torch.distributed import PrefixStore

import a2a

from .._errors import SplitError
from .._process_group.communicators import drop
from .._process_group.operations import GroupOperations
from .._process_group.store_bootstrap import meet
from .._untraced import untraced
from .._windows.window import Window
from .hooks import AbortHooks, CompletionHook, handed

__all__ = ["BackendA2A", "Outsider"]


@untraced
class BackendA2A(GroupOperations, _c10d.Backend):  # type: ignore[misc, unused-ignore]
    """A backend on an a2a communicator, ``comm``. Torch's C++ code calls these methods by their names; a group hands
    them each of its operations of host tensors."""

    supports_coalescing = supports_time_estimate = supports_reconfigure = False
    supports_splitting = supports_shrinking = supports_window = True

    def __init__(self, comm: a2a.Communicator, store: Any, name: str) -> None:
        super().__init__(comm.rank, comm.size)
        self._begin(comm, store, comm.rank, comm.size)
        self._name = name
        self._abort_hooks = AbortHooks(self)
        self._completion: CompletionHook | None = None
        self._left_behind = False  # whether shrink() has left ranks behind, which close nothing with the others

    @classmethod
    def met(cls, store: Any, rank: int, size: int, name: str, timeout: timedelta) -> BackendA2A:
        """Return the backend of the ranks that meet in this store. Collective over them."""
        return cls(meet(store, name, rank, size, timeout.total_seconds()), store, name)

    start_coalescing, end_coalescing = GroupOperations._start_coalescing, GroupOperations._end_coalescing

    def new_window(self, tensor: Any = None) -> Window:
        """Return a new window, with this tensor unless it is None. Collective."""
        window = Window(self.comm)
        if tensor is not None:
            window.tensor_register(tensor)
        return window

    # ---- other backends made of this one

    def split(self, store: Any, ranks: list[int], opts: Any) -> BackendA2A | Outsider:
        """Return the backend of these ranks, in their order, and an Outsider where this one is not among them.
        Collective over them."""
        if not 0 < len(ranks) == len(set(ranks)) or not all(0 <= rank < self.size() for rank in ranks):
            raise SplitError(f"ranks {ranks}: pass different ranks of this group of {self.size()}, at least one")
        if self.rank() not in ranks:
            return Outsider()
        name = opts.group_name or f"{self._name}:split:{ranks}"
        return self.met(store, ranks.index(self.rank()), len(ranks), name, opts._timeout)

    def merge(self, store: Any, opts: Any, rank: int, size: int) -> BackendA2A:
        """Return the backend of the ranks that call this with the store. Collective over them."""
        return self.met(store, rank, size, opts.group_name or f"{self._name}:merge", opts._timeout)

    def shrink(self, ranks_to_exclude: list[int], shrink_flags: int = 0, opts_override: Any = None) -> BackendA2A:
        """Return the backend of the other ranks, in the same order. Collective over them. With SHRINK_ABORT operations
        of this one that are in flight end with AbortedError."""
        left = [rank for rank in range(self.size()) if rank not in set(ranks_to_exclude)]
        if self.rank() not in left:
            raise a2a.InvalidArgumentError(f"shrink: rank {self.rank()} is one of those to exclude, {ranks_to_exclude}")
        timeout = self.options._timeout if opts_override is None else opts_override._timeout
        if shrink_flags & _SHRINK_ABORT:
            self.abort()
        self._left_behind = True
        name = f"{self._name}:shrink:{left}"
        store = PrefixStore(f"{name}/", self._store)
        return self.met(store, left.index(self.rank()), len(left), name, timeout)

    # ---- how it fares, and its end

    def abort(self) -> None:
        """Make every rank that is in an operation of the backend, or comes to one, raise a2a.AbortedError, and close
        the communicator here. Not collective; another thread may be in an operation, which it ends."""
        self._abort_hooks.fire()
        self.comm.abort(f"process group {self._name!r} was aborted")
        drop(self.comm)

    def shutdown(self) -> None:
        """Close the communicator, collectively. torch.distributed.destroy_process_group() calls this."""
        self._wait_for_pending_works()
        if self._left_behind and not self.comm.closed:
            self.comm.abort(f"process group {self._name!r} was shrunk")
        drop(self.comm)
        if self.rank() == 0:
            with contextlib.suppress(RuntimeError):  # the store may be gone
                self._monitored.close()

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """torch.distributed.monitored_barrier. A group hands on its options in place of the timeout."""
        limit = getattr(timeout, "timeout", timeout)
        super().monitored_barrier(None if isinstance(limit, timedelta) and limit.days < 0 else limit, wait_all_ranks)

    # ---- hooks

    def register_abort_hook(self, hook_id: int, hook: Any) -> None:
        """Have ``hook()`` run before the backend aborts, and when an operation has failed for good."""
        self._abort_hooks.add(hook_id, hook)

    def unregister_abort_hook(self, hook_id: int) -> None:
        """Take the hook of this number back."""
        self._abort_hooks.remove(hook_id)

    registerAbortHook, unregisterAbortHook = register_abort_hook, unregister_abort_hook  # their names in C++

    def _register_on_completion_hook(self, hook: Any) -> None:
        """Have ``hook(info)`` run at the end of each operation from now on, with the attributes of torch's WorkInfo.
        There is one such hook."""
        if self._completion is not None:
            raise RuntimeError("the backend has a hook already")
        self._completion = CompletionHook(handed(hook))
        self._let_see(self._completion.see)

    def _wait_for_pending_works(self) -> None:
        """Return when the hook has seen the end of all operations."""
        if self._completion is not None:
            self._completion.wait()

    def _enable_collectives_timing(self) -> None:
        """Times are taken anyway."""


class Outsider(_c10d.Backend):  # type: ignore[misc, unused-ignore]
    """What split() gives a rank that has no part in the new backend: torch 2.14 ends the process for None."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def getBackendName(self) -> str:
        return "a2a"


_SHRINK_ABORT = 1
