"""Works and their futures in the hands of torch's own code, and groups that end while an operation runs."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from rank_pool import Pool
from torch_worlds import calls, comm_of, group, start

import a2a

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)

SIZE = 2
WAIT = timedelta(seconds=20)


# ---- the registry that wait_tensor() asks ----------------------------------------------------------------------------


def in_flight(dist: Any, at: Any, rank: int) -> list[tuple[list[Any], Any, list[Any]]]:
    """Each operation, begun: its outputs, its work, and what they will have."""
    x = torch.full((2,), rank + 1.0)

    def several() -> list[Any]:
        return [torch.zeros(2) for _ in range(SIZE)]

    begun = []

    def begin(outputs: list[Any], call: Any, *wanted: float) -> None:
        begun.append((outputs, call, [[one] * 2 for one in wanted]))

    y = x.clone()
    begin([y], dist.all_reduce(y, group=at, async_op=True), 3)
    y = x.clone()
    begin([y], dist.broadcast(y, group=at, group_src=1, async_op=True), 2)
    y = several()
    begin(y, dist.all_gather(y, x, group=at, async_op=True), 1, 2)
    y = torch.zeros(4)
    begin([y], dist.all_gather_single(y, x, group=at, async_op=True))
    y = several()
    begin(y, dist.all_to_all(y, [x, x + 10], group=at, async_op=True), 1 + 10 * rank, 2 + 10 * rank)
    y = torch.zeros(2)
    begin([y], dist.all_to_all_single(y, x, group=at, async_op=True))
    y = torch.zeros(2)
    begin([y], dist.reduce_scatter(y, [x, x + 10], group=at, async_op=True), 3 + 20 * rank)
    y = torch.zeros(2)
    begin([y], dist.reduce_scatter_single(y, torch.cat([x, x + 10]), group=at, async_op=True), 3 + 20 * rank)
    y = torch.zeros(2)
    begin([y], dist.scatter(y, [x, x + 10] if rank == 0 else None, group=at, group_src=0, async_op=True), 1 + 10 * rank)
    y = several() if rank == 0 else []
    begin(y, dist.gather(x, y or None, group=at, group_dst=0, async_op=True), 1, 2)
    y = torch.zeros(2)
    sent = dist.isend(x, group=at, group_dst=1 - rank)
    begin([y], dist.irecv(y, group=at, group_src=1 - rank), 2 - rank)
    begun.append(([], sent, []))
    return begun


def wait_by_tensor(comm: a2a.Communicator, way: str) -> None:
    at, dist = group(comm, way, SIZE), calls(way)
    if comm.rank >= SIZE:
        return
    from torch._C import _distributed_c10d as c10d
    from torch.distributed._functional_collectives import allow_inflight_collective_as_graph_input_ctx

    wait = torch.ops._c10d_functional.wait_tensor
    # Without the context nothing is registered.
    before = c10d._get_work_registry_size()
    for _, work, _ in in_flight(dist, at, comm.rank):
        work.wait()
    assert c10d._get_work_registry_size() == before
    with allow_inflight_collective_as_graph_input_ctx():
        begun = in_flight(dist, at, comm.rank)
        for outputs, _, wanted in begun:
            for output, want in zip(outputs, wanted, strict=False):
                assert wait(output).tolist() == want
        for _, work, _ in begun:
            work.wait()
        for outputs, _, _ in begun:
            for output in outputs:
                wait(output)
        # A program that waits for the work itself leaves nothing, and does not wait for others of the same memory.
        x = torch.ones(4)
        first = dist.all_reduce(x[:2], group=at, async_op=True)
        second = dist.irecv(x[2:], group=at, group_src=1 - comm.rank)
        first.wait()
        dist.isend(torch.full((2,), 7.0), group=at, group_dst=1 - comm.rank).wait()
        assert wait(x).tolist() == [2, 2, 7, 7]
        second.wait()
    assert c10d._get_work_registry_size() == before


@pytest.mark.parametrize("way", ["backend", "functions", "communicator"])
def test_wait_tensor(ranks: Pool, way: str) -> None:
    ranks.run(wait_by_tensor, way)


# ---- futures ---------------------------------------------------------------------------------------------------------


def use_hooks(comm: a2a.Communicator) -> None:
    """DDP's own hooks in C++ take a list of tensors out of the future."""
    import torch.distributed as dist

    at = group(comm, "backend", SIZE)
    if comm.rank >= SIZE:
        return
    for hook in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2, bias=False), process_group=at)
        net._register_builtin_comm_hook(hook)
        net(torch.full((1, 3), comm.rank + 1.0)).sum().backward()
        assert net.module.weight.grad.tolist() == [[1.5] * 3] * 2


