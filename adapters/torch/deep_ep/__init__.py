"""DeepEP's calls, for programs that were written for it, and for their tests where no GPU is::

    a2a.torch.deep_ep.install()  # where DeepEP itself is absent, ``import deep_ep`` then finds this package
    from deep_ep import Buffer

Names, arguments and results are those of DeepEP 2.1. Ranks are those of a torch process group of any backend, or of an
a2a communicator. What arrives is in one order, by source rank and then by token, and sums are taken in one order, so
that results have the same bits in every run. What tunes kernels (SMs, QPs, buffer sizes, Config) is taken and has no
effect; sizes that are asked for are 0. Nothing here is differentiable, as there: see ``a2a.torch.moe``.

Tensors on a device are permuted by torch on the current stream and exchanged over NCCL or HCCL; the host gets a copy of
``topk_idx``, which waits for it. All tensors of a call are on one device, and results are there. ``async_finish`` and
hooks then have nothing to wait for: the stream has the order.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import torch

from . import utils
from ._buffer import Buffer, Config
from ._elastic import ElasticBuffer, EPHandle
from .utils import EventHandle, EventOverlap

__all__ = [
    "Buffer",
    "Config",
    "EPHandle",
    "ElasticBuffer",
    "EventHandle",
    "EventOverlap",
    "install",
    "topk_idx_t",
    "utils",
]

topk_idx_t = torch.int64


def install() -> ModuleType:
    """Make ``import deep_ep`` and ``import deep_ep.utils`` find this package, unless DeepEP is installed or imported.
    Returns what ``deep_ep`` now is; of an installed DeepEP that is not imported yet, this package, which is then left
    out of it. Call it before the program's own imports."""
    if "deep_ep" not in sys.modules:
        here = sys.modules[__name__]
        if importlib.util.find_spec("deep_ep") is not None:
            return here
        sys.modules["deep_ep"] = here
        sys.modules["deep_ep.utils"] = utils
    return sys.modules["deep_ep"]
