"""Memory on the host, which every framework there reads and writes in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import testing

MEMORY = "host"


def make(content: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    room = np.empty(content.size + 64, np.uint8)
    start = -room.ctypes.data % 64
    memory = room[start : start + content.size]
    memory[...] = content
    return memory


def read(thing: Any) -> npt.NDArray[np.uint8]:
    return testing.as_bytes(thing)