def test_builtin_hooks(ranks: Pool) -> None:
    ranks.run(use_hooks)


def fail_in_future(comm: a2a.Communicator) -> None:
    """C++ code, which waits for several futures here, sees the error. The future of several works blocks nobody."""
    at = group(comm, "backend", SIZE)
    if comm.rank >= SIZE:
        return
    work = at.allreduce(torch.ones(2 + comm.rank))
    with pytest.raises(RuntimeError, match="elements"):
        torch.futures.collect_all([work.get_future()]).wait()
    x = torch.ones(2)
    future = at.allreduce(x).get_future()
    torch.futures.collect_all([future]).wait()
    assert future.value()[0] is x
    if comm.rank == 0:
        tensors = [torch.ones(2), torch.ones(3)]
        future = at.allreduce_coalesced(tensors).get_future()
        assert not future.done()
        comm.send(torch.ones(1), 1)
        assert [one.tolist() for one in future.wait()] == [[2, 2], [2, 2, 2]]
    else:
        comm.recv(torch.ones(1), 0)
        at.allreduce_coalesced([torch.ones(2), torch.ones(3)]).wait()


def test_future_values_and_errors(ranks: Pool) -> None:
    ranks.run(fail_in_future)


def wait_in_callbacks(comm: a2a.Communicator) -> None:
    """More callbacks than torch's pool has threads wait for one more future."""
    at = group(comm, "backend", SIZE)
    if comm.rank >= SIZE:
        return
    count = torch.get_num_interop_threads() + 1
    x = torch.full((2,), comm.rank + 1.0)
    if comm.rank == 0:
        begun = [at.allreduce(torch.ones(2)) for _ in range(count)]
        last = at.allreduce(x).get_future()
        inside = threading.Barrier(count + 1)

        def call_back(_: Any) -> Any:
            inside.wait(20)
            return last.wait()

        waiting = [work.get_future().then(call_back) for work in begun]
        comm.send(torch.ones(1), 1)
        inside.wait(20)
        comm.send(torch.ones(1), 1)
        ended = threading.Event()
        torch.futures.collect_all(waiting).add_done_callback(lambda _: ended.set())
        assert ended.wait(20)
        assert all(future.value()[0].tolist() == [3, 3] for future in waiting)
    else:
        comm.recv(torch.ones(1), 0)
        for _ in range(count):
            at.allreduce(torch.ones(2)).wait()
        comm.recv(torch.ones(1), 0)
        at.allreduce(x).get_future().wait()


def take_many_futures(comm: a2a.Communicator) -> int:
    at = group(comm, "backend", SIZE)
    if comm.rank >= SIZE:
        return 0
    comm.recv(torch.ones(1), 0) if comm.rank == 1 else None
    tensors = [torch.full((3,), float(comm.rank + step)) for step in range(50)]
    futures = [at.allreduce(one).get_future() for one in tensors]
    threads = sum(thread.name == "a2a futures" for thread in threading.enumerate())
    comm.send(torch.ones(1), 1) if comm.rank == 0 else None
    torch.futures.wait_all(futures)
    assert [one[0].item() for one in tensors] == [2.0 * step + 1 for step in range(50)]
    return threads


def test_futures_share_their_threads(ranks: Pool) -> None:
    assert 1 <= max(ranks.run(take_many_futures)) <= 2


def test_callbacks_that_wait(ranks: Pool) -> None:
    ranks.run(wait_in_callbacks)


def read_in_python(comm: a2a.Communicator) -> None:
    """The future that Python code gets raises the operation's own error, in a compiled program as well."""
    import torch.distributed as dist

    at = group(comm, "backend", SIZE)
    if comm.rank >= SIZE:
        return

    def sum_of(x: Any) -> Any:
        work = dist.all_reduce(x, group=at, async_op=True)
        assert work is not None
        work.get_future().wait()
        return x + 1

    assert torch.compile(sum_of, backend="eager")(torch.ones(2)).tolist() == [3, 3]
    assert at.barrier().get_future().wait() == []
    with pytest.raises(RuntimeError, match=r"(?s)MismatchError.*elements"):
        at.allreduce(torch.ones(2 + comm.rank)).get_future().wait()


