"""Which ranks a call of a2a.paddle is for: Paddle's groups, communicators, None, and ranks that are no members."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from rank_pool import Pool

paddle = pytest.importorskip("paddle")
import a2a.paddle as dist

import a2a

pytestmark = pytest.mark.timeout(110)
RANKS = 4


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Ranks of their own, because they make Paddle's environment."""
    with Pool(RANKS) as pool:
        yield pool


def initialised(comm: a2a.Communicator, fn: Any, *args: Any) -> Any:
    """What every rank does. A second init_parallel_env() changes nothing."""
    group = dist.init_parallel_env()
    assert group.ranks == list(range(comm.size)) and dist.is_initialized()
    return fn(comm, *args)


def exchange(group: Any = None) -> list[float]:
    """What arrives when every rank sends its number in the job."""
    size = dist.get_world_size(group)
    out = paddle.zeros([size])
    task = dist.alltoall_single(out, paddle.full([size], float(dist.get_rank())), group=group)
    assert task is not None and task.is_completed()
    return out.tolist()


def run_all(comm: a2a.Communicator) -> list[Any]:
    assert dist.get_rank() == paddle.distributed.get_rank() == dist.ParallelEnv().rank == comm.rank
    assert dist.get_world_size() == paddle.distributed.get_world_size() == comm.size
    dist.barrier()
    total = paddle.full([1], float(comm.rank))
    paddle.distributed.all_reduce(total)  # Paddle's own
    return [*exchange(), *exchange(paddle.distributed.get_group(0)), float(total.item())]


def test_all_ranks(pool: Pool) -> None:
    assert pool.run(initialised, run_all) == [[0, 1, 2, 3, 0, 1, 2, 3, 6]] * RANKS


def run_parts(comm: a2a.Communicator, ranks: list[int], made_by: str) -> Any:
    if made_by == "communicator":
        group = comm.group(ranks)
        return None if group is None else [dist.get_rank(group), dist.get_world_size(group), exchange(group)]
    if made_by == "hand":  # as in the documentation of MoELayer
        from paddle.distributed.communication.group import Group

        group = Group(ranks.index(comm.rank) if comm.rank in ranks else -1, 77, ranks)
    else:
        group = dist.new_group(ranks)
    where = dist.get_rank(group), dist.get_world_size(group)
    if comm.rank not in ranks:
        assert where == (-1, -1)
        return None
    dist.barrier(group)
    first = exchange(group)
    assert exchange(group) == first and dist.get_communicator(group) is dist.get_communicator(group)
    return [*where, first]


@pytest.mark.parametrize("made_by", ["new_group", "hand", "communicator"])
@pytest.mark.parametrize("ranks", [[0, 1], [1, 3], [0, 2, 3], [2], [0, 1, 2, 3]])
def test_parts(pool: Pool, ranks: list[int], made_by: str) -> None:
    arrived = [float(rank) for rank in ranks]
    expected = [[ranks.index(rank), len(ranks), arrived] if rank in ranks else None for rank in range(RANKS)]
    assert pool.run(initialised, run_parts, ranks, made_by) == expected


def run_global_ranks(comm: a2a.Communicator) -> Any:
    """src, dst and peers are numbers in the job, whatever the group."""
    ranks, group = [1, 3], dist.new_group([1, 3])
    if comm.rank not in ranks:
        return None
    x, out, filled = paddle.full([2], float(comm.rank)), paddle.zeros([2]), []
    dist.broadcast(x, 3, group)
    seen = [x.tolist()]
    x = paddle.full([2], float(comm.rank))
    dist.reduce(x, 3, group=group)
    dist.scatter(out, [x, x + 1] if comm.rank == 3 else None, 3, group)
    seen += [x.tolist(), out.tolist()]
    dist.gather(out, filled if comm.rank == 1 else None, 1, group)
    seen.append([tensor.tolist() for tensor in filled])
    peer = 4 - comm.rank
    tasks = dist.batch_isend_irecv([dist.P2POp(dist.isend, out, peer, group), dist.P2POp(dist.irecv, x, peer, group)])
    assert all(task.wait() for task in tasks)
    objects = [comm.rank]
    dist.broadcast_object_list(objects, 3, group)
    with pytest.raises(ValueError, match=r"src is 0, but the ranks of the group are \[1, 3\]"):
        dist.recv(x, 0, group)
    return [*seen, x.tolist(), objects]


