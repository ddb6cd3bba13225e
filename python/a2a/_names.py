"""The names of ``import a2a``. They are not in ``__init__.py``, because a2a-sdk replaces that file; then ``a2a_comm``
finds them here."""

from ._core import (
    AbortedError,
    BackendError,
    Communicator,
    Error,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
    Plan,
    ReshardPlan,
    SharedArray,
    TcpBootstrap,
    TimeoutError,
    UnsupportedError,
    Views,
    Work,
    from_pointer,
)
from ._core import core_version as __version__
from ._paths import get_cmake_dir, get_include, get_library_dir
from ._spawn import spawn
from ._status import status
from .endpoint import Endpoint
from .launch import init
from .quantized import block_quantized_all_reduce, quantized_all_reduce

__all__ = [
    "AbortedError",
    "BackendError",
    "Communicator",
    "Endpoint",
    "Error",
    "InvalidArgumentError",
    "MismatchError",
    "PeerLostError",
    "Plan",
    "ReshardPlan",
    "SharedArray",
    "TcpBootstrap",
    "TimeoutError",
    "UnsupportedError",
    "Views",
    "Work",
    "__version__",
    "block_quantized_all_reduce",
    "from_pointer",
    "get_cmake_dir",
    "get_include",
    "get_library_dir",
    "init",
    "quantized_all_reduce",
    "spawn",
    "status",
]
