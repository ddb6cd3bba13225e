"""What the backend "a2a" has as one among those of a group: from Torch 2.14 on."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from commands import command, environment
from rank_pool import Pool
from torch_worlds import start, true_backends

import a2a

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.timeout(110),
    pytest.mark.skipif(not true_backends(), reason="torch has no backends that are written in Python before 2.14"),
]

SIZE = 3
WAIT = timedelta(seconds=20)


def new_group(comm: a2a.Communicator, backend: str = "a2a", size: int = SIZE) -> Any:
    """A group of the first ranks; None on the others."""
    import torch.distributed as dist

    start(comm)
    at = dist.new_group(list(range(size)), backend=backend, timeout=WAIT)
    return at if comm.rank < size else None


def backend_of(at: Any) -> Any:
    return at._get_backend(torch.device("cpu"))


# ---- beside other backends -------------------------------------------------------------------------------------------


def beside_gloo(comm: a2a.Communicator, backend: str) -> None:
    import a2a.torch as ours
    import torch.distributed as dist
    from a2a.torch import BackendA2A

    at = new_group(comm, backend)
    if at is None:
        return
    assert type(at) is dist.ProcessGroup and dist.get_backend_config(at) == backend
    mine, theirs = (at._get_backend(torch.device(device)) for device in ("cpu", "cuda"))
    assert isinstance(mine, BackendA2A) and isinstance(theirs, dist.ProcessGroupGloo)
    assert dist.get_backend_impl(at, torch.device("cpu")) is mine and (mine.rank(), mine.size()) == (comm.rank, SIZE)
    x = torch.tensor([comm.rank + 1.0])
    for call in (lambda: dist.all_reduce(x, group=at), lambda: ours.all_reduce(x, group=at),
                 lambda: theirs.allreduce([x]).wait()):  # fmt: skip
        before = x.clone()
        call()
        assert x.item() == (6 if before.item() < 4 else 3 * before.item())
    # Gloo sends what a2a does not see, and a2a's numbers stay in step.
    objects: list[Any] = [None] * SIZE
    dist.all_gather_object(objects, comm.rank, group=at)
    dist.monitored_barrier(at, WAIT)
    assert objects == [0, 1, 2]
    at.set_timeout(timedelta(seconds=9))
    assert mine.options._timeout == theirs.options._timeout == timedelta(seconds=9)
    part = at.split_group([2, 0])
    assert (part is None) == (comm.rank == 1)
    if part is not None:
        y = torch.ones(1)
        part.allreduce([y]).wait()
        part._get_backend(torch.device("cuda")).allreduce([y]).wait()
        assert y.item() == 4 and backend_of(part).rank() == part.rank() == [2, 0].index(comm.rank)
    dist.destroy_process_group(at)
    assert mine.comm.closed


@pytest.mark.parametrize("backend", ["cpu:a2a,cuda:gloo", "cuda:gloo,cpu:a2a"])
def test_two_backends_of_one_group(ranks: Pool, backend: str) -> None:
    ranks.run(beside_gloo, backend)


_WITH_CUDA = """
import torch, torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
torch.cuda.is_available = dist.is_nccl_available = lambda: True
made = []
def nccl(opts, _):
    made.append((opts.group_rank, opts.group_size))
    return dist.ProcessGroupGloo(opts.store, opts.group_rank, opts.group_size, opts.timeout)
dist.Backend._plugins["NCCL"] = dist.Backend._BackendPlugin(nccl, True)
dist.init_process_group("a2a", store=dist.HashStore(), rank=0, world_size=1)
group = dist.group.WORLD
print(made, dist.get_backend(), dist.get_backend_config(), *(
    type(group._get_backend(torch.device(device))).__name__ for device in ("cpu", "cuda")))
