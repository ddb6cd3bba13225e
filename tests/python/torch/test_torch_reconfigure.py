"""A process group whose ranks change in place: what torch's own tests of reconfigure() require, and what a rank that is
killed leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rank_pool import Pool
from torch_worlds import start, true_backends

import a2a

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)

WAIT = timedelta(seconds=20)


def asked(uuid: int, handles: Any, timeout: timedelta | None = None) -> Any:
    return SimpleNamespace(uuid=uuid, handles=handles, timeout=timeout, hints={})


def made(comm: a2a.Communicator, salt: str) -> tuple[Any, list[str]]:
    """A group of this rank, and the handles of all."""
    import torch.distributed as dist
    from a2a.torch._process_group.reconfigurable import ReconfigurableProcessGroup

    start(comm)
    group = ReconfigurableProcessGroup(dist.HashStore(), comm.rank, comm.size, f"of {salt}", WAIT)
    return group, [one.decode() for one in comm.allgather_bytes(group.get_reconfigure_handle().encode())]


def ranks_of(group: Any) -> list[int]:
    """Who is who, by two operations that all take part in, one of them through C++."""
    import torch.distributed as dist

    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    assert x.item() == group.size() == dist.get_world_size(group)
    places = [torch.zeros(1) for _ in range(group.size())]
    group.allgather([places], [torch.tensor([float(os.getpid())])]).wait()
    return [int(one.item()) for one in places]


def change(comm: a2a.Communicator) -> None:
    import a2a.torch as ours

    group, handles = made(comm, "change")
    with pytest.raises(a2a.AbortedError, match=r"has no members yet; call .*_reconfigure"):
        group.allreduce([torch.ones(1)])
    assert group.supports_reconfigure and group.get_backend(torch.device("cpu")) is group
    # All of them, in reverse; then two groups at once, with uuids of their own; then all again, as a set.
    assert group.reconfigure(asked(1, handles[::-1])).wait()
    assert (group.rank(), group.size()) == (comm.size - 1 - comm.rank, comm.size)
    first = ranks_of(group)
    half = comm.rank % 2
    group.reconfigure(asked(10 + half, handles[half::2], WAIT)).wait()
    assert (group.rank(), group.size()) == (comm.rank // 2, comm.size // 2)
    assert set(ranks_of(group)) == set(first[::-1][half::2])
    x = torch.ones(2)
    ours.all_reduce(x, group=group)  # a2a.torch has the new ranks, too
    assert x.tolist() == [comm.size // 2] * 2
    without = handles[:half] + handles[half + 1 :]
    for wrong, words in ((asked(1, handles), "already used"), (asked(2, without), "handle")):
        if words == "handle" and comm.rank != half:
            continue
        with pytest.raises(RuntimeError, match=words):
            group.reconfigure(wrong).wait()
    ranks_of(group)  # a call that was refused changes nothing
    comm.barrier()
    group.reconfigure(asked(-3, set(handles))).wait()
    assert group.rank() == sorted(handles).index(handles[comm.rank]) and len(ranks_of(group)) == comm.size
    # After abort() there is no error, and the group may have members again.
    group.abort()
    assert group.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
    with pytest.raises(a2a.AbortedError, match="was aborted"):
        group.barrier()
    comm.barrier()
    group.reconfigure(asked(4, handles)).wait()
    ranks_of(group)
    group.monitored_barrier(WAIT)
    comm.barrier()
    group.shutdown()
    there = weakref.ref(group)
    del group
    assert there() is None  # without the garbage collector: what a group holds ends with it


def test_ranks_change_in_place(ranks: Pool) -> None:
    ranks.run(change)


def join_late(comm: a2a.Communicator) -> None:
    """Rank 0 was in no group when the others were; they lose a message that was under way, and hear it."""
    group, handles = made(comm, "late")
    if comm.rank:
        group.reconfigure(asked(1, handles[1:])).wait()
        ranks_of(group)
        work = group.recv([torch.zeros(1)], 0, 5) if group.rank() == 1 else None
    group.reconfigure(asked(2, handles)).wait()
    assert group.rank() == comm.rank
    ranks_of(group)
    if comm.rank == 2:
        with pytest.raises(a2a.AbortedError, match="generation"):
            work.wait()
    comm.barrier()
    group.shutdown()


def test_a_rank_joins_late(ranks: Pool) -> None:
    ranks.run(join_late)


def disagree(comm: a2a.Communicator) -> None:
    group, handles = made(comm, "disagree")
    if comm.rank >= 3:
        comm.barrier()
        return
    with pytest.raises(a2a.MismatchError):
        group.reconfigure(asked(1, handles[:3] if comm.rank else [handles[0], handles[2], handles[1]]))
    with pytest.raises(a2a.AbortedError, match="could not be reconfigured"):
        group.barrier()
    if comm.rank != 2:  # who does not come is named
        with pytest.raises(a2a.TimeoutError, match="timeout"):
            group.reconfigure(asked(2, handles[:3], timedelta(milliseconds=300)))
    comm.barrier()  # rank 2 is there until then


def test_ranks_that_disagree_or_do_not_come(ranks: Pool) -> None:
    ranks.run(disagree)


_PROGRAM = """
import os, signal, sys, time, torch, torch.distributed as dist
from datetime import timedelta
rank, store = int(sys.argv[1]), dist.FileStore(sys.argv[2], 3)
dist.init_process_group("a2a", store=store, rank=rank, world_size=3, enable_reconfigure=True,
                        timeout=timedelta(seconds=20))
