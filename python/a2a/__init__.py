"""All-to-all communication between ranks on one host, for any DLPack tensor.

    comm = a2a.init()                                      # rank and size from a2a run, torchrun, mpiexec, ...
    recv, recv_counts = comm.exchange(send, send_counts)   # NumPy, Torch, Paddle or JAX

``a2a.Communicator`` has the operations, ``a2a.spawn`` starts ranks from a program, ``a2a.testing`` is the oracle for
tests. Importing this package imports no framework but NumPy.
"""

from ._core import (
    AbortedError,
    BackendError,
    Communicator,
    Error,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
    Plan,
    SharedArray,
    TcpBootstrap,
    TimeoutError,
    UnsupportedError,
    Views,
    Work,
    from_pointer,
)
from ._core import __file__ as _core_file
from ._core import core_version as __version__
from ._neighbour import warn_of_sdk as _warn_of_sdk
from ._paths import get_cmake_dir, get_include, get_library_dir
from ._spawn import spawn
from .launch import init
from .quantized import block_quantized_all_reduce, quantized_all_reduce

__all__ = [
    "AbortedError",
    "BackendError",
    "Communicator",
    "Error",
    "InvalidArgumentError",
    "MismatchError",
    "PeerLostError",
    "Plan",
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
]

# An editable install keeps the compiled core and the Python files in different folders.
_warn_of_sdk(__path__[0], _core_file.rpartition("/")[0])
