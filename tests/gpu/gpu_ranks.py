"""What ranks do in the tests on GPUs. Rank r has device r, or shares one where there are fewer."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cudart
import device_tensors
import numpy as np
import numpy.typing as npt
import reduction_ranks
from rank_pool import _Through

import a2a
from a2a import frameworks
from a2a._core import library_of
from a2a.conformance.cases import DTYPES

Comm = a2a.Communicator
Bytes = npt.NDArray[np.uint8]
DRIVER = str(Path(__file__).with_name("driver_tensors.py"))
SHARES_FROM = (2, 30, 3)
POISON = 0xA5


def sharing() -> dict[str, str]:
    """The environment in which NCCL lets several ranks have one GPU. Versions that refuse it are told that each rank
    lives on a host of its own, and use sockets."""
    version = tuple(int(part) for part in library_of("nccl").split()[1].split("."))
    if version >= SHARES_FROM:
        # Kernels of all ranks have to run at once, or none ends.
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4", "NCCL_NVLS_ENABLE": "0"}
    return {
        "NCCL_HOSTID": "a2a",  # with the rank's number: see place()
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MAX_NCHANNELS": "2",
    }


def place(comm: Comm, name: str) -> Any:
    """The framework on this rank's device."""
    if "NCCL_HOSTID" in os.environ:
        os.environ["NCCL_HOSTID"] = f"a2a-{comm.rank}"  # read when NCCL is first used
    framework = frameworks.load(name, "cuda")
    framework.prepare(comm.rank % framework.devices())
    return framework


def meet(comm: Comm, name: str) -> str:
    """Connects the ranks; why NCCL refuses, if so."""
    framework = place(comm, name)
    try:
        comm.connect(f"cuda:{comm.rank % framework.devices()}")
    except a2a.Error as error:
        return str(error)
    return ""


