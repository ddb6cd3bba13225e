"""64 hosts of one rank run every collective, over TCP and over UCX. They are hosts by A2A_HOSTS: so many network
namespaces have more neighbours than the kernel remembers."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import forked
import numpy as np
import pytest
from forked import apart
from tcp_peer import free_address
from tcp_ranks import join

import a2a
from a2a import _core, testing

pytestmark = [pytest.mark.timeout(300), pytest.mark.full]
HOSTS = 64


def everything(comm: a2a.Communicator, elems: int) -> None:
    """Each collective once, against the oracle."""
    n, rank = comm.size, comm.rank
    every = [(np.arange(n * elems) % 50 + of).astype(np.float64) for of in range(n)]
    own = [each[:elems] for each in every]
    whole, part = np.empty(n * elems), np.empty(elems)

    def same(got: np.ndarray, expected: np.ndarray | None) -> None:
        assert expected is None or np.array_equal(got, expected.ravel())

    comm.barrier()
    comm.alltoall(every[rank], whole)
    same(whole, testing.alltoall(every)[rank])
    counts = [(rank + peer) % 3 * elems // 2 for peer in range(n)]
    got = np.empty(sum(counts))
    comm.alltoallv(np.repeat(np.full(n, float(rank)), counts), counts, got, counts)
    same(got, np.repeat(np.arange(n, dtype=np.float64), counts))
    comm.allgather(own[rank], whole)
    same(whole, testing.allgather(own)[rank])
    comm.allgatherv(own[rank], whole, [elems] * n)
    same(whole, testing.allgather(own)[rank])
    for call, right in (("allreduce", testing.allreduce), ("scan", testing.scan), ("exscan", testing.exscan)):
        getattr(comm, call)(own[rank], part)
        same(part, right(own)[rank])
    comm.reduce_scatter(every[rank], part)
    same(part, testing.reduce_scatter(every)[rank])
    comm.reduce_scatterv(every[rank], [elems] * n, part)
    same(part, testing.reduce_scatter(every)[rank])
    for root in (0, n - 1):
        comm.reduce(own[rank], part if rank == root else None, root)
        same(part, testing.reduce(own, root)[rank])
        comm.gather(own[rank], whole if rank == root else None, root)
        same(whole, testing.gather(own, root)[rank])
        comm.scatter(every[root] if rank == root else None, part, root)
        same(part, testing.scatter(every[root], n)[rank])
        part[:] = own[rank]
        comm.broadcast(part, root)
        same(part, own[root])
    work = comm.send(own[rank], (rank + 1) % n, async_op=True)
    comm.recv(part, (rank - 1) % n)
    work.wait()
    same(part, own[(rank - 1) % n])
    rows = np.full(n, 1, np.int64)
    same(comm.global_scatter(every[rank].reshape(n, -1), rows, rows).ravel(), testing.alltoall(every)[rank])
    assert comm.allgather_bytes(str(rank).encode()) == [str(peer).encode() for peer in range(n)]


def possessions() -> tuple[int, int]:
    """Peak memory in MiB, and descriptors."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return peak, len(list(Path("/proc/self/fd").iterdir()))


def alone_on_its_host(rank: int, address: str, network: str) -> tuple[str, int, int]:
    """What it is connected by, and how much more memory and descriptors it has than before."""
    os.environ.update(A2A_HOSTS=",".join(map(str, range(HOSTS))), A2A_NETWORK=network, UCX_TLS="tcp")
    before = possessions()
    with a2a.init(rank, HOSTS, bootstrap=join(rank, HOSTS, address), timeout=120) as comm:
        for elems in (1, 1000):
            everything(comm, elems)
        after = possessions()
        return _core.host_ways(comm, 8)[-1][1], after[0] - before[0], after[1] - before[1]


@apart
@pytest.mark.parametrize("network", ["tcp", "ucx"])
def test_every_collective(network: str) -> None:
    if network == "ucx":
        try:
            _core.library_of("ucx")
        except a2a.UnsupportedError:
            pytest.skip("no UCX here")
    told = forked.values(forked.run(HOSTS, alone_on_its_host, free_address(), network, timeout=100))
    names, memory, descriptors = zip(*told, strict=True)
    print(f"{network}: {names[0]}, {max(memory)} MiB and {max(descriptors)} descriptors at most")
    assert all(network.upper() in name for name in names)
    assert max(memory) < 200 and max(descriptors) < 4 * HOSTS, told