dist.destroy_process_group()
"""


def test_with_cuda_the_name_alone_makes_nccl_too() -> None:
    """A stand-in for a machine with a GPU: Gloo in place of NCCL."""
    done = subprocess.run([sys.executable, "-c", _WITH_CUDA], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[(0, 1)] a2a cpu:a2a,cuda:nccl BackendA2A ProcessGroupGloo\n", done.stdout + done.stderr


# ---- works -----------------------------------------------------------------------------------------------------------


def use_works(comm: a2a.Communicator) -> None:
    """Torch wraps them, and passes nothing on but wait() and a future for C++ code."""
    import torch.distributed as dist

    at = new_group(comm)
    if at is None:
        return
    if comm.rank == 2:
        dist.send(torch.ones(2), group=at, group_dst=0)
        dist.send(torch.ones(2), group=at, group_dst=0)
    elif comm.rank == 0:
        x = torch.zeros(2)
        assert dist.recv(x, group=at) == 2 and x.tolist() == [1, 1]
        work = at.recv_anysource([x], 0)
        work.wait()
        assert work._source_rank() == 2
    x = torch.ones(2)
    work = dist.all_reduce(x, group=at, async_op=True)
    work.wait()
    assert work.is_completed() and work.is_success() and work.exception() is None and work.result()[0] is x
    seen = []
    work = dist.all_reduce(x, group=at, async_op=True)
    work.get_future().then(lambda done: seen.append(done.value()[0])).wait()
    assert seen[0] is x and x.tolist() == [9, 9]
    # Those of other backends are asked as before.
    work = dist.all_reduce(
        x, async_op=True, group=dist.new_group([comm.rank], backend="gloo", use_local_synchronization=True)
    )
    work.wait()
    assert work.is_completed() and work.is_success() and x.tolist() == [9, 9]
    dist.destroy_process_group(at)


def test_works(ranks: Pool) -> None:
    ranks.run(use_works)


def coalesce(comm: a2a.Communicator) -> None:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    at = new_group(comm)
    if at is None:
        return
    cpu, x, y = torch.device("cpu"), torch.ones(1), torch.ones(SIZE)
    with c10d._coalescing_manager(at, cpu, async_ops=True) as several:
        dist.all_reduce(x, group=at)
        dist.all_to_all_single(torch.empty(SIZE), y, group=at)
    several.wait()
    assert x.item() == SIZE
    backend = backend_of(at)
    backend.start_coalescing()
    works = [backend.allreduce([x]), backend.broadcast(x, 0)]
    whole = backend.end_coalescing()
    assert len(works) == 2 and whole.wait() and whole.is_completed() and x.item() == SIZE * SIZE
    assert not backend._seers
    dist.destroy_process_group(at)


def test_coalescing(ranks: Pool) -> None:
    ranks.run(coalesce)


# ---- what torch refuses before any backend sees it -------------------------------------------------------------------


def refuse_on_one_rank(comm: a2a.Communicator, name: str) -> None:
    import torch.distributed as dist

    at, x = new_group(comm), torch.ones(6)
    if at is None:
        return
    wrong, kind = {
        "splits no integers": (lambda: dist.all_to_all_single(torch.ones(6), x, [2.0, 2, 2], group=at), TypeError),
        "splits no list": (lambda: dist.all_to_all_single(torch.ones(6), x, 3, group=at), TypeError),
        "sparse": (lambda: dist.all_to_all_single(torch.ones(6), x.to_sparse(), group=at), NotImplementedError),
        "no tensor": (lambda: at.allreduce([3]), TypeError),
    }[name]
    for _ in range(2):
        with pytest.raises(kind if comm.rank == 1 else a2a.MismatchError, match=None if comm.rank == 1 else "rank 1"):
            wrong() if comm.rank == 1 else dist.all_to_all_single(torch.ones(6), x, group=at)
    # What a2a itself refuses, or a program raises within it, is told once.
    with pytest.raises((a2a.InvalidArgumentError, a2a.MismatchError)):
        dist.all_to_all_single(torch.ones(6), x, [6, 6, 6] if comm.rank == 1 else None, group=at)
    dist.all_reduce(x, group=at)
    assert x.tolist() == [SIZE] * 6
    dist.destroy_process_group(at)


@pytest.mark.parametrize("name", ["splits no integers", "splits no list", "sparse", "no tensor"])
def test_the_peers_hear_of_what_torch_refuses(ranks: Pool, name: str) -> None:
    ranks.run(refuse_on_one_rank, name)


# ---- windows ---------------------------------------------------------------------------------------------------------


def put(comm: a2a.Communicator) -> None:
    import torch.distributed as dist

    at = new_group(comm)
    if at is None:
        return
    assert dist._supports_window(at)
    inbox = torch.zeros(SIZE)
    window = dist._new_window(inbox, at)
    for peer in range(SIZE):
        window.put(torch.tensor([comm.rank + 1.0]), peer, comm.rank)
        window.signal(peer)
    for peer in range(SIZE):
        window.wait_signal(peer)
    assert inbox.tolist() == [1, 2, 3]
    window.tensor_deregister()
    dist.destroy_process_group(at)


def test_windows_of_torch(ranks: Pool) -> None:
    ranks.run(put)


# ---- fewer ranks -----------------------------------------------------------------------------------------------------


def shrink(comm: a2a.Communicator, flag: str) -> None:
    import torch.distributed as dist

    at, count = new_group(comm), dist.distributed_c10d._world.group_count
    if at is None:
        return
    former, x = backend_of(at), torch.ones(1)
    assert former.supports_shrinking
    dist.all_reduce(x, group=at)
    work = at.recv([torch.zeros(1)], 1, 3) if comm.rank == 0 else None
    if comm.rank == 1:  # it takes no part, and is told at its next operation
        with pytest.raises(a2a.AbortedError, match=r"was shrunk|was aborted"):
            while True:
                dist.all_reduce(x, group=at)
        dist.destroy_process_group(at)
        return
    left = dist.shrink_group([1], at, shrink_flags=getattr(dist.distributed_c10d, flag))
    assert (left.rank(), left.size()) == (comm.rank // 2, 2) and former.comm.closed
    if work is not None:
        with pytest.raises(a2a.AbortedError):
            work.wait()
    y = torch.ones(1)
    dist.all_reduce(y, group=left)
    assert y.item() == 2 and dist.get_process_group_ranks(left) == [0, 2]
    dist.destroy_process_group(left)
    dist.distributed_c10d._world.group_count = count  # by which torch names groups; who is left out has not counted


@pytest.mark.parametrize("flag", ["SHRINK_DEFAULT", "SHRINK_ABORT"])
def test_shrink(ranks: Pool, flag: str) -> None:
    ranks.run(shrink, flag)


# ---- hooks -----------------------------------------------------------------------------------------------------------


def hook_ends(comm: a2a.Communicator) -> None:
    import torch.distributed as dist

    at, seen = new_group(comm), []
    if at is None:
        return
    at._register_on_completion_hook(lambda info: seen.append(info))
    with pytest.raises(RuntimeError, match="a hook already"):
        at._register_on_completion_hook(print)
    assert at._has_hooks()
    x = torch.ones(2)
    dist.all_reduce(x, group=at)
    work = dist.all_gather_single(torch.zeros(2 * SIZE), x, group=at, async_op=True)
    if comm.rank:
        dist.send(x, group=at, group_dst=0)
    else:
        dist.recv(x, group=at), dist.recv(x, group=at)
    work.wait()
    at._wait_for_pending_works()
    kinds = [str(info.op_type).removeprefix("OpType.") for info in sorted(seen, key=lambda info: info.seq)]
    last = ["RECVANYSOURCE"] * 2 if comm.rank == 0 else ["SEND"]
    assert kinds == ["ALLREDUCE", "_ALLGATHER_BASE", *last]
    for info in seen:
        assert abs(info.active_duration - (info.time_finished - info.time_started)) < timedelta(milliseconds=1)
    dist.destroy_process_group(at)


def test_completion_hook(ranks: Pool) -> None:
    ranks.run(hook_ends)


def hook_aborts(comm: a2a.Communicator, how: str) -> None:
    import torch.distributed as dist

    at, called = new_group(comm, size=2), []
    if at is None:
        comm.barrier(), comm.barrier()
        return
    at.register_abort_hook(1, lambda: called.append(1))
    at.register_abort_hook(2, lambda: called.append(2))
    at.unregister_abort_hook(2)
    backend = backend_of(at)
    dist.all_reduce(torch.ones(1), group=at)
    with pytest.raises(a2a.MismatchError):  # which breaks nothing
        dist.all_reduce(torch.ones(1 + comm.rank), group=at)
    assert not called and backend.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
    comm.barrier()
    if how == "abort":
        at.abort()
    elif comm.rank == 0:
        at.set_timeout(timedelta(milliseconds=200))
        with pytest.raises(a2a.TimeoutError):
            if how == "call":
                dist.all_reduce(torch.ones(1), group=at)
            else:
                dist.all_reduce(torch.ones(1), group=at, async_op=True).wait()
        deadline = time.monotonic() + 20
        while not called and time.monotonic() < deadline:
            time.sleep(0.01)
        assert backend.get_error() == torch._C._distributed_c10d.ErrorType.REMOTE_ERROR
    assert called == ([1] if how == "abort" or comm.rank == 0 else [])
    comm.barrier()
    dist.destroy_process_group(at)
    assert called.count(1) <= 1


@pytest.mark.parametrize("how", ["abort", "call", "work"])
def test_abort_hooks(ranks: Pool, how: str) -> None:
    ranks.run(hook_aborts, how)


def hook_calls(comm: a2a.Communicator) -> None:
    """Torch's own hooks, before and after each operation of a group."""
    import torch.distributed as dist

    at, before, after = new_group(comm), [], []
    if at is None:
        return
    at.register_pre_hook(1, lambda args: before.append((args.name.name, args.op_id, args.root)))
    at.register_post_hook(2, lambda args: after.append((args.name.name, args.op_id)))
    x = torch.ones(2)
    dist.all_reduce(x, group=at)
    dist.broadcast(x, group=at, group_src=1)
    at.unregister_pre_hook(1)
    at.unregister_post_hook(2)
    dist.all_reduce(x, group=at)
    assert [name for name, _, _ in before] == [name for name, _ in after] == ["ALLREDUCE", "BROADCAST"]
    assert [number for _, number, _ in before] == [number for _, number in after] and before[1][2] == 1
    dist.destroy_process_group(at)


