"""Which communicator serves a call, how long it lives, and the Work of a call."""

from __future__ import annotations

import gc
import os
import signal
import time
import warnings
from datetime import timedelta
from typing import Any
from unittest import mock

import numpy as np
import pytest
from rank_pool import Pool
from torch_worlds import RANKS, group, start, true_backends

import a2a

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)


def exchange(at: Any, rank: int, size: int) -> None:
    """One right exchange by our call."""
    import a2a.torch as dist

    output = torch.empty(size)
    dist.all_to_all_single(output, torch.arange(float(size)) + 10 * rank, group=at)
    assert output.tolist() == [10.0 * peer + rank for peer in range(size)]


# ---- lifetimes -------------------------------------------------------------------------------------------------------


def live_and_die(comm: a2a.Communicator) -> None:
    import a2a.torch as ours
    import torch.distributed as theirs
    from a2a.torch._process_group import communicators

    start(comm)
    everyone = list(range(comm.size))
    before = dict(communicators._comms)
    at = ours.new_group(everyone, backend="gloo")
    exchange(at, comm.rank, comm.size)
    served = communicators.communicator(at)
    assert served is communicators.communicator(at) and served is not None
    # Dropped with the group that torch's own call destroys.
    theirs.destroy_process_group(at)
    del at
    gc.collect()
    assert communicators._comms == before
    # Closed by our call, which serves groups of both libraries.
    for backend in ("gloo", "a2a"):
        at = ours.new_group(everyone, backend=backend)
        exchange(at, comm.rank, comm.size)
        served = communicators.communicator(at)
        ours.destroy_process_group(at)
        assert served is not None and served.closed and communicators._comms == before
    # The backend's group closes its own when torch destroys it.
    at = theirs.new_group(everyone, backend="a2a")
    exchange(at, comm.rank, comm.size)
    served = communicators.communicator(at)
    theirs.destroy_process_group(at)
    assert served is not None and served.closed and communicators._comms == before
    with pytest.raises(a2a.InvalidArgumentError, match="was destroyed"):
        exchange(at, comm.rank, comm.size)
    with pytest.raises(TypeError, match=r"group is builtins\.str; pass an a2a\.Communicator"):
        exchange("world", comm.rank, comm.size)
    mine = comm.group(everyone)
    assert mine is not None
    exchange(mine, comm.rank, comm.size)
    assert (ours.get_rank(mine), ours.get_world_size(mine)) == (comm.rank, comm.size)
    ours.destroy_process_group(mine)
    assert mine.closed


def test_a_communicator_lives_as_long_as_its_group(ranks: Pool) -> None:
    ranks.run(live_and_die)


def stay_out(comm: a2a.Communicator) -> list[Any] | None:
    import a2a.torch as dist

    start(comm)
    at = dist.new_group([0, 1])
    if comm.rank < 2:
        exchange(at, comm.rank, 2)
        return None
    assert at == torch.distributed.GroupMember.NON_GROUP_MEMBER
    assert dist.get_rank(at) == dist.get_world_size(at) == -1
    x, results = torch.ones(2), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results.append(dist.all_to_all_single(x, x, group=at, async_op=True))
        results.append(dist.all_to_all([x], [x], group=at))
        results.append(dist.all_gather_into_tensor(x, x, group=at))
        results.append(dist.all_gather([x], x, group=at))
        results.append(dist.barrier(group=at))
    return results + [str(warning.message) for warning in caught if warning.category is UserWarning]


def test_who_is_not_in_the_group_gets_none_and_a_warning(ranks: Pool) -> None:
    for rank, answers in enumerate(ranks.run(stay_out)[2:], 2):
        assert answers[:5] == [None] * 5
        assert len(answers) == 10
        names = ("all_to_all_single", "all_to_all", "all_gather", "all_gather", "barrier")
        for name, words in zip(names, answers[5:], strict=True):
            assert words.startswith(f"Running {name}") and f"global rank {rank} which does not" in words


def come_late(comm: a2a.Communicator) -> float:
    """A rank that is interrupted while it waits for the others to come may come again."""
    import a2a.torch as dist

    start(comm)
    at = dist.new_group([0, 1], backend="gloo")
    if comm.rank > 1:
        return 0.0

    class Alarm(Exception):
        pass

    def ring(*_: Any) -> None:
        raise Alarm

    started = time.monotonic()
    if comm.rank == 0:
        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Alarm):
            exchange(at, 0, 2)
        signal.signal(signal.SIGALRM, before)
        waited = time.monotonic() - started
    else:
        time.sleep(1.0)
        waited = 0.0
    exchange(at, comm.rank, 2)
    return waited


