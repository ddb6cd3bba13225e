"""A large allreduce between eight hosts or more goes around them: part p is folded from host p on."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from folds import check
from rank_pool import Pool

import a2a
from a2a import testing

pytestmark = pytest.mark.timeout(100)

HOSTS = "a,b,c,d,e,f,g,h,c"  # one host has two ranks
ELEMS = 8 * (1 << 18) + 5  # the last part is shorter


def fold_around(sends: list[np.ndarray[Any, Any]], op: Any) -> np.ndarray[Any, Any]:
    names = HOSTS.split(",")
    hosts = [[sends[rank] for rank, name in enumerate(names) if name == host] for host in sorted(set(names))]
    part = -(-ELEMS // (len(hosts) * 16)) * 16  # at multiples of 64 bytes
    result = np.empty_like(sends[0])
    for p in range(len(hosts)):
        begin, end = min(ELEMS, p * part), min(ELEMS, (p + 1) * part)
        folded, ranks = None, 0
        for ranks_of in hosts[p:] + hosts[:p]:
            here = testing.fold([send[begin:end] for send in ranks_of], op)
            parts = [here] if folded is None else [folded, here]
            times = [len(ranks_of)] if folded is None else [ranks, len(ranks_of)]
            weighted = itertools.chain(*([x] * (n if op == "avg" else 1) for x, n in zip(parts, times, strict=True)))
            folded = here if folded is None else testing.fold(list(weighted), op)
            ranks += len(ranks_of)
        result[begin:end] = folded
    return result


def around(comm: a2a.Communicator) -> None:
    random = np.random.default_rng(5)
    sends = [random.uniform(0.5, 2, ELEMS).astype(np.float32) for _ in range(comm.size)]
    for op in ("sum", "max", "avg"):
        recv = testing.poison(np.empty(ELEMS, np.float32))
        comm.allreduce(sends[comm.rank], recv, op)
        check(recv, fold_around(sends, op), op)
    in_place = sends[comm.rank].copy()
    works = [comm.allreduce(in_place, async_op=True), comm.allreduce(sends[comm.rank], recv, async_op=True)]
    for work in works:
        work.wait()
    check(in_place, fold_around(sends, "sum"), "in place")
    check(recv, in_place, "two in flight")
    other = np.zeros(ELEMS + comm.rank % 2, np.float32)
    with pytest.raises(a2a.MismatchError, match="elements"):
        comm.allreduce(other)
    comm.allreduce(in_place, op="min")


def test_ring() -> None:
    with Pool(HOSTS.count(",") + 1, hosts=HOSTS) as pool:
        pool.run(around)