group = dist.group.WORLD
assert dist._supports_reconfigure() and not dist._supports_window()
def handles(step, ranks):
    store.set(f"{step} {rank}", dist._get_reconfigure_handle())
    return [store.get(f"{step} {peer}").decode() for peer in ranks]
dist._reconfigure(7, handles("first", range(3))).wait()
x = torch.ones(2)
dist.all_reduce(x)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
began = time.monotonic()
try:
    dist.all_reduce(x)
    dist.all_reduce(x)
    print("no error")
except Exception as error:
    print("Connection closed by peer" in str(error), "rank 1" in str(error), time.monotonic() - began < 5)
backend = dist.get_backend_impl(group, torch.device("cpu"))
print(backend.supports_reconfigure, backend.get_error())
backend.abort()
print(backend.get_error())
dist._reconfigure(8, set(handles("second", (0, 2))), timeout=timedelta(seconds=9), hints={"a": "b"}).wait()
x = torch.ones(2)
dist.all_reduce(x)
print(group is dist.group.WORLD, dist.get_world_size(), sorted([dist.get_rank(), 1 - dist.get_rank()]), x.tolist())
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
net(torch.full((1, 2), 1.0 + dist.get_rank())).sum().backward()
print(net.module.weight.grad.tolist())
dist.destroy_process_group()
"""


def run_all(program: str, arguments: Iterable[str], size: int) -> list[tuple[int, list[str], str]]:
    """The exit code, lines and errors of each rank."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    deadline, ended = time.monotonic() + 90, []
    try:
        for process in processes:
            said, errors = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            ended.append((process.returncode, said.splitlines(), errors))
    finally:
        for process in processes:
            process.kill()
    return ended


@pytest.mark.skipif(not true_backends(), reason="torch has no enable_reconfigure before 2.14")
def test_survivors_of_a_kill_go_on_in_the_same_group(tmp_path: Path) -> None:
    ended = run_all(_PROGRAM, [str(tmp_path / "store")], 3)
    assert ended[1][0] == -9, ended[1][2]
    for code, lines, errors in (ended[0], ended[2]):
        assert code == 0, errors
        assert lines == [
            "True True True", "True ErrorType.REMOTE_ERROR", "ErrorType.SUCCESS", "True 2 [0, 1] [2.0, 2.0]",
            "[[1.5, 1.5]]",
        ]  # fmt: skip


_SEVERAL = """
import torch, torch.distributed as dist, a2a.torch
dist.init_process_group("cpu:a2a,cuda:gloo", store=dist.HashStore(), rank=0, world_size=1, enable_reconfigure=True)
try:
    dist._supports_reconfigure()
except RuntimeError as error:
    print("multiple backends" in str(error))
"""


@pytest.mark.skipif(not true_backends(), reason="torch has no enable_reconfigure before 2.14")
def test_a_group_of_several_backends_is_refused() -> None:
    assert run_all(_SEVERAL, [], 1)[0][1] == ["True"]