def test_the_first_exchange_can_be_interrupted(ranks: Pool) -> None:
    assert 0.2 < ranks.run(come_late)[0] < 0.9


def never_come(comm: a2a.Communicator) -> str:
    import a2a.torch as dist

    start(comm)
    at = dist.new_group([0, 1], backend="gloo", timeout=timedelta(seconds=1))
    if comm.rank != 0:
        return ""
    with pytest.raises(a2a.TimeoutError) as caught:
        exchange(at, 0, 2)
    return str(caught.value)


def test_the_first_exchange_keeps_the_groups_timeout(ranks: Pool) -> None:
    assert ranks.run(never_come)[0].startswith("rank 0 of 2 timed out after 1 s waiting for rank 1 in the first")


# ---- several hosts ---------------------------------------------------------------------------------------------------


def live_apart(comm: a2a.Communicator) -> list[str]:
    """Every second rank says that it lives elsewhere. Groups of all ranks and of some, and what was warned of."""
    import a2a.torch as ours
    import torch.distributed as theirs
    from a2a.torch._process_group import communicators

    from a2a._core import host_facts

    start(comm)
    words: list[str] = []
    apart = {"A2A_HOSTS": f"host{comm.rank % 2}", "A2A_TRUST_STORE": "1"}
    with mock.patch.dict(os.environ, apart), mock.patch.object(theirs.distributed_c10d, "ProcessGroupGloo") as gloo:
        for ranks in (list(range(comm.size)), [1, 2, 3], [0, 2]):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                at = theirs.new_group(ranks, backend="a2a")
                for dist in (ours, theirs):
                    if comm.rank not in ranks:
                        continue
                    assert host_facts(communicators.communicator(at))["hosts"] == len({rank % 2 for rank in ranks})
                    size, own = len(ranks), ranks.index(comm.rank)
                    output = torch.empty(size)
                    dist.all_to_all_single(output, torch.full((size,), float(comm.rank)), group=at)
                    assert output.tolist() == [*map(float, ranks)]
                    work = dist.all_to_all_single(output, torch.zeros(size), group=at, async_op=True)
                    assert work.wait() and not output.any()
                    outputs = [torch.empty(1) for _ in range(size)]
                    dist.all_to_all(outputs, list(torch.arange(float(size)).chunk(size)), group=at)
                    assert torch.cat(outputs).tolist() == [float(own)] * size
                    dist.all_gather(outputs, torch.full((1,), 3.0), group=at)
                    assert torch.cat(outputs).tolist() == [3.0] * size
                    dist.barrier(group=at)
            words += [str(one.message) for one in caught if one.category is RuntimeWarning]
            if comm.rank in ranks:
                ours.destroy_process_group(at)
        assert not gloo.called
    return words


def test_ranks_of_several_hosts(ranks: Pool) -> None:
    assert ranks.run(live_apart) == [[]] * RANKS


def out_of_reach(comm: a2a.Communicator) -> str:
    from a2a.torch._process_group import world

    reached, world.reached_address = world.reached_address, lambda told: None
    try:
        world._store_on_rank_0(comm)
    except a2a.UnsupportedError as error:
        return str(error)
    finally:
        world.reached_address = reached
    return ""


def test_where_no_address_of_rank_0_is_reached(ranks: Pool) -> None:
    for said in ranks.run(out_of_reach):
        assert said.startswith("init_process_group: ranks [1, 2, 3, 4, 5, 6, 7] do not reach rank 0 at any of "), said


# ---- mixed frameworks ------------------------------------------------------------------------------------------------


def mix(comm: a2a.Communicator, third: str) -> Any:
    """Rank 0 calls as Torch does, rank 1 with NumPy arrays, rank 2 in a third framework."""
    import a2a.torch as dist
    import frameworks

    at = comm.group([0, 1, 2])
    if at is None:
        return None
    counts = np.array([[1, 2, 0], [0, 1, 3], [2, 2, 1]])
    to, from_ = counts[comm.rank].tolist(), counts[:, comm.rank].tolist()
    send = np.arange(sum(to) * 2, dtype=np.float32).reshape(-1, 2) + 100 * comm.rank
    recv = np.zeros((sum(from_), 2), np.float32)
    if comm.rank == 0:
        output = torch.zeros(sum(from_), 2)
        dist.all_to_all_single(output, torch.from_numpy(send), from_, to, group=at)
        equal, whole = torch.zeros(3), torch.zeros(3, 2)
        dist.all_to_all_single(equal, torch.arange(3.0), group=at)
        dist.all_gather_into_tensor(whole, torch.zeros(2), group=at)
        parts = [torch.zeros(2) for _ in range(3)]
        dist.all_gather(parts, torch.zeros(2), group=at)
        return [output.tolist(), equal.tolist(), whole.tolist(), torch.stack(parts).tolist()]
    name = "numpy" if comm.rank == 1 else third
    given, output = frameworks.tensor(name, send), frameworks.tensor(name, recv)
    at.alltoallv(given, to, output, from_)
    results = [np.asarray(output).tolist()]
    for call, elems in ((at.alltoall, 3), (at.allgather, 2), (at.allgather, 2)):
        given = frameworks.tensor(name, np.arange(elems, dtype=np.float32) * comm.rank + 10 * comm.rank)
        output = frameworks.tensor(name, np.zeros(3 if elems == 3 else (3, 2), np.float32))
        call(given, output)
        results.append(np.asarray(output).tolist())
    return results


