"""Several operations of torch in flight on the same tensors, some of them in lists, with gaps or scaled, waited for in
any order. Every rank derives all ranks' tensors, and so what has to be in them, from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_worlds import calls, group

import a2a

View = Callable[[Tensor], Tensor]
# Parts of [6, 6] with as many elements each, some of them the same ones.
VIEWS: tuple[View, ...] = (
    lambda x: x[:2, :3],
    lambda x: x[2:4, :3],
    lambda x: x[1],
    lambda x: x[:, 5:],
    lambda x: x[::3, ::2],
    lambda x: x.t()[4],
    lambda x: x[3:5, 1:4].t(),
)


class Round:
    """``tensors[name][rank]`` is what has to be in that tensor, after all operations so far."""

    def __init__(self, at: Any, dist: Any, rank: int, size: int, seed: int) -> None:
        self.at, self.dist, self.rank, self.size = at, dist, rank, size
        self.draw = random.Random(seed)
        made = torch.Generator().manual_seed(seed)
        self.tensors = [list(torch.randint(-9, 9, (size, 6, 6), generator=made).double().unbind(0)) for _ in range(3)]
        self.own = [one[rank].clone() for one in self.tensors]
        self.works: list[Any] = []
        self.calls: list[str] = []

    def several(self, count: int, apart: bool) -> list[tuple[int, View]]:
        """Parts of any tensors; with ``apart`` no two share memory."""
        if apart:
            return [(at % 3, VIEWS[at // 3]) for at in self.draw.sample(range(6), count)]
        return [(self.draw.randrange(3), self.draw.choice(VIEWS)) for _ in range(count)]

    def mine(self, part: tuple[int, View]) -> Tensor:
        return part[1](self.own[part[0]])

    def theirs(self, part: tuple[int, View]) -> list[Tensor]:
        return [part[1](one) for one in self.tensors[part[0]]]

    def start(self) -> None:
        kinds = ["all_reduce", "scaled", "broadcast", "reduce_scatter", "uneven", "scatter", "gather", "all_gather"]
        kind = self.draw.choice([*kinds, "all_to_all", "reduce", "message", "batch"])
        self.calls.append(kind)
        work = getattr(self, "_" + kind)()
        self.works += work if isinstance(work, list) else [work]

    def _all_reduce(self) -> Any:
        (part,) = self.several(1, False)
        work = self.dist.all_reduce(self.mine(part), group=self.at, async_op=True)
        total = sum(self.theirs(part))
        for one in self.theirs(part):
            one.copy_(total)
        return work

    def _scaled(self) -> Any:
        from torch.distributed import _make_nccl_premul_sum

        (part,) = self.several(1, False)
        op = _make_nccl_premul_sum(2.0)
        work = self.dist.all_reduce(self.mine(part), op, group=self.at, async_op=True)
        total = 2 * sum(self.theirs(part))
        for one in self.theirs(part):
            one.copy_(total)
        return work

    def _broadcast(self) -> Any:
        (part,), root = self.several(1, False), self.draw.randrange(self.size)
        work = self.dist.broadcast(self.mine(part), group=self.at, group_src=root, async_op=True)
        for one in self.theirs(part):
            one.copy_(self.theirs(part)[root])
        return work

    def _reduce(self) -> Any:
        (part,), root = self.several(1, False), self.draw.randrange(self.size)
        work = self.dist.reduce(self.mine(part), group=self.at, group_dst=root, async_op=True)
        self.theirs(part)[root].copy_(sum(self.theirs(part)))
        return work

    def _reduce_scatter(self) -> Any:
        (out,), parts = self.several(1, False), self.several(self.size, False)
        inputs = [self.mine(part) for part in parts]
        work = self.dist.reduce_scatter(self.mine(out), inputs, group=self.at, async_op=True)
        totals = [sum(self.theirs(part)) for part in parts]
        for one, total in zip(self.theirs(out), totals, strict=True):
            one.copy_(total.reshape(one.shape))
        return work

    def _uneven(self) -> Any:
        """Rank 0 gets four elements, the others six, into outputs with gaps."""
        parts = [(self.draw.randrange(3), VIEWS[6]) for _ in range(self.size)]
        parts[0] = (self.draw.randrange(3), lambda x: x[:4:2, 1:3])
        out = self.draw.randrange(3), (lambda x: x[::3, :2]) if self.rank == 0 else (lambda x: x[::2, 4:])
        inputs = [self.mine(part) for part in parts]
        work = self.dist.reduce_scatter(self.mine(out), inputs, group=self.at, async_op=True)
        totals = [sum(self.theirs(part)) for part in parts]
        for rank, whole in enumerate(self.tensors[out[0]]):
            target = whole[::3, :2] if rank == 0 else whole[::2, 4:]
            target.copy_(totals[rank].reshape(target.shape))
        return work

    def _scatter(self) -> Any:
        (out,), parts, root = self.several(1, False), self.several(self.size, False), self.draw.randrange(self.size)
        inputs = [self.mine(part) for part in parts] if self.rank == root else None
        work = self.dist.scatter(self.mine(out), inputs, group=self.at, group_src=root, async_op=True)
        sent = [self.theirs(part)[root].clone() for part in parts]
        for one, given in zip(self.theirs(out), sent, strict=True):
            one.copy_(given.reshape(one.shape))
        return work

    def _gather(self) -> Any:
        (part,), outs, root = self.several(1, False), self.several(self.size, True), self.draw.randrange(self.size)
        outputs = [self.mine(out) for out in outs] if self.rank == root else None
        work = self.dist.gather(self.mine(part), outputs, group=self.at, group_dst=root, async_op=True)
        sent = [one.clone() for one in self.theirs(part)]
        for out, given in zip(outs, sent, strict=True):
            one = self.theirs(out)[root]
            one.copy_(given.reshape(one.shape))
        return work

    def _all_gather(self) -> Any:
        part, *outs = self.several(1 + self.size, True)
        work = self.dist.all_gather([self.mine(out) for out in outs], self.mine(part), group=self.at, async_op=True)
        for rank, out in enumerate(outs):
            given = self.theirs(part)[rank]
            for one in self.theirs(out):
                one.copy_(given.reshape(one.shape))
        return work

    def _all_to_all(self) -> Any:
        parts = self.several(2 * self.size, True)
        ins, outs = parts[: self.size], parts[self.size :]
        inputs, outputs = [self.mine(one) for one in ins], [self.mine(one) for one in outs]
        work = self.dist.all_to_all(outputs, inputs, group=self.at, async_op=True)
        for source, out in enumerate(outs):
            for rank, one in enumerate(self.theirs(out)):
                one.copy_(self.theirs(ins[rank])[source].reshape(one.shape))
        return work

    def _message(self) -> Any:
        (source, target), (part,), (out,) = (
            self.draw.sample(range(self.size), 2),
            self.several(1, False),
            self.several(1, False),
        )
        works = []
        if self.rank == source:
            works.append(self.dist.isend(self.mine(part), group=self.at, group_dst=target))
        if self.rank == target:
            works.append(self.dist.irecv(self.mine(out), group=self.at, group_src=source))
        self.theirs(out)[target].copy_(self.theirs(part)[source].reshape(self.theirs(out)[target].shape))
        return works

    def _batch(self) -> Any:
        """Around a ring."""
        part, out = self.several(2, True)
        to, from_ = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        ops = [
            self.dist.P2POp(self.dist.irecv, self.mine(out), group=self.at, group_peer=from_),
            self.dist.P2POp(self.dist.isend, self.mine(part), group=self.at, group_peer=to),
        ]
        works = self.dist.batch_isend_irecv(ops)
        sent = [one.clone() for one in self.theirs(part)]
        for rank, one in enumerate(self.theirs(out)):
            one.copy_(sent[rank - 1].reshape(one.shape))
        return list(works)

    def finish(self, order: random.Random) -> None:
        order.shuffle(self.works)
        for work in self.works:
            if order.random() < 0.2:
                work.is_completed()
            work.wait()
        for name, own in enumerate(self.own):
            expected = self.tensors[name][self.rank]
            assert torch.equal(own, expected), f"rank {self.rank}: tensor {name} after {self.calls}: {own - expected}"


def rounds(comm: a2a.Communicator, way: str, size: int, seeds: list[int]) -> None:
    at, dist = group(comm, way, size), calls(way)
    if comm.rank >= size:
        return
    for seed in seeds:
        one = Round(at, dist, comm.rank, size, seed)
        for _ in range(one.draw.randrange(2, 7)):
            one.start()
        one.finish(random.Random(seed * 1000 + comm.rank))