def test_hooks_around_operations(ranks: Pool) -> None:
    ranks.run(hook_calls)


# ---- monitored_barrier of torch itself -------------------------------------------------------------------------------


def monitored(comm: a2a.Communicator) -> str:
    import torch.distributed as dist

    at = new_group(comm)
    if at is None:
        return ""
    dist.monitored_barrier(at, WAIT)
    said = ""
    if comm.rank == 0:
        with pytest.raises(RuntimeError) as caught:
            dist.monitored_barrier(at, timedelta(milliseconds=300), wait_all_ranks=True)
        said = str(caught.value)
    dist.barrier(at)
    dist.destroy_process_group(at)
    return said


def test_monitored_barrier(ranks: Pool) -> None:
    assert ranks.run(monitored)[0] == "[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 300 ms"


# ---- torch's own checks ----------------------------------------------------------------------------------------------

_DETAIL = """
import gc, torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group("a2a", timeout=timedelta(seconds=20))
gc.collect()
x, n = torch.ones(2), dist.get_world_size()
dist.all_reduce(x)
work = dist.all_reduce(x, async_op=True)
work.wait()
import a2a.torch
a2a.torch.all_reduce(x)  # on the same communicator
assert x.tolist() == [8, 8] and work.is_completed()
try:
    dist.all_reduce(torch.ones(2 + dist.get_rank()))
    raise SystemExit("torch has not compared the ranks")
except RuntimeError as error:
    assert "Detected mismatch" in str(error), error
dist.destroy_process_group()
"""


def test_under_debug_detail(tmp_path: Path) -> None:
    """Torch puts a backend of its own around this one."""
    (tmp_path / "program.py").write_text(_DETAIL)
    line = command("run", "-n", "2", "--no-prefix", str(tmp_path / "program.py"))
    env = environment(TORCH_DISTRIBUTED_DEBUG="DETAIL")
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