class Exchange:
    """An uneven exchange with gaps between the parts, known on all ranks. Rows have three elements."""

    def __init__(self, comm: Comm, name: str, dtype: str = "float32", shape: str = "uneven", seed: int = 0) -> None:
        self.comm, self.framework, self.dtype, self.seed = comm, place(comm, name), dtype, seed
        n, rank = comm.size, comm.rank
        self.row = 3 * DTYPES[dtype]
        rows = {
            "uneven": lambda source, target: (5 * source + 3 * target + seed) % 7,
            "nothing": lambda source, target: 0,
            "one way": lambda source, target: 4 if target == (source + 1) % n else 0,
            "big": lambda source, target: 40_000 + source - target,
        }[shape]
        counts = np.array([[rows(source, target) for target in range(n)] for source in range(n)])
        self.give, self.take = counts[rank].tolist(), counts[:, rank].tolist()
        self.from_, self.to = self._displs(self.give), self._displs(self.take)
        sent = [self._content(source, counts[source]) for source in range(n)]
        self.send = self._tensor(sent[rank], self.give)
        self.wanted = np.full(self._bytes(self.take), POISON % 2 if dtype == "bool" else POISON, np.uint8)
        self.recv = self._tensor(self.wanted, self.take)
        for source in range(n):
            start = self._displs(counts[source].tolist())[rank] * self.row
            part = self.take[source] * self.row
            self.wanted[self.to[source] * self.row :][:part] = sent[source][start : start + part]

    def arguments(self) -> tuple[Any, ...]:
        return self.send, self.give, self.recv, self.take, self.from_, self.to

    def run(self, how: str) -> None:
        """``how`` is "call" or "async"."""
        work = self.comm.alltoallv(*self.arguments(), async_op=how == "async")
        assert (work is None) == (how == "call")
        if work is not None:
            work.wait()

    def poison(self) -> None:
        """Makes the output what it was before any exchange."""
        cudart.fill(address(self.recv), POISON % 2 if self.dtype == "bool" else POISON, self.wanted.size)

    def check(self) -> None:
        wrong = np.flatnonzero(self.framework.read(self.recv) != self.wanted)
        assert not wrong.size, f"{wrong.size} of {self.wanted.size} bytes are wrong, the first at {wrong[0]}"

    def _displs(self, counts: list[int]) -> list[int]:
        return [1 + sum(counts[:peer]) + 2 * peer for peer in range(len(counts))]

    def _bytes(self, counts: list[int]) -> int:
        return (sum(counts) + 2 * len(counts) + 1) * self.row

    def _content(self, source: int, counts: npt.NDArray[Any]) -> Bytes:
        random = np.random.default_rng((source, self.seed))
        high = 2 if self.dtype == "bool" else 256
        return random.integers(0, high, self._bytes(counts.tolist()), np.uint8)

    def _tensor(self, content: Bytes, counts: list[int]) -> Any:
        shape = (len(content) // self.row, 3)
        return self.framework.tensor(self.framework.make(content), 0, self.dtype, shape)


def address(tensor: Any) -> int:
    """Where its memory begins, in each framework's words."""
    if hasattr(tensor, "data_ptr"):
        return int(tensor.data_ptr())
    return int(tensor.data.ptr if hasattr(tensor, "data") else tensor.memory.address)


# ---- exchanges -----------------------------------------------------------------------------------------------------


def exchange(comm: Comm, name: str, shape: str, how: str, only: str = "") -> None:
    """In every dtype of the framework."""
    dtypes = [only] if only else sorted(frameworks.load(name, "cuda").dtypes())
    for seed, dtype in enumerate(dtypes):
        x = Exchange(comm, name, dtype, shape, seed)
        if how == "plan":
            plan = comm.plan_alltoallv(*x.arguments())
            for _ in range(3):
                x.poison()
                plan.run(x.send, x.recv)
                x.check()
        else:
            x.run(how)
        x.check()


def other_calls(comm: Comm, name: str) -> None:
    framework, n, rank = place(comm, name), comm.size, comm.rank

    def tensor(values: Any) -> Any:
        values = np.asarray(values, np.float32)
        return framework.tensor(framework.make(values.reshape(-1).view(np.uint8)), 0, "float32", values.shape)

    def values(of: Any) -> Any:
        return framework.read(of).view(np.float32)

    send, recv = tensor(np.arange(2 * n) + 100 * rank), tensor(np.zeros(2 * n))
    comm.alltoall(send, recv)
    assert values(recv).tolist() == [100 * peer + 2 * rank + i for peer in range(n) for i in range(2)]
    every = tensor(np.zeros((n, 2 * n)))
    comm.allgather(send, every)
    assert values(every).tolist() == [100 * peer + i for peer in range(n) for i in range(2 * n)]
    parts, outs = [tensor([rank] * (p + 1)) for p in range(n)], [tensor([-1] * (rank + 1)) for _ in range(n)]
    comm.alltoall_list(parts, outs)
    assert all((values(out) == peer).all() for peer, out in enumerate(outs))
    counts = np.arange(2 * n) % 3  # two experts on each rank
    mine = np.tile(counts.reshape(n, 2)[rank], n)
    x = tensor(np.arange(2.0 * counts.sum()).reshape(-1, 2) + 1000 * rank)
    back = comm.global_gather(comm.global_scatter(x, counts, mine), counts, mine)
    assert values(back).tolist() == values(x).tolist()
    got, taken = comm.exchange(send, [2] * n)
    assert taken.tolist() == [2] * n and values(got).tolist() == values(recv).tolist()


def pinned(comm: Comm) -> None:
    """Pages of the host that the GPU can read go through shared memory as all others do."""
    import torch

    place(comm, "torch")
    n, rank = comm.size, comm.rank
    send, recv = (torch.full((n, 5000), value, dtype=torch.int32).pin_memory() for value in (rank, -1))
    comm.alltoall(send, recv)
    assert recv.is_pinned() and (recv == torch.arange(n)[:, None]).all()


def large(comm: Comm) -> float:
    """More than 2^31 bytes to the next rank, in Torch; the seconds it takes."""
    import torch

    place(comm, "torch")
    n, rank = comm.size, comm.rank
    words = (1 << 28) + 3
    to, source = (rank + 1) % n, (rank - 1) % n
    send = torch.arange(words, device="cuda") * (rank + 1)
    recv = torch.full_like(send, -1)
    torch.cuda.synchronize()
    start = time.monotonic()
    comm.alltoallv(send, [words * (p == to) for p in range(n)], recv, [words * (p == source) for p in range(n)])
    torch.cuda.synchronize()
    seconds = time.monotonic() - start
    assert torch.equal(recv, torch.arange(words, device="cuda") * (source + 1))
    return seconds


# ---- reductions ----------------------------------------------------------------------------------------------------


class Copied:
    """A NumPy array's copy on this rank's device, in a framework."""

    def __init__(self, array: npt.NDArray[Any], framework: Any) -> None:
        self._framework, self._like = framework, array
        self._memory = framework.make(np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    @property
    def tensor(self) -> Any:
        return self.slice(0, self._like.shape)

    def slice(self, row: int, shape: tuple[int, ...]) -> Any:
        start = row * self._like.dtype.itemsize * int(np.prod(shape[1:]))
        return self._framework.tensor(self._memory, start, self._like.dtype.name, shape)

    def read(self) -> npt.NDArray[Any]:
        return np.asarray(self._framework.read(self._memory)).view(self._like.dtype).reshape(self._like.shape)


def reduction(comm: Comm, name: str, what: str, *args: Any) -> Any:
    return getattr(reduction_ranks, what)(comm, partial(Copied, framework=place(comm, name)), *args)


def reductions(comm: Comm, name: str) -> list[str]:
    """Every dtype that NumPy and the framework have; their names."""
    known = frameworks.load(name, "cuda").dtypes()
    dtypes = [dtype for dtype in reduction_ranks.DTYPES if dtype in known and reduction_ranks.numpy_has(dtype)]
    version = tuple(int(part) for part in library_of("nccl").split()[1].split("."))
    place(comm, name)
    float8 = version >= (2, 24) and cudart.capability() >= 9
    for dtype in dtypes:
        ops = reduction_ranks.folded_by_nccl(dtype, float8)
        reduction(comm, name, "every_operation", dtype, 1000, "NCCL", ops)
    return dtypes


def reduction_graph(comm: Comm, name: str) -> None:
    """An allreduce in place, captured once and launched again and again."""
    x, stream = Copied(np.ones(1000, np.float32), place(comm, name)), cudart.Stream()
    comm.allreduce(x.tensor, stream=stream)
    stream.synchronize()
    comm.barrier()
    tensor = x.tensor
    captured = cudart.Graph(stream, lambda: comm.allreduce(tensor, stream=stream))
    for _ in range(2):
        captured.launch()
    stream.synchronize()
    assert (x.read() == comm.size**3).all()
    comm.barrier()
    del captured


# ---- streams -------------------------------------------------------------------------------------------------------


def current(name: str) -> int:
    """The handle of the stream that the framework works on."""
    if name == "torch":
        import torch

        return int(torch.cuda.current_stream().cuda_stream)
    if name == "cupy":
        import cupy

        return int(cupy.cuda.get_current_stream().ptr)
    return 0


def side_of(name: str, own: cudart.Stream) -> tuple[int, Any]:
    """(handle of a stream, context in which the framework works on it)."""
    if name == "torch":
        import torch

        stream = torch.cuda.Stream()
        return int(stream.cuda_stream), torch.cuda.stream(stream)
    if name == "cupy":
        import cupy

        stream = cupy.cuda.Stream(non_blocking=True)
        return int(stream.ptr), stream
    return own.cuda_stream, device_tensors.working_on(cudart.CUDA, own.cuda_stream)


def does_not_wait(comm: Comm, name: str, how: str) -> float:
    """A call returns while the stream it is enqueued on is held up; the seconds it takes."""
    x = Exchange(comm, name, seed=1)
    plan = comm.plan_alltoallv(*x.arguments())
    plan.run(x.send, x.recv)
    for _ in range(20):  # past what ranks compare
        comm.alltoallv(*x.arguments())
    x.check()
    x.poison()
    stream, works = current(name), []
    comm.barrier()
    with cudart.held_up(comm.rank % x.framework.devices(), stream):
        start = time.monotonic()
        if how == "plan":
            plan.run(x.send, x.recv)
        elif how == "async":
            works.append(comm.alltoallv(*x.arguments(), async_op=True))
        else:
            comm.alltoallv(*x.arguments())
        seconds = time.monotonic() - start
        assert cudart.busy(stream), "the call has waited for its stream"
        assert not any(work.done() for work in works)
    for work in works:
        work.order_before(stream)
    x.check()
    return seconds


def streams(comm: Comm, name: str) -> None:
    """On every stream that a call may name, and on the one that the framework works on."""
    x = Exchange(comm, name, seed=2)
    own = cudart.Stream()
    for given in (None, 0, 1, 2, own, own.cuda_stream):
        x.poison()
        comm.alltoallv(*x.arguments(), stream=given)
        cudart.synchronize(current(name) if given is None else getattr(given, "cuda_stream", given))
        x.check()
    device, (side, current_in_here) = comm.rank % x.framework.devices(), side_of(name, own)
    stale = cudart.Array(np.full(x.wanted.size, POISON, np.uint8), device)
    with cudart.held_up(device, side), current_in_here:
        cudart.copy(stale.address, address(x.recv), stale.nbytes, side)
        comm.alltoallv(*x.arguments())
        time.sleep(0.1)  # in which an exchange on another stream is over, and the copy comes after it
    x.check()


def sync_debug_mode(comm: Comm) -> None:
    """Torch itself is not made to wait, either."""
    import torch

    x = Exchange(comm, "torch", seed=3)
    comm.alltoallv(*x.arguments())
    x.poison()
    torch.cuda.set_sync_debug_mode("error")
    try:
        comm.alltoallv(*x.arguments())
        work = comm.alltoallv(*x.arguments(), async_op=True)
        work.order_before(torch.cuda.current_stream())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    x.check()


def dropped_in_flight(comm: Comm, name: str) -> None:
    """Tensors that the program lets go of stay what they are until the exchange is done."""
    x = Exchange(comm, name, "uint8", "big")
    comm.alltoallv(*x.arguments())
    x.check()
    x.poison()
    device, size, stream = comm.rank % x.framework.devices(), int(np.prod(x.send.shape)), cudart.Stream()
    with cudart.held_up(device, stream.cuda_stream):
        work = comm.alltoallv(*x.arguments(), async_op=True, stream=stream)
        assert work is not None
        work.order_before(stream)
        del x.send, work
        gc.collect()
        others = [x.framework.make(np.full(size, 0x77, np.uint8)) for _ in range(3)]  # in its place, perhaps
    x.check()
    del others


def graph(comm: Comm, name: str) -> None:
    """A planned exchange, captured once and replayed with new contents."""
    x = Exchange(comm, name, "float32", "uneven", 4)
    y = Exchange(comm, name, "float32", "uneven", 4)
    plan, stream = comm.plan_alltoallv(*x.arguments()), cudart.Stream()
    plan.run(x.send, x.recv, stream=stream)
    stream.synchronize()
    comm.barrier()
    captured = cudart.Graph(stream, lambda: plan.run(x.send, y.recv, stream=stream))
    comm.barrier()
    for _ in range(3):
        y.poison()
        captured.launch()
        stream.synchronize()
        y.check()
    x.poison()
    comm.alltoallv(*x.arguments())
    x.check()


def torchs_graph(comm: Comm) -> None:
    """The same in Torch's own words: on its current stream, which is one of its own during the capture."""
    import torch

    x = Exchange(comm, "torch", seed=5)
    plan = comm.plan_alltoallv(*x.arguments())
    plan.run(x.send, x.recv)
    torch.cuda.synchronize()
    comm.barrier()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        plan.run(x.send, x.recv)
    comm.barrier()
    for _ in range(3):
        x.poison()
        captured.replay()
        x.check()


# ---- what goes wrong -----------------------------------------------------------------------------------------------


def again(comm: Comm, check: str, timeout: float = 30.0) -> Comm:
    """Another communicator of the same ranks, which may break."""
    return a2a.init(comm.rank, comm.size, bootstrap=_Through(comm), check=check, timeout=timeout)


def mismatch(comm: Comm, name: str, check: str) -> list[str]:
    """Rank 0 sends a row more to rank 1 than that expects; what each rank hears, and how long that takes."""
    made, x = again(comm, check, 5.0), Exchange(comm, name)
    told, start = "", time.monotonic()
    give = list(x.give)
    if comm.rank == 0:
        give[1] += 1
    try:
        work = made.alltoallv(x.send, give, x.recv, x.take, x.from_, x.to, async_op=True)
        assert work is not None
        work.wait()
    except a2a.Error as error:
        told = f"{type(error).__name__}: {error}"
    took = time.monotonic() - start
    if check != "off":
        made.alltoallv(*x.arguments())
        x.check()
    comm.barrier()
    made.abort()
    return [told, f"{took:.1f}"]


def disagreement(comm: Comm, name: str) -> str:
    """What each rank hears where the last one means another dtype, in a communicator that works afterwards."""
    x, told = Exchange(comm, name), ""
    plan = comm.plan_alltoallv(*x.arguments())  # the first run of which is compared
    other = Exchange(comm, name, "int32")
    bad = comm.plan_alltoallv(*(other if comm.rank == comm.size - 1 else x).arguments())
    try:
        bad.run(*((other.send, other.recv) if comm.rank == comm.size - 1 else (x.send, x.recv)))
    except a2a.Error as error:
        told = f"{type(error).__name__}: {error}"
    plan.run(x.send, x.recv)
    x.check()
    return told


def aborted(comm: Comm, name: str) -> list[str]:
    """Rank 0 gives up while the others wait for it."""
    made, x = again(comm, "off"), Exchange(comm, name)
    made.alltoallv(*x.arguments())
    x.check()
    comm.barrier()
    start, told = time.monotonic(), ""
    try:
        if comm.rank == 0:
            time.sleep(0.5)
            made.abort("enough")
        else:
            work = made.alltoallv(*x.arguments(), async_op=True)
            assert work is not None
            work.wait()
    except a2a.Error as error:
        told = f"{type(error).__name__}: {error}"
    return [told, f"{time.monotonic() - start:.1f}"]


def late(comm: Comm, name: str, check: str) -> list[str]:
    """Rank 0 does not come."""
    made, x = again(comm, check), Exchange(comm, name)
    made.alltoallv(*x.arguments())
    x.check()
    comm.barrier()
    start, told = time.monotonic(), ""
    try:
        if comm.rank != 0:
            work = made.alltoallv(*x.arguments(), async_op=True, timeout=2.0)
            assert work is not None
            work.wait()
    except a2a.Error as error:
        told = f"{type(error).__name__}: {error}"
    took = time.monotonic() - start
    comm.barrier()
    made.abort()
    return [told, f"{took:.1f}"]


def dies(comm: Comm, name: str) -> tuple[str, float]:
    """Rank 0 ends in the middle of everything."""
    x = Exchange(comm, name)
    for _ in range(20):
        comm.alltoallv(*x.arguments())
    x.check()
    if comm.rank == 0:
        os.kill(os.getpid(), 9)
    start = time.monotonic()
    try:
        work = comm.alltoallv(*x.arguments(), async_op=True)
        assert work is not None
        work.wait()
    except a2a.Error as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - start
    return "", time.monotonic() - start


def refused(comm: Comm, name: str) -> list[str]:
    """What the last rank gets for tensors, and for a stream, that cannot take part, and the others for good ones."""
    framework, n, told = place(comm, name), comm.size, []
    made = again(comm, "always")  # a refusal that peers do not hear of in time would break it
    mine = comm.rank % framework.devices()
    made.connect(f"cuda:{mine}")  # or the first tensors that pass would settle which device is whose

    def tensor(shape: tuple[int, ...]) -> Any:
        return framework.tensor(framework.make(np.zeros(4 * int(np.prod(shape)), np.uint8)), 0, "float32", shape)

    send, recv = tensor((n, 2)), tensor((n, 2))
    bad: list[tuple[Any, Any, Any]] = [
        (np.zeros((n, 2), np.float32), recv, None),
        (send, np.zeros((n, 2), np.float32), None),
        (send, tensor((n, 3)), None),
    ]
    if name in ("torch", "cupy"):
        bad.append((tensor((n, 4))[:, ::2], recv, None))
    if framework.devices() > 1:
        framework.prepare((mine + 1) % framework.devices())
        bad += [(tensor((n, 2)), tensor((n, 2)), None), (send, recv, cudart.Stream())]
        framework.prepare(mine)
    for case in bad:
        give, take, stream = case if comm.rank == n - 1 else (send, recv, None)
        try:
            made.alltoall(give, take, stream=stream)
        except a2a.Error as error:
            told.append(f"{type(error).__name__}: {error}")
    x = Exchange(comm, name)
    made.alltoallv(*x.arguments())
    x.check()
    made.close()
    return told


def another_device_is_current(comm: Comm, name: str) -> None:
    """It stays that, and the exchange takes place on the device of its tensors."""
    x = Exchange(comm, name, seed=4)
    plan = comm.plan_alltoallv(*x.arguments())
    device = comm.rank % x.framework.devices()
    other = (device + 1) % x.framework.devices()
    for how in ("call", "plan", "async"):
        x.poison()
        cudart.use(other)
        if how == "plan":
            plan.run(x.send, x.recv, stream=0)
        else:
            x.run(how)
        assert cudart.current() == other
        x.framework.prepare(device)
        x.check()


def destroyed_stream(comm: Comm, name: str) -> list[str]:
    """What the last rank gets for a stream that it has destroyed, and the others for a good one: when it shall come
    after an exchange in flight, and when an exchange shall come after it."""
    made, x, told = again(comm, "always"), Exchange(comm, name), []
    made.alltoallv(*x.arguments())

    def attempt(step: Callable[[], object]) -> None:
        try:
            step()
        except a2a.Error as error:
            told.append(f"{type(error).__name__}: {error}")

    busy, named = cudart.Stream(), cudart.Stream()
    with cudart.held_up(comm.rank % x.framework.devices(), busy.cuda_stream):
        work = made.alltoallv(*x.arguments(), async_op=True, stream=busy)
        if comm.rank == comm.size - 1:
            named.destroy()  # not earlier: CUDA gives its handle to the next stream that somebody makes
        attempt(lambda: work.order_before(named.cuda_stream))
    attempt(lambda: made.alltoallv(*x.arguments(), stream=named.cuda_stream))
    x.poison()
    made.alltoallv(*x.arguments())
    x.check()
    made.close()
    return told
