"""Arguments at random, mostly bad, to every method: a documented error and nothing else, on a communicator that then
still works, while the other rank hears of it at once."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from forked import apart, connect, job_name, run, values
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import a2a

pytestmark = pytest.mark.timeout(100)

EXAMPLES = 1500
DOCUMENTED = (a2a.InvalidArgumentError, a2a.MismatchError, a2a.UnsupportedError, a2a.BackendError)


class Mistake(Exception):
    """What a user's own object raises comes out as it is, or as the reason of a documented error."""


class Tensorlike:
    """A tensor of the wrong kind."""

    def __init__(self, device: Any, capsule: Any) -> None:
        self.device, self.capsule = device, capsule

    def __dlpack_device__(self) -> Any:
        return self.device

    def __dlpack__(self, **_: Any) -> Any:
        if isinstance(self.capsule, BaseException):
            raise self.capsule
        return self.capsule


class Sequencelike:
    """Counts that change their mind."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        raise Mistake(index)


class Numberlike:
    def __index__(self) -> int:
        raise Mistake("no number")

    def __float__(self) -> float:
        raise Mistake("no number")


def _read_only() -> np.ndarray[Any, Any]:
    array = np.zeros(8, "f4")
    array.flags.writeable = False
    return array


# Each makes a fresh object, so that nothing is shared by accident; the good ones stand among them.
TENSORS: list[Callable[[], Any]] = [
    lambda: np.zeros(8, "f4"),
    lambda: np.zeros((4, 3), "i8"),
    lambda: np.zeros((2, 0), "u1"),
    lambda: np.zeros(0, "f8"),
    lambda: np.float32(1),
    lambda: np.zeros((), "f4"),
    lambda: np.zeros((8, 8), "f4")[:, 1],
    lambda: np.asfortranarray(np.zeros((4, 4))),
    lambda: np.zeros(8, "f4")[::-1],
    lambda: np.broadcast_to(np.zeros(1, "f4"), (1 << 40,)),
    _read_only,
    lambda: np.zeros(8, ">i4"),
    lambda: np.zeros(8, object),
    lambda: np.zeros(8, "M8[s]"),
    lambda: np.zeros(8, "S3"),
    lambda: np.zeros(8, [("a", "i4"), ("b", "f8")]),
    lambda: np.zeros((1,) * 32, "f4"),
    lambda: b"12345678",
    lambda: bytearray(8),
    lambda: memoryview(bytearray(8))[::2],
    lambda: memoryview(b""),
    lambda: "text",
    lambda: None,
    lambda: 7,
    lambda: [1.0, 2.0],
    lambda: [[np.zeros(2)], np.zeros(3)],
    lambda: np,
    lambda: Tensorlike((1, 0), Mistake("no tensor")),
    lambda: Tensorlike((1, 0), None),
    lambda: Tensorlike((1, 0), np.zeros(2).__dlpack__()),
    lambda: Tensorlike((2, 0), np.zeros(2).__dlpack__()),
    lambda: Tensorlike((10**12, -1), np.zeros(2).__dlpack__()),
    lambda: Tensorlike("cpu", 3),
    lambda: Tensorlike(None, None),
]
HUGE = st.builds(lambda digits: 10**digits, st.sampled_from([400, 5000]))  # no float, and not even a decimal text
NUMBERS = st.one_of(
    st.integers(-3, 9),
    st.sampled_from([2**31, 2**32, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, True, None, 1.0, 1.5, "1", b"1"]),
    st.sampled_from([math.nan, math.inf, 1j, np.int64(2), np.float64(2), np.bool_(True), np.zeros(1), (), [1]]),
    st.builds(Numberlike),
    HUGE,
)
COUNTS = st.one_of(
    st.sampled_from([[4, 4], [2, 2], [0, 0], [1], [], [1, 2, 3]]),
    st.lists(NUMBERS, max_size=4),
    st.lists(st.integers(-1, 5), min_size=2, max_size=2),
    st.lists(st.sampled_from([2**62, 2**63 - 1, 0]), min_size=2, max_size=2),
    st.sampled_from(TENSORS).map(lambda make: make()),
    st.sampled_from([{0: 1, 1: 1}, {1, 2}, "11", b"11", range(2), 3, None, Sequencelike(2)]),
    st.sampled_from(
        [np.array([1.0, 1.0]), np.array([[1, 1]]), np.array([1, 1], "u8"), np.array([2**64 - 1] * 2, "u8")]
    ),
)
TENSOR = st.sampled_from(TENSORS).map(lambda make: make())
TENSOR_LIST = st.one_of(st.lists(TENSOR, max_size=3), TENSOR, st.just(iter([])))
DTYPES = st.one_of(
    st.sampled_from(["float32", "bfloat16", "int4", "", "nonsense", "f4", np.float32, int, bool]), NUMBERS
)
# Nothing that is short and valid: a deadline that passes breaks the communicator, as it should.
TIMEOUTS = HUGE | st.sampled_from(
    [None, None, 30, 1e18, -1, -0.001, math.nan, "1", b"1", [], np.zeros(2), Numberlike()]
)
STREAMS = HUGE | st.sampled_from([None, None, 0, 1, -1, "stream", object(), 1.5, Numberlike()])

# Method -> (whether it takes the number of an operation, arguments, keyword arguments).
Methods = dict[str, tuple[bool, list[st.SearchStrategy[Any]], dict[str, st.SearchStrategy[Any]]]]
USUAL = {"timeout": TIMEOUTS, "stream": STREAMS}
METHODS: Methods = {
    "alltoallv": (True, [TENSOR, COUNTS, TENSOR, COUNTS, COUNTS, COUNTS], USUAL),
    "alltoall": (True, [TENSOR, TENSOR], USUAL),
    "alltoall_list": (True, [TENSOR_LIST, TENSOR_LIST], USUAL),
    "allgather": (True, [TENSOR, TENSOR], USUAL),
    "allgather_views": (True, [TENSOR, st.one_of(TENSOR, st.sampled_from(["numpy", "a2a"]))], {"timeout": TIMEOUTS}),
    "exchange": (True, [TENSOR, COUNTS], USUAL),
    "global_scatter": (True, [TENSOR, COUNTS, COUNTS, TENSOR], USUAL),
    "global_gather": (True, [TENSOR, COUNTS, COUNTS, TENSOR], USUAL),
    "barrier": (True, [], {"timeout": TIMEOUTS}),
    "split": (True, [NUMBERS, NUMBERS], {"timeout": TIMEOUTS}),
    "group": (True, [st.one_of(COUNTS, NUMBERS)], {"timeout": TIMEOUTS}),
    "allgather_bytes": (True, [TENSOR], {"timeout": TIMEOUTS}),
    "plan_alltoallv": (False, [TENSOR, COUNTS, TENSOR, COUNTS, COUNTS, COUNTS], {}),
    "plan_alltoall": (False, [TENSOR, TENSOR], {}),
    "plan_allgather": (False, [TENSOR, TENSOR], {}),
    "plan_global_scatter": (False, [TENSOR, COUNTS, COUNTS], {}),
    "plan_global_gather": (False, [TENSOR, COUNTS, COUNTS], {}),
    "empty": (False, [st.one_of(COUNTS, NUMBERS), DTYPES, st.one_of(TENSOR, st.sampled_from(["numpy", "nobody"]))], {}),
}
NAMES = st.sampled_from(sorted(METHODS))


def work_on(comm: a2a.Communicator, round_: int) -> None:
    recv = np.full(4, -1)
    comm.alltoall(np.full(4, comm.rank + round_), recv, timeout=20)
    assert (recv == np.array([0, 0, 1, 1]) + round_).all(), recv


def follow(comm: a2a.Communicator, orders: int) -> int:
    """The other rank: for every operation number that rank 0 takes, a barrier, which it is told about."""
    told = rounds = 0
    while (order := os.read(orders, 1)) == b"n":
        rounds += 1
        try:
            comm.barrier(timeout=20)
        except a2a.MismatchError:
            told += 1
        work_on(comm, rounds)
    assert order == b"e", order
    return told


def attack(comm: a2a.Communicator, orders: int) -> int:
    rounds = calls = 0

    @seed(2)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        nonlocal rounds, calls
        name = data.draw(NAMES)
        numbered, wanted, named = METHODS[name]
        given_ = data.draw(st.tuples(*wanted))
        keywords = data.draw(st.fixed_dictionaries({}, optional=named))
        calls += 1
        if numbered:
            rounds += 1
            os.write(orders, b"n")
        try:
            getattr(comm, name)(*given_, **keywords)
        except DOCUMENTED as error:
            assert str(error) and not comm.broken, repr(error)
        except Mistake:
            pass
        if numbered:
            work_on(comm, rounds)

    check()
    os.write(orders, b"e")
    return calls


def play(rank: int, job: str, reader: int, writer: int) -> int:
    os.close(reader if rank == 0 else writer)
    comm = connect(rank, 2, job)
    result = attack(comm, writer) if rank == 0 else follow(comm, reader)
    comm.close()
    return result


@apart
def test_bad_arguments_to_every_method() -> None:
    job, (reader, writer) = job_name(), os.pipe()
    calls, told = values(run(2, play, job, reader, writer, timeout=90))
    assert calls >= 0.9 * EXAMPLES and told >= 0.4 * EXAMPLES, (calls, told)


def test_stream_handle_too_large() -> None:
    comm = a2a.init(0, 1)
    with pytest.raises(a2a.InvalidArgumentError):
        comm.alltoall(np.zeros(2), np.zeros(2), stream=2**64)


def test_counts_that_call() -> None:
    """Each call has counts of its own, also one that is made while another one asks for its counts."""
    comm = a2a.init(0, 1)
    inner, outer = np.zeros(4), np.zeros(8)

    class Calling:
        def __init__(self, count: int) -> None:
            self.count = count

        def __index__(self) -> int:
            comm.alltoallv(np.arange(4.0), [3], inner, [3], [1], [0])
            return self.count

    comm.alltoallv(np.arange(8.0), [Calling(5)], outer, [Calling(5)], [Calling(2)], [Calling(1)])
    assert inner.tolist() == [1, 2, 3, 0]
    assert outer.tolist() == [0, 2, 3, 4, 5, 6, 0, 0]
