"""Futures whose value is a list of tensors also for C++ code, such as DDP's own communication hooks.

To C++ code the value that Python gives a future is a Python object, and an exception that Python gives it is a value,
too. A future of TorchScript has a type, and one of a callback has its error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["future_of"]

_script: Any = torch.jit.CompilationUnit(
    """
def after(ended: Future[Tensor], outputs: List[Tensor]) -> List[Tensor]:
    torch.jit.wait(ended)
    return outputs

def future(ended: Future[Tensor], outputs: List[Tensor]) -> Future[List[Tensor]]:
    return torch.jit.fork(after, ended, outputs)
"""
)


def future_of(outputs: list[Any], check: Callable[[], object]) -> tuple[Any, Callable[[], None]]:
    """Return a future of the tensors, and the function that completes it, with the error that ``check`` raises then."""
    ended: Any = torch.futures.Future()

    def checked(_: Any) -> None:
        check()

    return _script.future(ended.then(checked), outputs), lambda: ended.set_result(None)