def test_futures_of_python(ranks: Pool) -> None:
    ranks.run(read_in_python)


# ---- the end of a group ----------------------------------------------------------------------------------------------


def destroy_while_peer_waits(comm: a2a.Communicator) -> None:
    """A rank that leaves because of an error of its own gets no other one, and torch forgets the group."""
    import torch.distributed as dist

    start(comm)
    at = dist.new_group([0, 1], backend="a2a", timeout=WAIT)
    if comm.rank == 0:
        with pytest.raises(a2a.MismatchError, match="rank 1 calls close"):
            dist.all_reduce(torch.ones(4), group=at)
    if comm.rank < SIZE:
        dist.destroy_process_group(at)
        assert comm_of(at).closed and at not in dist.distributed_c10d._world.pg_map


def test_destroy_while_a_peer_waits(ranks: Pool) -> None:
    ranks.run(destroy_while_peer_waits)


# ---- the end of a group, from another thread -------------------------------------------------------------------------


def abort_from_thread(comm: a2a.Communicator, end: str) -> None:
    import torch.distributed as dist

    start(comm)
    at = dist.new_group([0, 1], backend="a2a", timeout=WAIT)
    said: list[Any] = []
    inside = threading.Event()

    def watch() -> None:
        inside.wait()
        time.sleep(0.2)
        try:
            getattr(at, end)()
            said.append("ended")
        except Exception as error:
            said.append(error)

    if comm.rank == 0:
        thread = threading.Thread(target=watch)
        thread.start()
        inside.set()
        if end == "abort":
            with pytest.raises(a2a.AbortedError):
                dist.all_reduce(torch.ones(4), group=at)
        else:  # shutdown() is collective, and so is refused
            dist.all_reduce(torch.ones(4), group=at)
        thread.join()
        if end == "abort":
            assert said == ["ended"] and comm_of(at).closed
        else:
            assert isinstance(said[0], a2a.InvalidArgumentError) and "another thread" in str(said[0])
            assert not comm_of(at).closed
    elif comm.rank == 1:
        time.sleep(0.6)
        if end == "abort":
            with pytest.raises(a2a.AbortedError):
                dist.all_reduce(torch.ones(4), group=at)
        else:
            dist.all_reduce(torch.ones(4), group=at)
            with pytest.raises(a2a.MismatchError, match="another thread"):
                dist.all_reduce(torch.ones(4), group=at)
    if comm.rank < 2:
        dist.destroy_process_group(at)
        assert comm_of(at).closed


@pytest.mark.parametrize("end", ["abort", "shutdown"])
def test_end_from_another_thread(ranks: Pool, end: str) -> None:
    ranks.run(abort_from_thread, end)


# ---- what a group leaves in the store --------------------------------------------------------------------------------


def count_keys(comm: a2a.Communicator) -> None:
    import a2a.torch
    import torch.distributed as dist

    at = group(comm, "backend", 3, "keys")
    store = dist.distributed_c10d._get_default_store()

    def keys() -> int:
        comm.barrier()
        found: int = store.num_keys()
        comm.barrier()
        return found

    for times in (1, 5):
        if comm.rank < 3:
            a2a.torch.monitored_barrier(at)
        start_keys = keys()
        for _ in range(times):
            if comm.rank < 3:
                a2a.torch.monitored_barrier(at)
        assert keys() == start_keys
    if comm.rank == 0:  # barriers that fail leave one key each, until one succeeds
        for _ in range(3):
            with pytest.raises(a2a.torch.BarrierError):
                a2a.torch.monitored_barrier(at, timedelta(milliseconds=10))
    comm.barrier()
    for _ in range(3):
        if comm.rank in (1, 2):
            with pytest.raises(a2a.torch.BarrierError):
                a2a.torch.monitored_barrier(at, timedelta(milliseconds=300))
    if comm.rank < 3:
        a2a.torch.monitored_barrier(at)
    assert keys() == start_keys
    before = keys()
    for _ in range(4):
        made = dist.new_group([0, 1, 2], backend="a2a")
        if comm.rank < 3:
            a2a.torch.monitored_barrier(made)
            made.split_group([0, 1]) if comm.rank < 2 else None
            dist.destroy_process_group(made)
    assert keys() - before <= 4  # torch's own of each group


def test_keys_in_the_store(ranks: Pool) -> None:
    ranks.run(count_keys)