def test_ranks_are_those_of_the_job(pool: Pool) -> None:
    first = [[3.0, 3.0], [1.0, 1.0], [4.0, 4.0], [[4.0, 4.0], [5.0, 5.0]], [5.0, 5.0], [3]]
    second = [[3.0, 3.0], [4.0, 4.0], [5.0, 5.0], [], [4.0, 4.0], [3]]
    assert pool.run(initialised, run_global_ranks) == [None, first, None, second]


def run_outside(comm: a2a.Communicator) -> list[Any]:
    """What a rank sees that is no member."""
    group = dist.new_group([0, 1])
    if comm.rank < 2:
        return []
    x, counts = paddle.ones([2, 1]), paddle.to_tensor([1, 1])
    seen: list[Any] = []
    for call in (
        lambda: dist.alltoall_single(paddle.empty([2, 1]), x, group=group),
        lambda: dist.stream.alltoall([], [x, x], group=group),
        lambda: dist.utils.global_scatter(x, counts, counts, group=group),
        lambda: dist.all_reduce(x, group=group),
        lambda: dist.stream.gather(x, [], 0, group),
        lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 0, group)]),
        lambda: dist.broadcast_object_list([1], 0, group),
        lambda: dist.barrier(group),
        lambda: dist.all_gather([], x, group=group),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                seen.append(call())
            except RuntimeError as error:
                seen.append(str(error))
        seen += [str(warning.message) for warning in caught]
    return seen


def test_no_members(pool: Pool) -> None:
    seen = pool.run(initialised, run_outside)
    assert seen[:2] == [[], []]
    for rank in (2, 3):
        *rest, last = seen[rank]
        told = [text for text in rest if text is not None]
        assert len(told) == 6 and len(rest) == 8 + len(told)
        assert set(told) == {told[0]} and told[0].startswith(f"Current global rank {rank} is not in group _default_pg")
        assert last.startswith("The group should not be None and all ranks which invoke this operation should be the")


def run_interleaved(comm: a2a.Communicator) -> list[Any]:
    """Two groups of the same ranks, used by them in different order."""
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    if comm.rank > 1:
        return []
    outs = [paddle.zeros([2]), paddle.zeros([2])]
    order = [(0, first), (1, second)] if comm.rank == 0 else [(1, second), (0, first)]
    dist.barrier(first), dist.barrier(second)
    tasks = [
        dist.alltoall_single(outs[at], paddle.full([2], 10.0 * at + comm.rank), group=group, sync_op=False)
        for at, group in order
    ]
    return [task is not None and task.wait() for task in tasks] + [out.tolist() for out in outs]


def test_groups_of_the_same_ranks(pool: Pool) -> None:
    assert pool.run(initialised, run_interleaved)[:2] == [[True, True, [0.0, 1.0], [10.0, 11.0]]] * 2


def run_destroyed(comm: a2a.Communicator) -> list[Any]:
    group = dist.new_group([0, 1, 2, 3])
    before = dist.get_communicator(group)
    dist.destroy_process_group(group)
    again = exchange(group)  # the ranks meet once more
    assert dist.get_communicator(group) is not before
    dist.destroy_process_group()
    with pytest.raises(RuntimeError, match="The global group is not initialized"):
        exchange()
    return again


def test_destroyed(pool: Pool) -> None:
    assert pool.run(initialised, run_destroyed) == [[0.0, 1.0, 2.0, 3.0]] * RANKS
    pool.stop()


def run_by_paddle(comm: a2a.Communicator) -> list[float]:
    """A program in which something else, such as fleet, has initialised Paddle, and ranks that name the group of all
    in different ways."""
    dist.init_parallel_env()
    dist._groups._world = None
    dist._groups._communicators.clear()
    first, second = (None, paddle.distributed.get_group(0))[:: 1 if comm.rank % 2 else -1]
    assert exchange(first) == exchange(second)
    return exchange()


def test_initialised_by_paddle_alone(pool: Pool) -> None:
    assert pool.run(run_by_paddle) == [[0.0, 1.0, 2.0, 3.0]] * RANKS


def test_passed_through() -> None:
    for name in paddle.distributed.__all__:
        assert hasattr(dist, name) and name in dist.__all__
    assert dist.ReduceOp is paddle.distributed.ReduceOp and dist.fleet is paddle.distributed.fleet
    assert dist.utils.moe_utils.get_complete_pp_mesh is paddle.distributed.utils.moe_utils.get_complete_pp_mesh
    assert dist.utils.log_utils is paddle.distributed.utils.log_utils
    assert not hasattr(dist, "nonsense")
    assert {"all_reduce", "alltoall", "fleet"} <= set(dir(dist))
