"""What ranks do in test_hccl.py. Rank r has device r."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import ascend
import numpy as np
import pytest
import reduction_ranks
from ascend import Array, Stream
from exchange_ranks import GUARD, Recipe, dtype_of, list_parts

import a2a
from a2a import testing

Comm = a2a.Communicator


def on_device(comm: Comm, array: Any) -> Array:
    return Array(array, comm.rank)


def guarded(comm: Comm, recipe: Recipe, rows: int) -> tuple[Array, Any]:
    """A poisoned output on the device, and the buffer around it."""
    whole = on_device(comm, recipe.poisoned(rows + 2 * GUARD))
    return whole, whole.slice(GUARD, (rows, *recipe.trailing))


@contextmanager
def variables(**values: str) -> Iterator[None]:
    """The double's variables, which are read when communicators are made or at each call."""
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]


def fresh(comm: Comm) -> Comm:
    """A communicator of the same ranks that compares its first operations."""
    made = comm.split(0)
    assert made is not None
    return made


def failure(call: Callable[[], object]) -> str:
    """The class and the words of what the call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


# ---- exchanges -------------------------------------------------------------------------------------------------------


def alltoallv(comm: Comm, recipe: Recipe, packed: bool, how: str) -> bytes:
    case, rank = recipe.case(comm.size), comm.rank
    given = recipe.array(rank, case.send_rows[rank])
    source = on_device(comm, given)
    whole, recv = guarded(comm, recipe, case.recv_rows[rank])
    displs = () if packed else (case.send_displs[rank], case.recv_displs[rank])
    arguments = (source.tensor, case.send_counts[rank], recv, case.recv_counts[rank], *displs)
    if how == "call":
        assert comm.alltoallv(*arguments) is None
    elif how == "async":
        comm.alltoallv(*arguments, async_op=True).wait()
    elif how == "plan":
        plan = comm.plan_alltoallv(*arguments)
        plan.run(source.tensor, recv)
        plan.start(source.tensor, recv).wait()
    else:
        stream = Stream()
        forms = {"handle": stream.npu_stream, "object": stream, "pointer": _Pointer(stream.npu_stream)}
        comm.alltoallv(*arguments, stream=forms[how])
        ascend.require(stream.synchronize())
    assert source.memory.read() == given.tobytes()
    return whole.memory.read()


class _Pointer:
    """A stream in CuPy's style."""

    def __init__(self, handle: int) -> None:
        self.ptr = handle


def alltoall(comm: Comm, recipe: Recipe, how: str) -> bytes:
    rows = recipe.max_rows * comm.size
    send, (whole, recv) = on_device(comm, recipe.array(comm.rank, rows)), guarded(comm, recipe, rows)
    if how == "plan":
        comm.plan_alltoall(send.tensor, recv).run(send.tensor, recv)
    else:
        _finish(comm.alltoall(send.tensor, recv, async_op=how == "async"))
    return whole.memory.read()


def allgather(comm: Comm, recipe: Recipe, how: str) -> bytes:
    rows = recipe.max_rows
    whole, recv = guarded(comm, recipe, rows * comm.size)
    if how == "in place":
        part = whole.slice(GUARD + comm.rank * rows, (rows, *recipe.trailing))
        content = np.frombuffer(whole.memory.read(), dtype_of(recipe.dtype)).reshape(whole.shape).copy()
        content[GUARD + comm.rank * rows :][:rows] = recipe.array(comm.rank, rows)
        whole.memory.write(content)
        comm.allgather(part, recv)
        return whole.memory.read()
    send = on_device(comm, recipe.array(comm.rank, rows))
    if how == "plan":
        comm.plan_allgather(send.tensor, recv).run(send.tensor, recv)
    else:
        _finish(comm.allgather(send.tensor, recv, async_op=how == "async"))
    return whole.memory.read()


def alltoall_list(comm: Comm, recipe: Recipe, how: str) -> bytes:
    shapes = [row[comm.rank] for row in recipe.list_shapes(comm.size)]
    sends = [on_device(comm, part) for part in list_parts(recipe, comm.rank, comm.size)]
    outputs = [guarded(comm, recipe, int(np.prod(shape))) for shape in shapes]
    _finish(comm.alltoall_list([send.tensor for send in sends], [recv for _, recv in outputs], async_op=how == "async"))
    return b"".join(whole.memory.read() for whole, _ in outputs)


