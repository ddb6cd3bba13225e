"""What an exchange on a GPU costs a2a itself, with vendor_calls.cc in place of CUDA and NCCL: where that returns at
once, which needs no GPU, and where it goes on to the real libraries and takes the time there."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import cudart
import environments
import gpu_rank
import gpu_ranks
import numpy as np

import a2a

RANKS = 8
CALLS = 300
REPEATS = 20
ROUNDS = 8  # apart, because a virtual machine's neighbours slow it down for a second or so at a time
SPLIT_BYTES = 4096
SPLIT_CALLS = 100
AIMS_US = {"alltoallv": 3.0, "plan.run": 1.0}


def idle(with_torch: bool) -> dict[str, Any]:
    """By call and tensors: microseconds of a2a alone, in the fastest repeat and in the median one, and the calls of the
    vendors in an exchange."""
    library = _library()
    changes = {"A2A_CUDA_LIBRARY": library, "A2A_NCCL_LIBRARY": library, "A2A_TEST_DOUBLES": "1"}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        with tempfile.NamedTemporaryFile() as turn:
            told = a2a.spawn(_in_turn, RANKS, library, turn.name, with_torch, timeout=120)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    found: dict[str, Any] = {}
    for name in told[0]:
        times = [rank[name]["us"] for rank in told]
        found[name] = {
            "fastest_us": median(min(each) for each in times),
            "median_us": median(median(each) for each in times),
            "calls": told[0][name]["calls"],
        }
    return found


def split(ranks: int) -> dict[str, Any]:
    """By call, on a GPU: microseconds of the host, and those of them in each function of the vendors."""
    return a2a.spawn(_apart, ranks, _library(), timeout=60)[0]


def report_idle(found: dict[str, Any]) -> Iterator[str]:
    yield f"\n# a2a's own time in an uneven exchange of {RANKS} ranks, which share {len(os.sched_getaffinity(0))} CPUs"
    yield f"#{'call':<36} {'fastest(us)':>11} {'median(us)':>10} {'aim(us)':>8}"
    for name, one in found.items():
        aim = AIMS_US.get(name.partition(",")[0], 0)
        yield f" {name:<36} {one['fastest_us']:>11.2f} {one['median_us']:>10.2f} {aim or '-':>8}"
    for calls in {" ".join(f"{name}:{count:.0f}" for name, count in one["calls"].items()): 0 for one in found.values()}:
        yield f"# calls of CUDA and NCCL: {calls}"


def report_split(ranks: int, found: dict[str, Any]) -> Iterator[str]:
    yield f"\n# where the host's time goes in an uneven exchange of {ranks} ranks; also: the watch's calls, meanwhile"
    yield f"#{'call':<12} {'host(us)':>9} {'CUDA(us)':>9} {'NCCL(us)':>9} {'a2a(us)':>9}"
    for name, one in found.items():
        cuda, nccl = (sum(us for call, (_, us) in one["calls"].items() if call.startswith(by)) for by in ("cu", "nccl"))
        yield f" {name:<12} {one['us']:>9.2f} {cuda:>9.2f} {nccl:>9.2f} {one['us'] - cuda - nccl:>9.2f}"
        yield "#  " + " ".join(f"{call}:{count:.2g}x{us / count:.2g}us" for call, (count, us) in one["calls"].items())


def _library() -> str:
    return str(environments.compiled(environments.cache_directory(), "vendor_calls.cc", library=True))


def _in_turn(comm: a2a.Communicator, library: str, turn: str, with_torch: bool) -> dict[str, Any]:
    n, rank = comm.size, comm.rank
    give = [[(3 * source + target) % 7 + 1 for target in range(n)] for source in range(n)]
    take = [row[rank] for row in give]
    steps: dict[str, tuple[Callable[..., object], tuple[Any, ...]]] = {}
    for kind, (send, recv) in _tensors(sum(give[rank]), sum(take), with_torch).items():
        arguments = (send, np.array(give[rank]), recv, np.array(take))
        lists = (send, give[rank], recv, take)
        plan = comm.plan_alltoallv(*arguments)
        steps[f"alltoallv, {kind}"] = comm.alltoallv, lists
        steps[f"alltoallv, arrays, {kind}"] = comm.alltoallv, arguments
        steps[f"plan.run, {kind}"] = plan.run, (send, recv)
    for step, given in steps.values():
        for _ in range(20):  # beyond what ranks compare
            step(*given)
    found: dict[str, Any] = {name: {"us": []} for name in steps}
    for first in range(0, ROUNDS * n, n):
        comm.barrier()
        _wait_for_turn(turn, first + rank)
        for name, (step, given) in steps.items():
            one = _one(step, given, Calls(library))
            found[name] = {"us": found[name]["us"] + one["us"], "calls": one["calls"]}
        with Path(turn).open("a") as file:
            file.write(".")
        _wait_for_turn(turn, first + n)
    comm.barrier()
    return found


def _wait_for_turn(turn: str, number: int) -> None:
    """Until that many ranks have had theirs. Asleep: a rank that waits in a2a looks every 50 us whether the others are
    past it on their devices, which with more ranks than CPUs is most of what there is to measure."""
    while Path(turn).stat().st_size < number:
        time.sleep(0.01)


def _apart(comm: a2a.Communicator, library: str) -> dict[str, Any]:
    gpu_ranks.place(comm, gpu_ranks.DRIVER)  # which loads the driver that the tensors come from
    os.environ["VENDOR_CALLS_CUDA"] = os.environ.get("A2A_CUDA_LIBRARY", "libcuda.so.1")
    os.environ["VENDOR_CALLS_NCCL"] = os.environ.get("A2A_NCCL_LIBRARY") or _nccl()
    os.environ.update({"A2A_CUDA_LIBRARY": library, "A2A_NCCL_LIBRARY": library, "A2A_TEST_DOUBLES": "1"})
    exchange = gpu_rank.Exchange(comm, SPLIT_BYTES)
    buffers = gpu_rank.DriverBuffers(exchange)
    calls, found = Calls(library), {}
    for name, step in gpu_rank.contenders(comm, exchange, buffers, with_torch=False).items():
        for _ in range(20):
            step()
        cudart.synchronize(buffers.stream)
        comm.barrier()
        calls.reset()
        nanoseconds = 0
        for _ in range(SPLIT_CALLS):
            start = time.perf_counter_ns()
            step()
            nanoseconds += time.perf_counter_ns() - start
            cudart.synchronize(buffers.stream)
        counted = {each: (count / SPLIT_CALLS, ns / SPLIT_CALLS / 1e3) for each, (count, ns) in calls.read().items()}
        found[name] = {
            "us": nanoseconds / SPLIT_CALLS / 1e3,
            "calls": {each: both for each, both in counted.items() if both[0]},
        }
    comm.barrier()
    return found


def _nccl() -> str:
    """Where a2a would find NCCL."""
    for folder in sys.path:
        file = Path(folder) / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        if file.exists():
            return str(file)
    return "libnccl.so.2"


def _one(step: Callable[..., object], given: tuple[Any, ...], calls: Calls) -> dict[str, Any]:
    times = []
    for _ in range(REPEATS):
        calls.reset()
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            step(*given)
        times.append((time.perf_counter_ns() - start) / CALLS / 1e3)
    return {"us": times, "calls": {name: count / CALLS for name, (count, _) in calls.read().items() if count}}


def _tensors(give: int, take: int, with_torch: bool) -> dict[str, tuple[Any, Any]]:
    """Pairs of tensors that say that they are on a GPU; nobody touches their memory."""
    device_type = 2
    made: dict[str, Any] = {}
    made["a2a's tensors"] = tuple(
        a2a.from_pointer(address << 40, (rows, 4), "float32", device=(device_type, 0))
        for address, rows in ((1, give), (2, take))
    )
    if with_torch:
        import torch

        made["torch's tensors"] = tuple(torch.zeros(rows, 4, device="cuda:0") for rows in (give, take))
    return made


class Calls:
    """What vendor_calls.cc has counted."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)

    def reset(self) -> None:
        self._library.vendor_calls_reset()

    def read(self) -> dict[str, tuple[int, int]]:
        """By function: how often it was called, and nanoseconds in it."""
        name, count, nanoseconds = ctypes.c_char_p(), ctypes.c_int64(), ctypes.c_int64()
        found: dict[str, tuple[int, int]] = {}
        out = [ctypes.byref(value) for value in (name, count, nanoseconds)]
        while self._library.vendor_calls(len(found), *out):
            found[(name.value or b"").decode()] = (count.value, nanoseconds.value)
        return found