def test_ranks_of_several_frameworks_meet_in_one_exchange(ranks: Pool) -> None:
    import frameworks

    third = "paddle" if "paddle" in frameworks.INSTALLED else "numpy"
    first, second, last = ranks.run(mix, third)[:3]
    assert first[0] == [[0, 1], [200, 201], [202, 203]]
    assert second[0] == [[2, 3], [4, 5], [100, 101], [204, 205], [206, 207]]
    assert last[0] == [[102, 103], [104, 105], [106, 107], [208, 209]]
    assert [one[1] for one in (first, second, last)] == [[0, 10, 20], [1, 11, 22], [2, 12, 24]]
    gathered = [[0, 0], [10, 11], [20, 22]]
    assert [one[2:] for one in (first, second, last)] == [[gathered] * 2] * 3


# ---- work ------------------------------------------------------------------------------------------------------------


def use_work(comm: a2a.Communicator, way: str) -> None:
    import a2a.torch as ours
    import torch.distributed as theirs

    dist = theirs if way == "backend" else ours
    at = group(comm, way, 2)
    if comm.rank >= 2:
        return
    output, late = torch.zeros(4), comm.rank == 1
    store = theirs.distributed_c10d._get_default_store()
    exchange(at, comm.rank, 2)  # the first one waits for the other rank also with async_op
    if late:
        store.wait([f"looked {way}"], timedelta(seconds=20))
    work = dist.all_to_all_single(output, torch.full((4,), 1.0 + comm.rank), group=at, async_op=True)
    assert isinstance(work, theirs.Work) and (isinstance(work, ours.Work) or (way == "backend" and true_backends()))
    if not late:
        assert not work.is_completed() and not work.is_success() and work.exception() is None
        with pytest.raises(RuntimeError, match="wait"):
            work.result()
        with pytest.raises(TimeoutError):
            work.wait(timedelta(milliseconds=20))
        assert not output[2:].any()  # its own part is there already
        store.set(f"looked {way}", "")
    future = work.get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert work.wait(timeout=timedelta(seconds=20)) is True and work.wait() is True
    assert output.tolist() == [1, 1, 2, 2] and work.is_completed() and work.is_success()
    assert work.exception() is None and work.result()[0] is output
    assert future.wait()[0] is output and doubled.wait().tolist() == [2, 2, 4, 4]
    assert work.get_future() is future
    work.synchronize()
    work.block_current_stream()
    for refused in (work.source_rank, work.get_future_result):
        with pytest.raises(RuntimeError):
            refused()
    # Several at once, waited for in another order, and one that nobody waits for.
    outputs = [torch.zeros(2) for _ in range(4)]
    works = [dist.all_to_all_single(one, torch.full((2,), 1.0 + at_), group=at, async_op=True)
             for at_, one in enumerate(outputs)]  # fmt: skip
    for work in (works[2], works[0], works[1]):
        work.wait()
    del works, work
    assert dist.barrier(group=at, async_op=True).wait()
    assert [one.tolist() for one in outputs] == [[1.0 + k] * 2 for k in range(4)]
    # A failure comes out of every method that waits, and is kept.
    size = 2 if comm.rank == 0 else 4
    work = dist.all_to_all_single(torch.zeros(size), torch.zeros(size), group=at, async_op=True)
    future = work.get_future()
    for _ in range(2):
        with pytest.raises(a2a.MismatchError):
            work.wait()
    assert work.is_completed() and not work.is_success() and isinstance(work.exception(), a2a.MismatchError)
    with pytest.raises(Exception, match="elements to rank"):
        future.wait()
    exchange(at, comm.rank, 2)


@pytest.mark.parametrize("way", ["functions", "backend"])
def test_work(ranks: Pool, way: str) -> None:
    ranks.run(use_work, way)
