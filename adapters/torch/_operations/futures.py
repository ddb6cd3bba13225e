"""Futures of works, whose value is the list of output tensors, for Python and for C++ code.

To C++ code, such as DDP's own communication hooks, the value that Python gives a future is a Python object, and an
exception that Python gives it is a value, too. A future of TorchScript has a type, and one of a callback has its error.
But TorchScript goes on in a thread of torch's pool, whose threads are as few as ``torch.get_num_interop_threads()``:
were a callback of Python's run there, it could wait for a future that needs the same thread. So Python code gets a
future that needs no pool."""

from __future__ import annotations

import opcode
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import Work as TorchWork

from .._untraced import untraced

__all__ = ["ForBoth", "found_work", "future_of"]

_script: Any = torch.jit.CompilationUnit(
    """
def after(ended: Future[Tensor], outputs: List[Tensor]) -> List[Tensor]:
    torch.jit.wait(ended)
    return outputs

def future(ended: Future[Tensor], outputs: List[Tensor]) -> Future[List[Tensor]]:
    return torch.jit.fork(after, ended, outputs)
"""
)
_LOADS = {opcode.opmap[name] for name in ("LOAD_ATTR", "LOAD_METHOD") if name in opcode.opmap}


def future_of(outputs: list[Any], check: Callable[[], object]) -> tuple[Any, Callable[[], None]]:
    """Return a future of the tensors for Python code, and the function that completes it, with the error that ``check``
    raises then."""
    ended: Any = torch.futures.Future()

    def checked(_: Any) -> list[Any]:
        check()
        return outputs

    return ended.then(checked), lambda: ended.set_result(None)


@untraced
class ForBoth:
    """The method get_future() of a class that makes futures for Python code, with ``make(work)``. C++ code, which looks
    the method up by its name, gets one that C++ code can read."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make, self.__doc__ = untraced(make), make.__doc__

    def __get__(self, work: Any, owner: Any = None) -> Any:
        if work is None:
            return self
        if getattr(_asked, "by", None) is not None:
            _asked.work = work
            return _found
        return (lambda: self._make(work)) if _is_read_by_python() else (lambda: self._for_cpp(work))

    def _for_cpp(self, work: Any) -> Any:
        return _script.future(self._make(work), work._outputs)


class _Found(Exception):
    pass


_get_future: Any = TorchWork.get_future
_asked = threading.local()  # .by: the work of torch's that found_work() looks into; .work: what it has found


def _found() -> Any:
    raise _Found


@untraced
def found_work(theirs: Any) -> Any:
    """Return the work of Python to which one of torch's own class passes on get_future(); None if there is none."""
    _asked.by, _asked.work = theirs, None
    try:
        _get_future(theirs)
    except (_Found, RuntimeError):
        pass
    finally:
        _asked.by = None
    work, _asked.work = _asked.work, None
    return work


@untraced
def _is_read_by_python() -> bool:
    """Whether the code that reads the attribute is Python: its frame is then at an instruction that reads one. A frame
    that has called C++ code is at a call."""
    try:
        frame = sys._getframe(2)
    except ValueError:  # a thread of C++ code
        return False
    return frame.f_code.co_code[frame.f_lasti] in _LOADS
