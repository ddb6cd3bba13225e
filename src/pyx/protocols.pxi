# The protocols for annotations, which _core.pyi spells out.
from typing import Any, Protocol, Sequence, Union


class SupportsDLPack(Protocol):
    """Anything with ``__dlpack__`` and ``__dlpack_device__``: NumPy, Torch, Paddle, JAX, CuPy, ... arrays."""

    def __dlpack__(self, *args, **kwargs): ...

    def __dlpack_device__(self): ...


class SupportsAllgather(Protocol):
    """A way for ranks to meet: every rank calls it equally often and gets all ranks' bytes in rank order."""

    def allgather(self, mine, /): ...


Tensor = Union[SupportsDLPack, np.ndarray, bytes, bytearray, memoryview, Any]
Counts = Union[Sequence[int], np.ndarray, SupportsDLPack, Any]
StreamLike = Union[int, Any, None]
