"""Has torch's dispatcher see the operations of a process group while a mode looks at it: CommDebugMode counts them,
FakeTensorMode runs none, and a mode of a program may do anything else.

A call then takes torch's own way, through an operator of ``torch.ops.c10d``. The operator's kernel would look for a
backend in C++, so another kernel replaces it while the call lasts. No longer: a call of Gloo that comes through Python
holds the interpreter's lock, which Gloo's own threads want."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed import ProcessGroup

from .._operations.work import FinishedWork

__all__ = ["through_dispatcher", "watched"]

watched: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""Return the number of modes of this thread that see torch's operators."""

# Method -> its operator, and the number of its first arguments that hold tensors.
_OPERATORS = {
    "all_to_all_single": ("alltoall_base_", 2),
    "alltoall": ("alltoall_", 2),
    "all_gather_single": ("_allgather_base_", 2),
    "allgather": ("allgather_", 2),
    "barrier": ("barrier", 0),
    "allreduce": ("allreduce_", 1),
    "reduce": ("reduce_", 1),
    "reduce_scatter": ("reduce_scatter_", 2),
    "reduce_scatter_single": ("_reduce_scatter_base_", 2),
    "broadcast": ("broadcast_", 1),
    "gather": ("gather_", 2),
    "gather_single": ("gather_into_tensor_", 2),
    "scatter": ("scatter_", 2),
    "send": ("send", 1),
    "recv": ("recv_", 1),
    "recv_anysource": ("recv_any_source_", 1),
}
_here = threading.local()  # .run: what the kernel runs in this thread, with the tensors that it gets


def through_dispatcher(stand_in: ProcessGroup, name: str, run: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    """Call the method of this name through its operator, whose kernel calls ``run`` with the tensors that it gets and
    the other arguments as they are. ``stand_in`` is a group without a backend that operators see as theirs."""
    operator, tensors = _OPERATORS[name]
    works = []

    def run_here(arrived: tuple[Any, ...]) -> Any:
        works.append(run(*arrived[:tensors], *given[tensors:]) or FinishedWork([]))  # keeps the work alive
        outputs = arrived[: len(_results_of(operator)) - 1]
        boxed = works[0].boxed()
        return (*outputs, boxed) if outputs else boxed

    outer = getattr(_here, "run", None)
    _here.run = run_here
    try:
        with _replaced(operator):
            work = getattr(ProcessGroup, name)(stand_in, *given)
    finally:
        _here.run = outer
    return works[0] if works else work


def _results_of(operator: str) -> list[Any]:
    found: list[Any] = getattr(torch.ops.c10d, operator).default._schema.returns
    return found


@contextlib.contextmanager
def _replaced(operator: str) -> Iterator[None]:
    """Other threads may call the operator meanwhile; they get its own kernel from this one."""
    library = torch.library.Library("c10d", "IMPL")
    try:
        for key in ("CPU", "CUDA", "SparseCPU") if operator == "allreduce_" else ("CPU", "CUDA"):
            kernel = _kernel(torch.library.get_kernel(f"c10d::{operator}", key))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the replacement
                library.impl(operator, kernel, key, with_keyset=True)
        yield
    finally:
        library._destroy()


def _kernel(theirs: Any) -> Callable[..., Any]:
    def kernel(keys: Any, *arguments: Any) -> Any:
        run, _here.run = getattr(_here, "run", None), None  # what it calls is none of ours
        return theirs.call_boxed(keys, *arguments) if run is None else run(arguments)

    return kernel