def there_and_back(comm: Comm, recipe: Recipe, how: str) -> tuple[bytes, bytes]:
    """global_scatter, and global_gather of its result; with a plan the way back is its transpose."""
    counts = recipe.local_counts(comm.size)
    local, global_ = counts[comm.rank], testing.global_counts(counts)[comm.rank]
    x = on_device(comm, recipe.array(comm.rank, local.sum())).tensor
    (scattered, there), (gathered, back) = (guarded(comm, recipe, int(rows)) for rows in (global_.sum(), local.sum()))
    if how == "plan":
        plan = comm.plan_global_scatter(x, local, global_)
        way_back = plan.transpose()
        for _ in range(3):
            plan.run(x, there)
            way_back.run(there, back)
    else:
        _finish(comm.global_scatter(x, local, global_, there, async_op=how == "async"))
        _finish(comm.global_gather(there, local, global_, back, async_op=how == "async"))
    return scattered.memory.read(), gathered.memory.read()


def _finish(work: Any) -> None:
    if isinstance(work, a2a.Work):
        work.wait()


def allocated(comm: Comm) -> tuple[list[int], list[int], list[int], str]:
    """Calls that make their output in the framework of the input, and what happens where that gives no way to do so."""
    n, rank = comm.size, comm.rank
    x = ascend.tensor(np.full((n, 2), rank, np.int32), rank)
    recv, counts = comm.exchange(x, [1] * n)
    assert counts.tolist() == [1] * n and type(recv) is ascend.Tensor and recv.shape == (n, 2)
    scattered = comm.global_scatter(x, [1] * n, [1] * n)
    work = comm.global_gather(scattered, [1] * n, [1] * n, async_op=True)
    assert work is not None
    work.wait()
    refused = failure(lambda: comm.exchange(on_device(comm, np.zeros(n)).tensor, [1] * n))
    comm.barrier()
    return (
        ascend.array_of(recv)[:, 0].tolist(),
        ascend.array_of(scattered)[:, 1].tolist(),
        ascend.array_of(work.result)[:, 0].tolist(),
        refused,
    )


def reduction(comm: Comm, name: str, *args: Any) -> Any:
    return getattr(reduction_ranks, name)(comm, partial(Array, device=comm.rank), *args)


# ---- streams and memory ----------------------------------------------------------------------------------------------


def ordered(comm: Comm) -> list[bool]:
    """A stream that waits for an operation on another one, which this thread does not."""
    send, recv = on_device(comm, np.full(comm.size, comm.rank)), on_device(comm, np.full(comm.size, -1))
    stream, other = Stream(), Stream()
    work = comm.alltoall(send.tensor, recv.tensor, async_op=True, stream=stream)
    assert work is not None
    work.order_before(other)
    ascend.require(other.synchronize())
    right = [recv.read().tolist() == list(range(comm.size))]
    work.wait(timeout=10)
    right += [work.done(), work.result is not None, all(work.arrived(rank) for rank in range(comm.size))]
    work.order_before(None)  # the same as wait()
    return right


def refused_streams(comm: Comm) -> list[str]:
    comm = fresh(comm)
    send, recv = on_device(comm, np.zeros(comm.size)), on_device(comm, np.ones(comm.size))
    told = []
    for stream in (0, "fast", -1, 2**64):
        told.append(failure(lambda stream=stream: comm.alltoall(send.tensor, recv.tensor, stream=stream)))  # type: ignore[misc]
    work = comm.alltoall(send.tensor, recv.tensor, async_op=True)
    assert work is not None
    told.append(failure(lambda: work.order_before(0)))
    work.wait()
    return told


def dropped(comm: Comm, how: str) -> tuple[bool, bool, bool]:
    """An operation whose tensors nobody else holds: whether they live while it is in flight, are let go after that, and
    whether the result was right."""
    n, rank = comm.size, comm.rank
    comm.connect(f"npu:{rank}")
    send, recv = on_device(comm, np.arange(n) + 10 * rank), on_device(comm, np.full(n, -1))
    stream = Stream()
    sent, received = weakref.ref(send.memory), recv.memory
    with variables(A2A_FAKE_DELAY_US="300000"):
        if how == "stream":
            comm.alltoall(send.tensor, recv.tensor, stream=stream)
        else:
            comm.alltoall(send.tensor, recv.tensor, async_op=True)
        del send, recv
        gc.collect()
        alive = sent() is not None
    for _ in range(2):  # the first is done when all before it are, the second lets go of them
        comm.alltoall(on_device(comm, np.zeros(n)).tensor, on_device(comm, np.zeros(n)).tensor)
    gc.collect()
    right = np.frombuffer(received.read(), np.int64).tolist() == [10 * peer + rank for peer in range(n)]
    return alive, sent() is None, right


# ---- refusals --------------------------------------------------------------------------------------------------------


