"""Assertions about what ranks have, bit for bit."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .._core import Communicator, InvalidArgumentError, describe_tensor
from .oracle import as_bytes, first_difference
from .ranks.verdict import in_words

__all__ = ["assert_bitwise", "assert_same_on_all", "process_group", "run_both"]

T = TypeVar("T")
_MOST_SHOWN = 1 << 20
"""How many bytes of a tensor are sent to find the first that differs."""


def assert_bitwise(actual: Any, expected: Any) -> None:
    """Two tensors of any framework, or lists, tuples and mappings of them, have the same dtype, shape and bits. Raises
    AssertionError with the first difference."""
    __tracebackhide__ = True
    for name, left, right in _pairs("", actual, expected):
        difference = _kind_differs(left, right) or first_difference(left, right)
        if difference:
            raise AssertionError(f"{name}{': ' if name else ''}{difference}")


def assert_same_on_all(comm: Communicator, x: Any) -> None:
    """Collective: ``x`` is the same on all ranks, bit for bit. It is a tensor of any framework on the host, a number, a
    text, or a list, tuple or mapping of these, such as ``model.state_dict()``. Raises AssertionError on every rank,
    with the ranks that differ from the most and the first byte in which they do."""
    __tracebackhide__ = True
    leaves = [(name, *_content(leaf)) for name, leaf in _leaves("", x)]
    digest = hashlib.sha256(repr([leaf[:2] for leaf in leaves]).encode())
    for leaf in leaves:
        digest.update(leaf[2].tobytes())
    digests = comm.allgather_bytes(digest.digest())
    if len(set(digests)) > 1:
        raise AssertionError(f"not the same on all ranks: {_difference(comm, digests, leaves)}")


def _difference(comm: Communicator, digests: list[bytes], leaves: list[tuple[str, str, npt.NDArray[np.uint8]]]) -> str:
    """Collective. Return in words who differs from whom, and where."""
    usual = Counter(digests).most_common(1)[0][0]
    most = [rank for rank, digest in enumerate(digests) if digest == usual]
    others = [rank for rank, digest in enumerate(digests) if digest != usual]
    who = f"{in_words(others)} from {in_words(most)}"
    kinds = comm.allgather_bytes("; ".join(f"{name} {kind}".strip() for name, kind, _ in leaves).encode())
    if kinds[others[0]] != kinds[most[0]]:
        return f"{who}: rank {others[0]} has {kinds[others[0]].decode()}, rank {most[0]} {kinds[most[0]].decode()}"
    for name, _, content in leaves:
        parts = comm.allgather_bytes(hashlib.sha256(content.tobytes()).digest())
        if parts[others[0]] == parts[most[0]]:
            continue
        shown = comm.allgather_bytes(content[:_MOST_SHOWN].tobytes())
        theirs, usually = (np.frombuffer(shown[rank], np.uint8) for rank in (others[0], most[0]))
        difference = first_difference(theirs, usually) or f"after the first {_MOST_SHOWN} bytes"
        return f"{who}: {name}{': ' if name else ''}rank {others[0]}: {difference}"
    return who


@contextlib.contextmanager
def process_group(comm: Communicator, backend: str) -> Iterator[None]:
    """Torch's default process group of these ranks, which are on one host, during a ``with`` statement. Collective."""
    import torch.distributed as dist

    if dist.is_initialized():
        raise InvalidArgumentError("process_group: torch has a default process group already")
    mine = tempfile.mkdtemp(prefix="a2a-") if comm.rank == 0 else ""
    try:
        folder = comm.allgather_bytes(mine.encode())[0].decode()
        store = dist.FileStore(f"{folder}/store", comm.size)
        dist.init_process_group(backend, store=store, rank=comm.rank, world_size=comm.size)
        try:
            yield
            comm.barrier()  # a rank that leaves ends the connections of one that still makes them
        finally:
            dist.destroy_process_group()
    finally:
        if mine:
            shutil.rmtree(mine, ignore_errors=True)


