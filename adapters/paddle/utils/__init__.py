"""``paddle.distributed.utils``, with ``global_scatter`` and ``global_gather`` where Paddle's documentation has them.
Names that are not here are Paddle's."""

from __future__ import annotations

from typing import Any

from paddle.distributed import utils as _paddle

from . import moe_utils
from .moe_utils import global_gather, global_scatter

__all__ = ["global_gather", "global_scatter", "moe_utils"]


def __getattr__(name: str) -> Any:
    return getattr(_paddle, name)
