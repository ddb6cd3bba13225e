"""What ranks do in test_atb_nccl.py."""

from __future__ import annotations

import gpu_ranks
import numpy as np

import a2a
from a2a import atb


def exchange(comm: a2a.Communicator, name: str) -> None:
    """Twice as many elements from rank s to rank t as their numbers add up to, with a gap before each part."""
    framework, n, rank = gpu_ranks.place(comm, name), comm.size, comm.rank
    counts = [[2 * (source + target) + 1 for target in range(n)] for source in range(n)]
    gives, takes = counts[rank], [counts[source][rank] for source in range(n)]
    displs = [[1 + sum(row[:peer]) + peer for peer in range(n)] for row in counts]
    sent = [np.arange(sum(row) + n + 1, dtype=np.float32) + 1000 * source for source, row in enumerate(counts)]
    param = atb.AllToAllVParam(
        rank=rank,
        rank_size=n,
        send_counts=gives,
        sdispls=displs[rank],
        recv_counts=takes,
        rdispls=[sum(takes[:peer]) for peer in range(n)],
        backend="nccl",
        comm_domain=comm.allgather_bytes(str(id(comm)).encode())[0].decode(),
    )
    operation = atb.AllToAllVOperation(param, timeout=40)
    x = framework.tensor(framework.make(sent[rank].view(np.uint8)), 0, "float32", sent[rank].shape)
    wanted = [sent[source][displs[source][rank] :][: takes[source]] for source in range(n)]
    for _ in range(3):
        (out,) = operation.forward([x])
        assert tuple(out.shape) == (1, sum(takes))
        np.testing.assert_array_equal(framework.read(out).view(np.float32), np.concatenate(wanted))