def misplaced(comm: Comm) -> list[str]:
    """On rank 1 a tensor in the wrong place, on the others a good call."""
    comm = fresh(comm)
    n, rank = comm.size, comm.rank
    comm.connect(f"npu:{rank}")
    host, here = np.zeros(n), on_device(comm, np.zeros(n))
    other = Array(np.zeros(n), 7)
    also_here = on_device(comm, np.ones(n))
    readonly = a2a.from_pointer(
        also_here.memory.address, n, "float64", device=(12, rank), owner=also_here.memory, readonly=True
    )
    plan = comm.plan_alltoall(np.zeros(n), np.ones(n))
    bad: list[Callable[[], object]] = [
        lambda: comm.alltoall(host, here.tensor),
        lambda: comm.alltoall(here.tensor, host),
        lambda: comm.alltoall(here.tensor, other.tensor),
        lambda: comm.alltoall(other.tensor, Array(np.zeros(n), 7).tensor),
        lambda: plan.run(here.tensor, also_here.tensor),
        lambda: comm.alltoall(here.tensor, readonly),
        lambda: comm.alltoall(here.tensor, here.tensor),
        lambda: comm.alltoallv(here.tensor, on_device(comm, np.ones(n, np.int64)).tensor, also_here.tensor, [1] * n),
    ]
    told = []
    for call in bad:
        if rank == 1:
            told.append(failure(call))
        else:
            told.append(failure(lambda: comm.alltoall(here.tensor, also_here.tensor)))
    comm.barrier()
    return told


def disagreement(comm: Comm) -> list[str]:
    """Rank 0 sends one row too many to rank 1; then the dtypes differ; then all is well."""
    comm = fresh(comm)
    n, rank = comm.size, comm.rank
    counts = [1] * n
    counts[1] += rank == 0
    send, recv = on_device(comm, np.zeros((n + 1, 3), np.float32)), on_device(comm, np.zeros((n, 3), np.float32))
    told = [failure(lambda: comm.alltoallv(send.tensor, counts, recv.tensor, [1] * n))]
    kind = np.float32 if rank == 0 else np.int32
    pair = [on_device(comm, np.full(n, rank, kind)) for _ in range(2)]
    told.append(failure(lambda: comm.alltoall(pair[0].tensor, pair[1].tensor)))
    comm.alltoallv(send.tensor, [1] * n, recv.tensor, [1] * n)
    return told


def devices(comm: Comm) -> list[str]:
    """Names of devices, and connecting before the first operation."""
    comm = fresh(comm)
    told = [failure(lambda name=name: comm.connect(name)) for name in ("npu", "gpu:0", "npu:x", "npu:-1", 3, "npu:99")]  # type: ignore[misc]
    comm.connect(f"npu:{comm.rank}", timeout=30)
    comm.connect(f"npu:{comm.rank}")
    told.append(failure(lambda: comm.connect("npu:7")))
    told.append(failure(lambda: comm.adopt(0, "npu")))
    told.append(failure(lambda: comm.adopt(1 << 20, "gpu")))
    told.append(failure(lambda: comm.adopt(1 << 20, "npu")))  # too late
    comm.alltoall(on_device(comm, np.zeros(comm.size)).tensor, on_device(comm, np.zeros(comm.size)).tensor)
    return told


class _Through:
    def __init__(self, comm: Comm) -> None:
        self.allgather = comm.allgather_bytes


def checks(comm: Comm, given: list[str | None], environment: str = "") -> str:
    """A communicator with check=; after 30 good operations one in which ranks 0 and 1 disagree."""
    with variables(A2A_CHECK=environment) if environment else variables():
        made = a2a.init(comm.rank, comm.size, bootstrap=_Through(comm), check=given[comm.rank], timeout=30)
    n, rank = made.size, made.rank
    send, recv = on_device(comm, np.zeros(n + 1)), on_device(comm, np.zeros(n))
    counts = [1] * n
    try:
        for _ in range(30):
            made.alltoallv(send.tensor, counts, recv.tensor, counts)
    except a2a.Error as error:
        return f"{type(error).__name__}: {error}"
    counts[1] += rank == 0
    told = failure(lambda: made.alltoallv(send.tensor, counts, recv.tensor, [1] * n))
    return f"{'broken' if made.broken else 'usable'} {told}"


# ---- failures --------------------------------------------------------------------------------------------------------


def stalled(comm: Comm, how: str) -> tuple[str, float, bool]:
    """An operation that never ends, with a deadline of one second."""
    with variables(A2A_FAKE_STALL="1@0"):
        inner = fresh(comm)
        inner.connect(f"npu:{comm.rank}")
    inner.barrier()
    send, recv = on_device(comm, np.zeros(comm.size)), on_device(comm, np.zeros(comm.size))
    start = time.monotonic()
    if how == "call":
        told = failure(lambda: inner.alltoall(send.tensor, recv.tensor, timeout=1))
    else:
        work = inner.alltoall(send.tensor, recv.tensor, timeout=1, async_op=True)
        assert work is not None
        early = failure(lambda: work.wait(timeout=0.1))
        assert early.startswith("TimeoutError: the timeout of this wait has passed"), early
        told = failure(work.wait)
    return told, time.monotonic() - start, inner.broken


