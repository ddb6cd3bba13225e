"""What ranks run after paddle.enable(), which they take back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import a2a.paddle as dist

import a2a


def enabled(comm: a2a.Communicator, fn: Callable[..., Any], *args: Any) -> Any:
    dist.init_parallel_env()
    dist.enable()
    try:
        return fn(comm, *args)
    finally:
        dist.disable()