def run_both(
    fn: Callable[[], T],
    first: str = "a2a",
    second: str = "gloo",
    *,
    comm: Communicator,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> tuple[T, T]:
    """Collective: call ``fn()`` with torch's default process group on the backend ``first``, then on ``second``, and
    compare the results on each rank, bit for bit or within the tolerances. They are tensors, numbers, or lists, tuples
    and mappings of them. Returns both. Raises AssertionError with the backends, the rank and the first difference."""
    __tracebackhide__ = True
    results = []
    for backend in (first, second):
        with process_group(comm, backend):
            results.append(fn())
    for name, left, right in _pairs("result", *results):
        difference = _kind_differs(left, right) or _far(left, right, rtol, atol)
        if difference:
            raise AssertionError(f'rank {comm.rank}: {name} of "{first}" is not that of "{second}": {difference}')
    return results[0], results[1]


def _far(left: Any, right: Any, rtol: float, atol: float) -> str | None:
    if rtol == atol == 0:
        return first_difference(left, right)
    one, other = (np.asarray(_as_array(each), dtype=np.float64) for each in (left, right))
    wrong = ~np.isclose(one, other, rtol=rtol, atol=atol, equal_nan=True)
    if not wrong.any():
        return None
    at = tuple(int(index[0]) for index in np.nonzero(wrong))
    return f"element {list(at)} is {one[at]} instead of {other[at]}; {int(wrong.sum())} of {wrong.size} elements differ"


# ---- parts of a value ------------------------------------------------------------------------------------------------


def _as_array(x: Any) -> npt.NDArray[Any]:
    """Return a host tensor, or a number, as an array with its dtype, which may be one of ml_dtypes."""
    from .. import frameworks

    if isinstance(x, (bool, int, float, complex, np.generic)):
        return np.asarray(x)
    facts = describe_tensor(x)
    array: npt.NDArray[Any] = frameworks.load("numpy").tensor(as_bytes(x), 0, facts["dtype"], facts["shape"])
    return array


def _leaves(name: str, x: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(x, Mapping):
        for key in x:
            yield from _leaves(f"{name}[{key!r}]", x[key])
    elif isinstance(x, (list, tuple)):
        for at, entry in enumerate(x):
            yield from _leaves(f"{name}[{at}]", entry)
    else:
        yield name, x


def _pairs(name: str, left: Any, right: Any) -> Iterator[tuple[str, Any, Any]]:
    ours, theirs = list(_leaves(name, left)), list(_leaves(name, right))
    names = [key for key, _ in ours], [key for key, _ in theirs]
    if names[0] != names[1]:
        raise AssertionError(f"the parts {names[0]} are not {names[1]}")
    for (key, one), (_, other) in zip(ours, theirs, strict=True):
        yield key, _comparable(one), _comparable(other)


def _comparable(x: Any) -> Any:
    return np.frombuffer(repr(x).encode(), np.uint8) if x is None or isinstance(x, (str, bytes)) else _tensor(x)


def _tensor(x: Any) -> Any:
    return np.asarray(x) if isinstance(x, (bool, int, float, complex, np.generic)) else x


def _content(x: Any) -> tuple[str, npt.NDArray[np.uint8]]:
    """Return what a value is, in words, and its bytes."""
    if x is None or isinstance(x, (str, bytes)):
        return type(x).__name__, np.frombuffer(repr(x).encode(), np.uint8)
    tensor = _tensor(x)
    facts = describe_tensor(tensor)
    return f"{facts['dtype']} {list(facts['shape'])}", as_bytes(tensor)


def _kind_differs(left: Any, right: Any) -> str:
    one, other = (f"{facts['dtype']} {list(facts['shape'])}" for facts in map(describe_tensor, (left, right)))
    return "" if one == other else f"{one} instead of {other}"