def interrupted(comm: Comm, where: str, how: str) -> tuple[str, float]:
    """Ctrl-C on rank 0 while it waits for rank 1: in connect(), in the first operation, in a comparison, or in ATB's
    operation."""
    inner = fresh(comm)
    send, recv = on_device(comm, np.zeros(comm.size)), on_device(comm, np.zeros(comm.size))

    def operation() -> None:
        inner.alltoall(send.tensor, recv.tensor)

    def connect() -> None:
        inner.connect(f"npu:{comm.rank}")

    if where == "comparison":
        connect()
    call = connect if where == "connect" else operation
    if where == "ATB":
        operation_of_atb = atb_operation(comm, "hccl", f"interrupted-{how}")
        x = ascend.tensor(np.full(comm.rank + 1, comm.rank, np.int32), comm.rank)
        operation_of_atb.forward([x])

        def call() -> None:
            operation_of_atb.forward([x])

    if comm.rank > 0:
        comm.barrier()  # rank 0 has given up
        told = failure(call)
        if where == "connect":
            operation()
        return told, 0.0
    sent: list[float] = []

    def send_signal() -> None:
        sent.append(time.monotonic())
        if how == "thread":
            signal.raise_signal(signal.SIGINT)  # to this thread, so that no wait of the main thread ends by it
        else:
            os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.3, send_signal)
    timer.start()
    try:
        call()
        told = "nothing was raised"
    except KeyboardInterrupt:
        told = "KeyboardInterrupt"
    took = time.monotonic() - sent[0]
    timer.join()
    comm.barrier()
    if where == "connect":  # goes on in the background, and the others come now
        operation()
    return told, took


# ---- ATB -------------------------------------------------------------------------------------------------------------


def atb_operation(comm: Comm, backend: str, domain: str, **fields: Any) -> Any:
    """Everybody sends rank + 1 copies of its rank to everybody."""
    from a2a.atb import AllToAllVOperation, AllToAllVParam

    n, rank = comm.size, comm.rank
    ascend.use(rank)
    name = comm.allgather_bytes(str(id(comm)).encode())[0].decode()
    received = [peer + 1 for peer in range(n)]
    displs = np.cumsum([0, *received])[:-1]
    counts = {"send_counts": [rank + 1] * n, "sdispls": [0] * n, "recv_counts": received, "rdispls": displs}
    param = AllToAllVParam(rank, n, **counts, backend=backend, comm_domain=f"{domain}-{name}", **fields)
    return AllToAllVOperation(param, timeout=30)


def atb(comm: Comm, backend: str, by: str, table: str) -> tuple[list[int], list[str]]:
    """With a rank table, a communicator of the caller's, or neither. Then with tensors that do not fit."""
    rank, fields = comm.rank, {}
    ascend.use(rank)
    if by == "rank table":
        fields["rank_table_file"] = table
    if by == "communicator":
        fields["hccl_comm"] = ascend.new_communicator(comm)
    operation = atb_operation(comm, backend, f"{backend}-{by}", **fields)
    values = np.full(rank + 1, rank, np.int32)
    for _ in range(2):
        (out,) = operation.forward([ascend.tensor(values, rank)])
    assert type(out) is ascend.Tensor and out.shape == (1, sum(peer + 1 for peer in range(comm.size)))
    wrong = [failure(lambda x=x: operation.forward([x])) for x in (values, on_device(comm, values).tensor)]  # type: ignore[misc]
    (again,) = operation.forward([ascend.tensor(values, rank)])
    assert (ascend.array_of(again) == ascend.array_of(out)).all()
    if by == "communicator":  # still the caller's
        made, its_rank = ctypes.c_void_p(fields["hccl_comm"]), ctypes.c_uint32()
        ascend.require(ascend.hccl().HcclGetRankId(made, ctypes.byref(its_rank)))
    return ascend.array_of(out)[0].tolist(), wrong


def generations(comm: Comm) -> None:
    """The endpoints of these ranks meet twice: each group has a communicator of HCCL of its own."""
    endpoint = a2a.Endpoint()
    handles = [text.decode() for text in comm.allgather_bytes(endpoint.handle.encode())]
    former = None
    for generation in range(2):
        group = endpoint.connect(handles, generation, timeout=30)
        sent = np.repeat(np.arange(group.size) + 10 * group.rank, 3)
        send, recv = on_device(comm, sent), on_device(comm, np.zeros_like(sent))
        group.alltoall(send.tensor, recv.tensor)
        assert np.array_equal(recv.read(), np.repeat(10 * np.arange(group.size) + group.rank, 3))
        if former is not None:
            with pytest.raises(a2a.AbortedError, match=f"generation {generation - 1} is over"):
                former.alltoall(send.tensor, recv.tensor)
        former = group
        group.barrier()  # what is on the device when a rank connects again is aborted
