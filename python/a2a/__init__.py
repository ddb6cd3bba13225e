"""All-to-all communication between ranks, for any DLPack tensor.

    comm = a2a.init()                                      # rank and size from a2a run, torchrun, mpiexec, ...
    recv, recv_counts = comm.exchange(send, send_counts)   # NumPy, Torch, Paddle or JAX

``a2a.Communicator`` has the operations, ``a2a.spawn`` starts ranks from a program, ``a2a.testing`` is the oracle for
tests. Importing this package imports no framework but NumPy.
"""

from ._core import __file__ as _core_file
from ._names import *  # noqa: F403
from ._names import __all__ as __all__
from ._names import __version__ as __version__
from ._neighbour import warn_of_sdk as _warn_of_sdk


def __dir__() -> list[str]:
    """Return the public names, which tools list and complete."""
    return sorted(name for name in globals() if not name.startswith("_") or name in __all__)


# An editable install keeps the compiled core and the Python files in different folders.
_warn_of_sdk(__path__[0], _core_file.rpartition("/")[0])  # noqa: F405
