"""Keeps torch.compile out of functions that it cannot trace: those that torch's C++ code calls while a compiled program
runs, and those that call the core. A graph ends before such a function, as before one of a C++ backend."""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any, TypeVar

import torch

__all__ = ["untraced"]

_T = TypeVar("_T")

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
