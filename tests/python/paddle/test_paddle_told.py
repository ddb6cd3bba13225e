"""Whatever one rank's call of a2a.paddle raises before its operation has a number, the peers raise MismatchError at
once, and the next call works on all."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from rank_pool import Pool

paddle = pytest.importorskip("paddle")
import a2a.paddle as dist
from paddle_ranks import part

import a2a

pytestmark = pytest.mark.timeout(110)

SIZE = 2
SOON = 8  # seconds; the deadline is later
PLACES = [(paddle.Tensor, "detach"), (paddle, "empty"), (paddle, "empty_like"), (paddle, "concat")]


class Struck(Exception):
    """What a signal handler raises."""


class Unpicklable:
    def __reduce__(self) -> Any:
        raise MemoryError("none left for this test")


def no_memory(*_: Any, **__: Any) -> Any:
    raise MemoryError("none left for this test")


def struck_by_signal(*_: Any, **__: Any) -> Any:
    def handler(*_: Any) -> None:
        raise Struck("a signal handler of this test")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def failing(place: tuple[Any, str] | None, raises: Callable[..., Any]) -> Iterator[None]:
    if place is None:
        yield
        return
    kept = getattr(*place)
    setattr(*place, raises)
    try:
        yield
    finally:
        setattr(*place, kept)


def x(*shape: int, gradient: bool = False) -> Any:
    made = paddle.ones(list(shape or (4,)))
    made.stop_gradient = not gradient
    return made


def calls(comm: a2a.Communicator) -> dict[str, Callable[[], Any]]:
    """Name -> the call. What it needs beforehand is made here."""
    root, counts = comm.rank == 0, [1, 1, 1, 1]
    tensors = {name: [x(2), x(2)] for name in "abcdefgh"}
    wholes = {name: x() for name in "abcdefghijklmn"}

    def backward(call: Callable[[Any], Any]) -> Callable[[], Any]:
        out = call(x(4, 1, gradient=True) * 2)
        return lambda: out.sum().backward()

    def single(given: Any) -> Any:
        out = paddle.zeros([4, 1])
        dist.alltoall_single(out, given, group=comm)
        return out

    ep = dist.moe.ExpertParallel(comm, 4)
    routed = ep.dispatch(x(4, 1), paddle.to_tensor([[0], [1], [2], [3]]))
    sums = x(4, 1)
    made: dict[str, Callable[[], Any]] = {
        "alltoall_single": lambda: dist.alltoall_single(wholes["a"], wholes["b"], group=comm),
        "alltoall": lambda: dist.alltoall([], tensors["a"], group=comm),
        "alltoall_axis": lambda: dist.alltoall_axis(sums, 0, 1, comm),
        "all_gather": lambda: dist.all_gather([], wholes["c"], group=comm),
        "all_reduce": lambda: dist.all_reduce(wholes["d"], group=comm),
        "reduce": lambda: dist.reduce(wholes["e"], 0, group=comm),
        "reduce_scatter": lambda: dist.reduce_scatter(tensors["b"][0], tensors["c"], group=comm),
        "broadcast": lambda: dist.broadcast(wholes["f"], 0, group=comm),
        "scatter": lambda: dist.scatter(tensors["d"][0], tensors["e"] if root else None, 0, group=comm),
        "gather": lambda: dist.gather(tensors["f"][0], [] if root else None, 0, group=comm),
        "global_scatter": lambda: dist.utils.global_scatter(sums, counts, counts, group=comm),
        "global_gather": lambda: dist.utils.global_gather(sums, counts, counts, group=comm),
        "combine": lambda: ep.combine(sums, routed),
        "all_gather_object": lambda: dist.all_gather_object([], Unpicklable() if root else 1, comm),
        "send": lambda: dist.send(wholes["g"], 1, comm) if root else dist.recv(wholes["h"], 0, comm),
    }
    made["backward of alltoall_single"] = backward(single)
    made["backward of alltoall_axis"] = backward(lambda given: dist.alltoall_axis(given, 0, 1, comm))
    made["backward of global_scatter"] = backward(
        lambda given: dist.utils.global_scatter(given, counts, counts, group=comm)
    )
    return made


def outcome(call: Callable[[], object]) -> str:
    began = time.monotonic()
    try:
        call()
        said = "returned"
    except OSError as error:  # Paddle's, of a backward pass, with the text of the other one
        said = next(kind for kind in ("MismatchError", "MemoryError", "Struck") if kind in str(error))
    except BaseException as error:
        said = type(error).__name__
    return said if time.monotonic() - began < SOON else f"{said} late"


def strike(world: a2a.Communicator, signalled: bool) -> list[str]:
    """What each call came to on this rank, for each place where rank 0 is struck."""
    comm = part(world, SIZE)
    said: list[str] = []
    if comm is None:
        return said
    raises = struck_by_signal if signalled else no_memory
    for place in PLACES:
        for name, call in calls(comm).items():
            with failing(place if comm.rank == 0 else None, raises):
                result = outcome(call)
            told = np.full(SIZE, float(comm.rank))
            comm.allreduce(told)
            assert told.tolist() == [1.0] * SIZE, f"{name}, {place}"
            said.append(f"{place[1]} in {name}: {result}")
    return said


@pytest.mark.parametrize("signalled", [False, True])
def test_told(paddle_pool: Pool, signalled: bool) -> None:
    struck, peer = paddle_pool.run(strike, signalled)[:SIZE]
    for mine, theirs in zip(struck, peer, strict=True):
        returned = mine.endswith(": returned")
        assert theirs.endswith(": returned" if returned else ": MismatchError"), f"rank 0: {mine}; rank 1: {theirs}"
    wanted = "Struck" if signalled else "MemoryError"
    for place in ("detach", "empty", "empty_like", "concat"):
        assert any(said.startswith(f"{place} in ") and said.endswith(wanted) for said in struck), place
