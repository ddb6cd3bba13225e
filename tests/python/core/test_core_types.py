"""Arguments and objects of the core that need no second rank: counts, timeouts, errors, plans, Work, bootstraps."""

import array
import asyncio
import builtins
import gc
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import a2a
from a2a import _core
from a2a._core import AbortedError, InvalidArgumentError


@pytest.fixture
def comm() -> Iterator[_core.Communicator]:
    with _core.connect(0, 1) as comm:
        yield comm


def pair(rows: int = 3) -> tuple[Any, Any]:
    return np.arange(rows, dtype=np.float32), np.zeros(rows, np.float32)


# Errors


def test_errors_are_what_people_catch() -> None:
    parents = {
        "InvalidArgumentError": ValueError,
        "MismatchError": ValueError,
        "PeerLostError": ConnectionError,
        "TimeoutError": builtins.TimeoutError,
        "AbortedError": RuntimeError,
        "UnsupportedError": NotImplementedError,
        "BackendError": RuntimeError,
    }
    for name, parent in parents.items():
        kind = getattr(_core, name)
        assert issubclass(kind, parent) and issubclass(kind, _core.Error) and kind.__module__ == "a2a"
        error = pickle.loads(pickle.dumps(kind("what")))
        assert type(error) is kind and error.args == ("what",) and getattr(a2a, name) is kind


# Counts


@pytest.mark.parametrize(
    "counts",
    [
        [3],
        (3,),
        range(3, 4),
        iter([3]),
        [np.int8(3)],
        [np.uint64(3)],
        np.array([3]),
        np.array([3], np.uint8),
        np.array([3], np.int16),
        np.array([3], np.uint64),
        np.array([[9, 3]])[:, 1],
        array.array("q", [3]),
    ],
)
def test_counts_of_every_kind(comm: _core.Communicator, counts: Any) -> None:
    send, recv = pair()
    comm.alltoallv(send, counts, recv, [3])
    assert recv.tolist() == [0, 1, 2]


@pytest.mark.parametrize("framework", ["torch", "paddle", "jax.numpy"])
def test_counts_of_other_frameworks(comm: _core.Communicator, framework: str) -> None:
    module = pytest.importorskip(framework)
    send, recv = pair()
    make = module.to_tensor if framework == "paddle" else module.asarray
    counts = make(np.array([3], np.int32))
    comm.alltoallv(send, counts, recv, counts, counts - counts)
    comm.alltoallv(send, [counts[0]], recv, list(counts))
    assert recv.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("counts", "match"),
    [
        (None, "send_counts is None"),
        (3, "send_counts is 3"),
        ("3", r"send_counts\[0\] is '3'"),
        ([], "0 entries, but the group has 1 ranks"),
        ([1, 2], "2 entries"),
        ([True], "a bool"),
        ([np.bool_(True)], "a bool"),
        ([1.0], r"send_counts\[0\] is 1.0"),
        ([None], r"send_counts\[0\] is None"),
        ([2**63], "does not fit"),
        ([-(2**70)], "does not fit"),
        ([-1], r"send_counts\[0\] = -1 is negative"),
        ([4], "leaves a buffer of 3"),
        ([2**62], "leaves a buffer of 3"),
        (np.array([1.0]), "dtype float64"),
        (np.array([True]), "dtype bool"),
        (np.array([[1]]), "2 dimensions"),
        (np.array(1), "0 dimensions"),
        (np.array([2**63], np.uint64), "9223372036854775808 does not fit"),
    ],
)
def test_counts_that_are_none(comm: _core.Communicator, counts: Any, match: str) -> None:
    send, recv = pair()
    with pytest.raises(InvalidArgumentError, match=f"^rank 0: .*{match}"):
        comm.alltoallv(send, counts, recv, [3])
    comm.alltoallv(send, [3], recv, [3])
    assert recv.tolist() == [0, 1, 2]


def test_bool_tensors_are_no_counts(comm: _core.Communicator) -> None:
    torch = pytest.importorskip("torch")
    send, recv = pair(1)
    for counts in (torch.tensor([True]), [torch.tensor(True)], [torch.tensor(1.0)]):
        with pytest.raises(InvalidArgumentError, match=r"bool|send_counts\[0\]"):
            comm.alltoallv(send, counts, recv, [1])


