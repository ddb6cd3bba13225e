"""Keeps torch.compile out of functions that it cannot trace: those that torch's C++ code calls while a compiled program
runs, and those that call the core. A graph ends before such a function, as before one of a C++ backend."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar

import torch

__all__ = ["as_it_is", "untraced"]

_T = TypeVar("_T")
_Call = TypeVar("_Call", bound=Callable[..., Any])

# What torch.compiler.disable() does, without the import of torch._dynamo, which takes seconds, and without a further
# call each time: its frames, and those that they call, are run as they are.
_frames: Any = torch._C._dynamo.eval_frame
_AS_IT_IS = _frames._FrameExecStrategy(_frames._FrameAction.SKIP, _frames._FrameAction.SKIP)


def untraced(given: _T) -> _T:
    """Decorate a function, or a class for all its functions."""
    members = vars(given).values() if isinstance(given, type) else (given,)
    for member in members:
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType):
            code: CodeType = function.__code__
            _frames.set_code_exec_strategy(code, _AS_IT_IS)
            function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return given


def as_it_is(call: _Call) -> _Call:
    """Left alone by torch.compile, with a break before and after: torch.compiler.disable(), but for the second that it
    takes to import where nothing is compiled."""
    disabled: list[Any] = []

    @functools.wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return call(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(call))
        return disabled[0](*args, **kwargs)

    run._torchdynamo_disable = True  # type: ignore[attr-defined]
    return run  # type: ignore[return-value]
