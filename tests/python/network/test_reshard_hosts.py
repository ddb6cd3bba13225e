"""Reshardings between ranks on several hosts, over TCP and over MPI. The hosts are assigned by A2A_HOSTS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpi import INSTALLED
from rank_pool import Pool
from reshard_ranks import (
    FOLDS,
    GROUPS,
    at_random,
    bystanders,
    call,
    differ,
    every_layout,
    folds,
    many,
    terms_at_random,
    whole,
)
from sample import with_full

import a2a
from a2a.sharding import Replicate, Shard, Sharding, matrix

pytestmark = pytest.mark.timeout(100)

POOLS = [Pool(4, hosts=hosts) for hosts in ("a,a,b,b", "a,b,b,b")]
POOLS += [Pool(4, hosts="a,b,b,a", mpi=mpi) for mpi in INSTALLED]
POOLS += with_full([Pool(4, hosts="a,b,c,d"), Pool(6, hosts="a,b,a,c,b,c")])


@pytest.fixture(scope="module", params=POOLS, ids=repr)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with request.param as made:
        yield made


def test_random_layouts(pool: Pool) -> None:
    pool.run(at_random, pool.n, 100)


def test_random_partial_sums(pool: Pool) -> None:
    pool.run(terms_at_random, pool.n, 40)


@pytest.mark.parametrize("group", GROUPS)
def test_group_of_m2n(pool: Pool, group: str) -> None:
    pool.run(every_layout, group)


@pytest.mark.parametrize(("op", "dtype"), FOLDS)
def test_partial_sums(pool: Pool, op: str, dtype: str) -> None:
    pool.run(folds, op, dtype)


@pytest.mark.parametrize("partial", [False, True], ids=["copied", "partial"])
def test_many_tensors_at_once(pool: Pool, partial: bool) -> None:
    pool.run(many, partial)


def large(comm: a2a.Communicator, hosts: str) -> None:
    """A part that all ranks of a host want comes there once, in pieces; more bytes than the network packs at a time."""
    full = whole((600, 4000))
    src, dst = Sharding([0], Shard(0)), Sharding(range(comm.size), Replicate())
    plan = comm.plan_reshard(full.shape, src, dst)
    expected = matrix([(full.shape, src, dst, "float32")], comm.size, [ord(host) for host in hosts.split(",")])
    assert plan.bytes_to == expected[comm.rank].tolist()
    recv = np.zeros((4000, 600), np.float32).T
    for _ in range(2):
        recv[...] = 0
        plan.run(np.asfortranarray(full) if comm.rank == 0 else None, recv)
        np.testing.assert_array_equal(recv, full)


def test_a_host_gets_each_byte_once(pool: Pool) -> None:
    pool.run(large, pool.hosts)


def differ_in_a_group(comm: a2a.Communicator) -> None:
    group = comm.group([0, 1, 2])
    if group is not None:
        differ(group)
        group.close()


def test_ranks_that_differ(pool: Pool) -> None:
    pool.run(differ_in_a_group)


def test_a_rank_without_a_part_does_not_know_the_dtype(pool: Pool) -> None:
    pool.run(bystanders)


def refused(comm: a2a.Communicator) -> None:
    """In a resharding of two stages."""
    everywhere = Sharding(range(comm.size), Replicate())
    for rank in range(comm.size):
        send = np.zeros((4, 3), np.float32) if comm.rank == 0 else None
        recv: Any = np.zeros((4, 3), np.float32)
        if comm.rank == rank:
            with pytest.raises(a2a.InvalidArgumentError, match="recv"):
                comm.reshard(send, recv[:3], (4, 3), Sharding([0], Replicate()), everywhere)
        else:
            with pytest.raises(a2a.MismatchError, match=f"rank {rank}"):
                comm.reshard(send, recv, (4, 3), Sharding([0], Replicate()), everywhere)
        call(comm)


def test_a_refusal_fails_on_all_ranks(pool: Pool) -> None:
    pool.run(refused)