def test_displacements(comm: _core.Communicator) -> None:
    send, recv = pair()
    comm.alltoallv(send, [1], recv, [1], [2], [1])
    assert recv.tolist() == [0, 2, 0]
    with pytest.raises(InvalidArgumentError, match="send_displs has 0 entries"):
        comm.alltoallv(send, [1], recv, [1], [])


# Tensors that do not fit each other


def test_pairs_that_do_not_fit(comm: _core.Communicator) -> None:
    rows = np.zeros((4, 2), np.float32)
    for send, recv, match in (
        (rows, np.zeros((4, 2), np.int32), "send is float32, but recv is int32"),
        (rows, np.zeros((4, 3), np.float32), "a row of send .* is 8 bytes, but a row of recv .* is 12 bytes"),
        (rows, rows, "share memory"),
        (rows[:2], rows[1:3], "share memory"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            comm.alltoallv(send, [1], recv, [1])
        if send is not recv:
            with pytest.raises(InvalidArgumentError, match=match):
                comm.alltoall(send, recv)
    comm.alltoallv(rows[:2], [2], rows[2:], [2])
    comm.alltoallv(rows, [4], np.zeros((4, 1, 2), np.float32), [4])  # rows of the same size
    comm.alltoallv(rows[:0], [0], rows[:0], [0])


def test_alltoall_and_allgather_sizes(comm: _core.Communicator) -> None:
    with pytest.raises(InvalidArgumentError, match="send has 3 rows, but recv has 2"):
        comm.alltoall(np.zeros(3), np.zeros(2))
    with pytest.raises(InvalidArgumentError, match=r"recv .* has 16 bytes, but 1 ranks send 24 bytes each"):
        comm.allgather(np.zeros(3), np.zeros(2))


def test_lists(comm: _core.Communicator) -> None:
    send, recv = pair()
    comm.alltoall_list([send], (recv.reshape(1, 3),))
    assert recv.tolist() == [0, 1, 2]
    for sends, recvs, match in (
        ([send], [], "recvs has 0 tensors"),
        (None, [recv], "sends is NoneType"),
        ([send], [None], r"recvs\[0\] is not a tensor"),
        ([send], [send[:]], r"sends\[0\] and recvs\[0\] share memory"),
        ([send], [np.zeros(2, np.float32)], "sends itself"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            comm.alltoall_list(sends, recvs)  # type: ignore[arg-type]


def test_global_scatter_arguments(comm: _core.Communicator) -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    result: Any = comm.global_scatter(x, [1, 2], [1, 2])
    assert np.array_equal(result, x)
    out = np.zeros_like(x)
    assert comm.global_gather(x, [1, 2], [1, 2], out) is out and np.array_equal(out, x)
    for counts, match in (([2, 2], "x .* has 3 rows, but local_count needs 4"), ([], "multiple of the 1 ranks")):
        with pytest.raises(InvalidArgumentError, match=match):
            comm.global_scatter(x, counts, counts)
    with pytest.raises(InvalidArgumentError, match=r"out .* has 2 rows, but global_count needs 3"):
        comm.global_scatter(x, [1, 2], [1, 2], np.zeros((2, 2), np.float32))
    with pytest.raises(InvalidArgumentError, match="a row of x"):
        comm.global_scatter(x, [1, 2], [1, 2], np.zeros((3, 3), np.float32))


# Timeouts and streams


@pytest.mark.parametrize("timeout", [-1, float("nan"), "soon", object()])
def test_bad_timeouts(comm: _core.Communicator, timeout: Any) -> None:
    send, recv = pair()
    with pytest.raises(InvalidArgumentError, match="timeout"):
        comm.alltoall(send, recv, timeout=timeout)
    for call in (comm.barrier, comm.close):
        with pytest.raises(InvalidArgumentError, match="timeout"):
            call(timeout=timeout)
    with pytest.raises(InvalidArgumentError, match="timeout"):
        _core.connect(0, 1, timeout=timeout)


def test_good_timeouts(comm: _core.Communicator) -> None:
    send, recv = pair()
    for timeout in (None, 5, 1.5, np.float32(3), float("inf"), 1e300):
        comm.alltoall(send, recv, timeout=timeout)
    assert _core.connect(0, 1, timeout=7).timeout == 7


def test_streams(comm: _core.Communicator) -> None:
    class Stream:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 1234

    send, recv = pair()
    for good in (None, 0, 2, Stream()):
        comm.alltoall(send, recv, stream=good)
    for bad in (-1, "s", 1.0, True):
        with pytest.raises(InvalidArgumentError, match="stream"):
            comm.alltoall(send, recv, stream=bad)


# Plans and Work


def test_plans(comm: _core.Communicator) -> None:
    send, recv = pair()
    plan = comm.plan_alltoallv(send, [2], recv, [2], [1], [0])
    for _ in range(3):
        plan.run(send, recv)
    assert recv.tolist() == [1, 2, 0] and plan.number == 1
    back = plan.transpose()
    send[:] = 0
    back.run(recv, send)
    assert send.tolist() == [0, 1, 2] and back.number == 2
    work = plan.start(send, recv)
    work.wait()
    assert work.done() and work.arrived(0) and work.result is recv
    with pytest.raises(InvalidArgumentError):
        comm.plan_alltoall(send, recv[:2])
    assert comm.plan_allgather(send, recv).number == 4  # a plan that failed has taken its number


def test_plans_refuse_other_tensors(comm: _core.Communicator) -> None:
    rows = np.zeros((3, 2), np.float32)
    plan = comm.plan_global_scatter(rows, [1, 2], [1, 2])
    for send, match in (
        (np.zeros((2, 2), np.float32), "send .* has 16 bytes, but plan 1 needs 24"),
        (np.zeros((6, 1), np.float32), "a row of send .* is 4 bytes, but plan 1 was made for rows of 8 bytes"),
        (np.zeros((3, 2), np.int32), "send is int32, but recv is float32"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            plan.run(send, np.zeros_like(rows))
    with pytest.raises(InvalidArgumentError, match="send is int32, but plan 1 was made for float32"):
        plan.run(np.zeros((3, 2), np.int32), np.zeros((3, 2), np.int32))
    plan.run(np.zeros((9, 2), np.float32), rows)


def test_work_in_asyncio(comm: _core.Communicator) -> None:
    send, recv = pair()

    async def main() -> Any:
        work = comm.alltoall(send, recv, async_op=True)
        assert work is not None
        await work
        return work.result

    assert asyncio.run(main()) is recv and recv.tolist() == [0, 1, 2]


# Communicators


def test_facts() -> None:
    comm = _core.connect(0, 1, timeout=5)
    assert (comm.rank, comm.size, comm.timeout, comm.closed, comm.broken) == (0, 1, 5, False, False)
    thresholds = {"direct_min", "cma_min", "stream_min"}
    facts = {"ranks", "cpus", "oversubscribed", "cma", "hosts", "messages"}
    assert set(_core.host_facts(comm)) == facts | thresholds
    assert _core.core_version == a2a.__version__
    comm.close()
    comm.close()
    assert comm.closed and "closed" in repr(comm)
    with pytest.raises(AbortedError, match="closed"):
        comm.barrier()


def test_an_exception_leaves_without_waiting() -> None:
    with pytest.raises(KeyError), _core.connect(0, 1) as comm:
        raise KeyError
    assert comm.closed and not comm.broken
    with pytest.raises(AbortedError, match="left"):
        comm.barrier()
    comm.abort()
    comm.close()


def test_abort() -> None:
    comm = _core.connect(0, 1)
    comm.abort("enough")
    assert comm.broken
    with pytest.raises(AbortedError, match="enough"):
        comm.barrier()
    comm.close()


def test_timeout_can_be_changed() -> None:
    with _core.connect(0, 1, timeout=30) as comm:
        comm.timeout = 2
        group = comm.split(0)
        assert comm.timeout == 2 and group is not None and group.timeout == 2
        comm.timeout = 0.5
        assert group.timeout == 2
        for wrong in (-1, float("nan"), "soon", None):
            with pytest.raises(InvalidArgumentError, match="timeout"):
                comm.timeout = wrong  # type: ignore[assignment]
        assert comm.timeout == 0.5


def test_groups_of_one(comm: _core.Communicator) -> None:
    group = comm.split(7)
    assert group is not None and group.size == 1 and comm.split(-1) is None
    again = comm.group([0])
    assert again is not None and again.allgather_bytes(b"xyz") == [b"xyz"] and comm.group([]) is None
    bad: list[Any] = [[1], [-1], [0, 0], None, ["a"]]
    for ranks in bad:
        with pytest.raises(InvalidArgumentError, match="ranks"):
            comm.group(ranks)
    for color in (None, 1.5, 2**40):
        with pytest.raises(InvalidArgumentError, match="color"):
            comm.split(color)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="pass bytes"):
        comm.allgather_bytes("text")  # type: ignore[arg-type]
    assert comm.shrink().size == 1


def test_connect_arguments() -> None:
    class Meeting:
        def allgather(self, mine: bytes) -> list[bytes]:
            return [mine]

    assert _core.connect(0, 1, bootstrap=Meeting()).allgather_bytes(b"a") == [b"a"]
    for arguments, match in (
        ({"rank": 1, "size": 1}, "0 <= rank < size"),
        ({"rank": 0, "size": 0}, "0 <= rank < size"),
        ({"rank": 0, "size": 2}, "no way to meet"),
        ({"rank": 0, "size": 1, "job": "x", "bootstrap": Meeting()}, "pass one"),
        ({"rank": 0, "size": 2, "bootstrap": _core.thread_bootstraps(2)[1]}, "is that of rank 1 of 2"),
        ({"rank": 0, "size": 3, "bootstrap": _core.thread_bootstraps(2)[0]}, "is that of rank 0 of 2"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            _core.connect(**arguments)
    with pytest.raises(InvalidArgumentError, match="at least one rank"):
        _core.thread_bootstraps(0)


def test_what_a_bootstrap_raises_comes_out_unchanged() -> None:
    class Broken:
        def __init__(self, error: BaseException | None) -> None:
            self.error = error

        def allgather(self, mine: bytes) -> list[bytes]:
            if self.error is not None:
                raise self.error
            return [mine, mine]

    for error in (KeyError("mine"), SystemExit(3)):
        with pytest.raises(type(error)) as caught:
            _core.connect(0, 1, bootstrap=Broken(error))
        assert caught.value is error
    with pytest.raises(InvalidArgumentError, match="returned 2 items for 1 ranks"):
        _core.connect(0, 1, bootstrap=Broken(None))


# Ctrl-C


def interrupt_after(seconds: float) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_ctrl_c_while_ranks_are_awaited() -> None:
    threads = _core.thread_bootstraps(2)
    for arguments in ({"job": f"nobody-{os.getpid()}"}, {"bootstrap": threads[0]}):
        interrupt_after(0.3)
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            _core.connect(0, 2, timeout=20, **arguments)
        assert time.monotonic() - start < 2


def late_rank(bootstrap: Any, comms: list[_core.Communicator], go: threading.Event) -> None:
    comm = _core.connect(1, 2, bootstrap=bootstrap)
    comms.append(comm)
    go.wait(20)
    send, recv = np.full(2, 1.0), np.zeros(2)
    comm.alltoall(send, recv)
    assert recv.tolist() == [5, 1]
    comm.split(0)
    comm.alltoall(send, recv)
    comm.close()


def test_ctrl_c_interrupts_the_wait_and_not_the_operation() -> None:
    """The interrupted calls go on, hold their tensors, and the communicator stays usable."""
    bootstraps = _core.thread_bootstraps(2)
    comms: list[_core.Communicator] = []
    go = threading.Event()
    peer = threading.Thread(target=late_rank, args=(bootstraps[1], comms, go))
    peer.start()
    comm = _core.connect(0, 2, bootstrap=bootstraps[0])
    recv = np.zeros(2)
    for call in (lambda: comm.alltoall(np.full(2, 5.0), recv), lambda: comm.split(0)):
        interrupt_after(0.2)
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            call()
        assert time.monotonic() - start < 1
    gc.collect()
    go.set()
    comm.alltoall(np.full(2, 6.0), np.zeros(2))
    assert recv.tolist() == [5, 1]
    comm.close()
    peer.join(20)
    assert not peer.is_alive() and comms[0].closed
