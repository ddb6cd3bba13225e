"""Ranks that meet through a store of torch's, late, again, and after others that left their words in it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_pool import Pool

import a2a

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(110)


def try_until_met(store: Any, rank: int, size: int, timeout: float) -> list[str]:
    """How the attempts before the last one ended; the last one is a communicator that works."""
    from a2a.torch._process_group import store_bootstrap

    ends, until = list[str](), time.monotonic() + 30
    while time.monotonic() < until:
        try:
            comm = store_bootstrap.meet(store, "group", rank, size, timeout)
            assert comm is not None
            result = np.zeros(size, int)
            comm.allgather(np.array([rank]), result)
            assert result.tolist() == list(range(size))
            comm.close()
            return ends
        except a2a.Error as error:
            ends.append(f"{type(error).__name__}: {error}")
    raise AssertionError(ends)


def come_late(comm: a2a.Communicator, lates: list[float], timeout: float, file: str) -> list[str]:
    import torch.distributed as dist

    if comm.rank >= len(lates):
        return []
    store = dist.FileStore(file, len(lates))
    time.sleep(lates[comm.rank])
    ends = try_until_met(store, comm.rank, len(lates), timeout)
    return ends + try_until_met(store, comm.rank, len(lates), timeout)


@pytest.mark.parametrize("lates", [[0, 1.3], [1.3, 0], [0.2, 1.9, 0.5], [1.9, 0.2, 0.5]])
def test_late_ranks(ranks: Pool, lates: list[float], tmp_path: Path) -> None:
    for ends in ranks.run(come_late, lates, 0.7, str(tmp_path / "store")):
        assert all(end.startswith(("TimeoutError", "PeerLostError")) for end in ends), ends


def find_words_of_the_dead(comm: a2a.Communicator, file: str) -> list[str]:
    """Rank 1 has died in an earlier attempt, of which the store keeps its words."""
    import torch.distributed as dist
    from a2a.torch._process_group import store_bootstrap

    from a2a._store_bootstrap import StoreBootstrap

    if comm.rank >= 3:
        return []
    store = dist.FileStore(file, 3)
    if comm.rank == 1:
        dead = StoreBootstrap(store_bootstrap.TorchStore(dist.PrefixStore("a2a/group", store)), 1, 3, 0.5)
        with pytest.raises(a2a.TimeoutError):
            dead.allgather(b"")
        Path(file + ".dead").touch()
    while not Path(file + ".dead").exists():
        time.sleep(0.01)
    return try_until_met(store, comm.rank, 3, 2)


def test_a_rank_that_died_before(ranks: Pool, tmp_path: Path) -> None:
    ranks.run(find_words_of_the_dead, str(tmp_path / "store"))


def wait_in_vain(comm: a2a.Communicator, file: str) -> str:
    import torch.distributed as dist
    from a2a.torch._process_group import store_bootstrap

    if comm.rank >= 2:
        return ""
    with pytest.raises(a2a.TimeoutError) as info:
        store_bootstrap.meet(dist.FileStore(file, 4), "group", comm.rank, 4, 1.5)
    return str(info.value)


def test_the_ranks_that_never_came_are_named(ranks: Pool, tmp_path: Path) -> None:
    for rank, text in enumerate(ranks.run(wait_in_vain, str(tmp_path / "store"))[:2]):
        assert text.startswith(f"rank {rank} of 4 timed out after 1.5 s waiting for rank 2, 3 in the first"), text
