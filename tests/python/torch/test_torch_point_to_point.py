"""Send and receive by each way to reach them: tags, any source, any strides, batches, and their works."""

from __future__ import annotations

import itertools

import pytest
from rank_pool import Pool
from test_torch_operations import LAYOUTS, SIZE, array, check, values
from torch_worlds import WAYS, calls, group

import a2a

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)


def layouts_and_tags(comm: a2a.Communicator, way: str) -> None:
    """Around the ring, and by tags in the other order."""
    at, dist, rank = group(comm, way, SIZE), calls(way), comm.rank
    if rank >= SIZE:
        return
    after, before = (rank + 1) % SIZE, (rank - 1) % SIZE
    for (layout, make), dtype in itertools.product(LAYOUTS.items(), ("float32", "int16", "complex64", "float8_e5m2")):
        work = dist.isend(make(values(rank, dtype)), group_dst=after, group=at)
        tensor = make(torch.zeros_like(values(rank, dtype)))
        assert dist.recv(tensor, group_src=before, group=at) in (None, before)  # torch returns what it was given
        work.wait()
        check(tensor, array(values(before, dtype)), layout, dtype)
    works = [dist.isend(torch.full((2,), 10.0 * rank + tag), group_dst=after, group=at, tag=tag) for tag in (5, 7)]
    tensors = {tag: torch.zeros(2, 2)[:, 0] for tag in (7, 5)}
    works += [dist.irecv(tensor, group_src=before, group=at, tag=tag) for tag, tensor in tensors.items()]
    for work in works:
        assert work.wait() is True and work.is_completed()
    assert {tag: tensor.tolist() for tag, tensor in tensors.items()} == {
        tag: [10.0 * before + tag] * 2 for tag in (5, 7)
    }


def any_source(comm: a2a.Communicator, way: str) -> None:
    at, dist, rank = group(comm, way, SIZE), calls(way), comm.rank
    if rank >= SIZE:
        return
    if rank == 0:
        tensor, seen = torch.zeros(2), set()
        for _ in range(SIZE - 1):
            source = dist.recv(tensor, group=at)
            assert tensor.tolist() == [float(source)] * 2
            seen.add(source)
        assert seen == set(range(1, SIZE))
        work = dist.irecv(tensor, group=at, tag=3)
        work.wait()
        assert work.source_rank() == work._source_rank() == 1
        assert work.get_future().wait()[0] is tensor
    else:
        dist.send(torch.full((2,), float(rank)), group_dst=0, group=at)
        if rank == 1:
            dist.send(torch.ones(2), group_dst=0, group=at, tag=3)
    tensor = torch.zeros(1)
    works = [dist.isend(torch.full((1,), 5.0 + rank), group_dst=rank, group=at)]
    works.append(dist.irecv(tensor, group_src=rank, group=at))
    for work in works:
        work.wait()
    assert tensor.item() == 5.0 + rank
    with pytest.raises(ValueError, match="destination rank should not be the same"):
        dist.send(torch.ones(1), group_dst=rank, group=at)


def batches(comm: a2a.Communicator, way: str) -> None:
    at, dist, rank = group(comm, way, SIZE), calls(way), comm.rank
    if rank >= SIZE:
        return
    tensor = torch.zeros(SIZE, 4).t()
    operations = [dist.P2POp(dist.irecv, tensor[:, peer], group=at, group_peer=peer) for peer in range(SIZE)]
    operations += [dist.P2POp(dist.isend, torch.full((4,), float(rank)), group=at, group_peer=p) for p in range(SIZE)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert tensor.tolist() == [[float(peer) for peer in range(SIZE)]] * 4
    with pytest.raises(ValueError, match=r"Invalid|pass isend"):
        dist.P2POp(dist.all_reduce, torch.ones(1), group=at, group_peer=0)


@pytest.mark.parametrize("way", WAYS)
def test_messages(ranks: Pool, way: str) -> None:
    ranks.run(layouts_and_tags, way)
    ranks.run(any_source, way)
    ranks.run(batches, way)


def mistakes(comm: a2a.Communicator, way: str) -> None:
    """The others of the group know nothing of it, and their next collective is the same one."""
    at, dist, rank = group(comm, way, SIZE), calls(way), comm.rank
    if rank >= SIZE:
        return
    if rank == 0:
        with pytest.raises(a2a.MismatchError, match="float64"):
            dist.recv(torch.zeros(2), group_src=1, group=at)
        with pytest.raises(a2a.InvalidArgumentError, match="share memory"):
            dist.recv(torch.zeros(1).expand(2), group_src=1, group=at)
    told = rank != 1
    if rank == 1:
        try:
            dist.send(torch.zeros(2, dtype=torch.float64), group_dst=0, group=at)
        except a2a.MismatchError:
            told = True
    x = torch.ones(2)
    dist.all_reduce(x, group=at)
    assert x.tolist() == [SIZE] * 2
    if not told:  # a small one is on its way before the receiver says so: the next message hears of it
        with pytest.raises(a2a.MismatchError, match="float64"):
            dist.send(torch.zeros(2), group_dst=0, group=at)


@pytest.mark.parametrize("way", WAYS)
def test_mistakes(ranks: Pool, way: str) -> None:
    ranks.run(mistakes, way)
